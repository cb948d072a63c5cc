// SPDX-License-Identifier: GPL-2.0
/* /proc/simhw: reading shows the devices, writing changes them. See README.md beside this folder. */
#include <linux/ctype.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "simhw.h"

#define MAX_WORDS	24
#define MAX_TEXT	SZ_64K

static const char * const condition_names[] = {
	[SIMHW_PRESENT] = "present", [SIMHW_LOST] = "lost", [SIMHW_REMOVED] = "removed",
};

/* PCI Express speeds by PCI_EXP_LNKSTA_CLS_*. */
static const char * const speed_names[] = { "", "2.5", "5", "8", "16", "32", "64" };

static const struct {
	const char *name;
	enum ib_port_state state;
	enum ib_port_phys_state phys_state;
} states[] = {
	/* Down as without a cable; disabled as by an administrator. */
	{ "down", IB_PORT_DOWN, IB_PORT_PHYS_STATE_POLLING },
	{ "disabled", IB_PORT_DOWN, IB_PORT_PHYS_STATE_DISABLED },
	{ "init", IB_PORT_INIT, IB_PORT_PHYS_STATE_LINK_UP },
	{ "armed", IB_PORT_ARMED, IB_PORT_PHYS_STATE_LINK_UP },
	{ "active", IB_PORT_ACTIVE, IB_PORT_PHYS_STATE_LINK_UP },
};

/* ---- reading ---- */

static const char *state_name(const struct simhw_port *port)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(states); i++)
		if (states[i].state == port->state && states[i].phys_state == port->phys_state)
			return states[i].name;
	return "?";
}

static void show_port(struct seq_file *m, struct simhw_dev *dev)
{
	const struct simhw_port *port = &dev->port;
	int i;

	mutex_lock(&simhw_port_lock);
	seq_printf(m, " ibdev=%s", dev->ib ? dev_name(&dev->ib->ib.dev) : "none");
	mutex_unlock(&simhw_port_lock);
	seq_printf(m, " link_layer=%s rate_gbps=%u state=%s guid=%016llx",
		   port->ethernet ? "ethernet" : "infiniband", port->rate_gbps, state_name(port),
		   be64_to_cpu(port->port_guid));
	for (i = 0; i < SIMHW_NCOUNTERS; i++)
		if (port->counters[i])
			seq_printf(m, " %s=%u", simhw_counter_names[i], port->counters[i]);
}

static int control_show(struct seq_file *m, void *v)
{
	int i;

	mutex_lock(&simhw_lock);
	seq_printf(m, "# simhw " SIMHW_VERSION ": simulated devices, no hardware\nseed=%s\n", simhw_seed);
	for (i = 0; i < SIMHW_MAX_DEVS; i++) {
		struct simhw_dev *dev = simhw_devs[i];

		if (!dev)
			continue;
		seq_printf(m, "%s %d %04x:%02x:00.0 model=%s numa=%d condition=%s speed=%s width=%u acs=%s",
			   dev->model->kind == SIMHW_GPU ? "gpu" : "hca", dev->index, SIMHW_DOMAIN,
			   SIMHW_BUS_OF(i), dev->model->name, dev->numa,
			   condition_names[dev->condition], speed_names[dev->link_speed],
			   dev->link_width, simhw_pci_acs(dev) ? "on" : "off");
		if (dev->model->kind == SIMHW_HCA)
			show_port(m, dev);
		seq_putc(m, '\n');
	}
	mutex_unlock(&simhw_lock);
	return 0;
}

/* ---- writing ---- */

struct words {
	int n;
	char *at[MAX_WORDS];
	char *rest[MAX_WORDS];	/* from here to the end of the line */
	const char *why;	/* of a refusal */
};

static int refuse(struct words *w, const char *why)
{
	w->why = why;
	return -EINVAL;
}

static struct simhw_dev *find_dev(enum simhw_kind kind, int index)
{
	int i;

	for (i = 0; i < SIMHW_MAX_DEVS; i++)
		if (simhw_devs[i] && simhw_devs[i]->model->kind == kind &&
		    simhw_devs[i]->index == index)
			return simhw_devs[i];
	return NULL;
}

static struct simhw_dev *find_dev_word(enum simhw_kind kind, const char *word)
{
	int index;

	return kstrtoint(word, 10, &index) ? NULL : find_dev(kind, index);
}

/* mlx5_N as registered, or what udev has renamed it to. */
static struct simhw_dev *find_port(const char *name)
{
	struct simhw_dev *found = NULL;
	int i;

	if (!strncmp(name, "mlx5_", 5))
		return find_dev_word(SIMHW_HCA, name + 5);
	mutex_lock(&simhw_port_lock);
	for (i = 0; i < SIMHW_MAX_DEVS; i++)
		if (simhw_devs[i] && simhw_devs[i]->ib &&
		    !strcmp(dev_name(&simhw_devs[i]->ib->ib.dev), name))
			found = simhw_devs[i];
	mutex_unlock(&simhw_port_lock);
	return found;
}

static bool find_state(const char *name, struct simhw_port *port)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(states); i++)
		if (!strcmp(states[i].name, name)) {
			WRITE_ONCE(port->state, states[i].state);
			WRITE_ONCE(port->phys_state, states[i].phys_state);
			return true;
		}
	return false;
}

/* gpu model=... numa=...; hca model=... link_layer=... rate_gbps=... state=... numa=... */
static int cmd_add(struct words *w, enum simhw_kind kind)
{
	struct simhw_port port = {
		.state = IB_PORT_ACTIVE, .phys_state = IB_PORT_PHYS_STATE_LINK_UP,
	};
	const struct simhw_model *model = NULL;
	struct simhw_dev *dev;
	int numa = NUMA_NO_NODE, i;

	for (i = 1; i < w->n; i++) {
		char *value = w->at[i];
		char *key = strsep(&value, "=");

		if (!value)
			return refuse(w, "want key=value");
		if (!strcmp(key, "model")) {
			model = simhw_model_find(kind, value);
			if (!model)
				return refuse(w, "unknown model");
		} else if (!strcmp(key, "numa")) {
			if (kstrtoint(value, 10, &numa))
				return refuse(w, "numa: want a number");
		} else if (kind == SIMHW_HCA && !strcmp(key, "link_layer")) {
			port.ethernet = !strcmp(value, "ethernet");
			if (!port.ethernet && strcmp(value, "infiniband"))
				return refuse(w, "link_layer: want infiniband or ethernet");
		} else if (kind == SIMHW_HCA && !strcmp(key, "rate_gbps")) {
			if (kstrtou32(value, 10, &port.rate_gbps))
				return refuse(w, "rate_gbps: want a number");
		} else if (kind == SIMHW_HCA && !strcmp(key, "state")) {
			if (!find_state(value, &port))
				return refuse(w, "state: want active, armed, init, down or disabled");
		} else {
			return refuse(w, "unknown key");
		}
	}
	if (!model)
		return refuse(w, "want model=");
	if (kind == SIMHW_HCA) {
		if (!port.rate_gbps)
			port.rate_gbps = model->max_rate_gbps;
		if (!simhw_rate_known(port.ethernet, port.rate_gbps))
			return refuse(w, "rate_gbps: no such rate on this link layer");
		if (port.rate_gbps > model->max_rate_gbps)
			return refuse(w, "rate_gbps: more than the model can");
	}
	dev = simhw_pci_add(model, numa, kind == SIMHW_HCA ? &port : NULL);
	if (dev == ERR_PTR(-ENODEV))
		return refuse(w, "numa: this machine has no such node online");
	return PTR_ERR_OR_ZERO(dev);
}

static int cmd_width(struct words *w, struct simhw_dev *dev, const char *value)
{
	u8 width;

	if (kstrtou8(value, 10, &width) || !width || width > dev->model->link_width ||
	    hweight8(width) != 1)
		return refuse(w, "width: want 1, 2, 4, 8 or 16, and not more than the model has");
	simhw_pci_set_link(dev, dev->link_speed, width);
	return 0;
}

static int cmd_speed(struct words *w, struct simhw_dev *dev, const char *value)
{
	int i;

	for (i = 1; i <= dev->model->link_speed; i++)
		if (!strcmp(speed_names[i], value)) {
			simhw_pci_set_link(dev, i, dev->link_width);
			return 0;
		}
	return refuse(w, "speed: want 2.5, 5, 8, 16 or 32 (GT/s), and not more than the model has");
}

/* gpu|hca N lost|remove|restore; N width W; N speed S; N acs on|off */
static int cmd_device(struct words *w, enum simhw_kind kind)
{
	struct simhw_dev *dev;
	const char *verb;

	if (w->n < 3)
		return refuse(w, "want a number and what to do");
	dev = find_dev_word(kind, w->at[1]);
	if (!dev)
		return refuse(w, "no such device");
	verb = w->at[2];
	if (w->n == 3 && !strcmp(verb, "lost")) {
		if (dev->condition != SIMHW_REMOVED)
			simhw_pci_set_condition(dev, SIMHW_LOST);
	} else if (w->n == 3 && !strcmp(verb, "remove")) {
		simhw_pci_set_condition(dev, SIMHW_REMOVED);
	} else if (w->n == 3 && !strcmp(verb, "restore")) {
		if (dev->condition != SIMHW_PRESENT)
			simhw_pci_set_condition(dev, SIMHW_PRESENT);
	} else if (w->n == 4 && !strcmp(verb, "width")) {
		return cmd_width(w, dev, w->at[3]);
	} else if (w->n == 4 && !strcmp(verb, "speed")) {
		return cmd_speed(w, dev, w->at[3]);
	} else if (w->n == 4 && !strcmp(verb, "acs") &&
		   (!strcmp(w->at[3], "on") || !strcmp(w->at[3], "off"))) {
		simhw_pci_set_acs(dev, !strcmp(w->at[3], "on"));
	} else {
		return refuse(w, "want lost, remove, restore, width N, speed N or acs on|off");
	}
	return 0;
}

/* port NAME state S; NAME rate R; NAME counter COUNTER VALUE */
static int cmd_port(struct words *w)
{
	enum ib_port_state before;
	struct simhw_dev *dev;
	struct simhw_port *port;
	int i;

	if (w->n < 4)
		return refuse(w, "want a port and what to do");
	dev = find_port(w->at[1]);
	if (!dev)
		return refuse(w, "no such port");
	port = &dev->port;
	if (w->n == 5 && !strcmp(w->at[2], "counter")) {
		u32 value;

		if (kstrtou32(w->at[4], 10, &value))
			return refuse(w, "counter: want a number");
		i = match_string(simhw_counter_names, SIMHW_NCOUNTERS, w->at[3]);
		if (i < 0)
			return refuse(w, "unknown counter");
		WRITE_ONCE(port->counters[i], value);
		return 0;
	}
	if (w->n != 4)
		return refuse(w, "want state S, rate R or counter NAME VALUE");

	before = port->state;
	if (!strcmp(w->at[2], "state")) {
		if (!find_state(w->at[3], port))
			return refuse(w, "state: want active, armed, init, down or disabled");
		if (before != IB_PORT_DOWN && port->state == IB_PORT_DOWN)
			port->counters[SIMHW_LINK_DOWNED]++;
	} else if (!strcmp(w->at[2], "rate")) {
		u32 rate;

		if (kstrtou32(w->at[3], 10, &rate) || !simhw_rate_known(port->ethernet, rate) ||
		    rate > dev->model->max_rate_gbps)
			return refuse(w, "rate: not one that this port can have");
		WRITE_ONCE(port->rate_gbps, rate);
	} else {
		return refuse(w, "want state S, rate R or counter NAME VALUE");
	}
	mutex_lock(&simhw_port_lock);
	if (dev->ib && dev->ib->netdev)
		simhw_eth_carrier(dev->ib);
	simhw_port_changed(dev, before);
	mutex_unlock(&simhw_port_lock);
	return 0;
}

/* Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), catalogue. */
static const struct {
	unsigned int xid;
	const char *text;
} xids[] = {
	{ 13, "Graphics Exception: ESR 0x404490=0x80000001" },
	{ 31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ" },
	{ 48, "DBE (Double Bit Error) ECC Error" },
	{ 63, "Row Remapper: New row marked for remapping, reset gpu to activate." },
	{ 64, "Row Remapper: Failed to remap the row" },
	{ 74, "NVLink: fatal error detected on link 0" },
	{ 79, "GPU has fallen off the bus." },
	{ 94, "Contained: SM (0x1). RST: No, D-RST: No" },
	{ 95, "Uncontained: SM (0x1). RST: Yes, D-RST: No" },
	{ 119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!" },
	{ 120, "GSP task exception: load access page fault" },
};

/* xid N CODE [TEXT]: a line in the kernel log, as the NVIDIA driver writes it */
static int cmd_xid(struct words *w)
{
	struct simhw_dev *dev;
	const char *text = NULL;
	unsigned int code;
	int i;

	if (w->n < 3 || kstrtouint(w->at[2], 10, &code))
		return refuse(w, "want a GPU's number and an Xid");
	dev = find_dev_word(SIMHW_GPU, w->at[1]);
	if (!dev)
		return refuse(w, "no such device");
	for (i = 0; i < ARRAY_SIZE(xids); i++)
		if (xids[i].xid == code)
			text = xids[i].text;
	if (w->n > 3)
		text = w->rest[3];
	if (!text)
		return refuse(w, "want a text with this Xid");
	/* Source: open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/os.c, nvErrorLog. */
	pr_err("NVRM: Xid (PCI:%04x:%02x:00): %u, pid='<unknown>', name=<unknown>, %s\n",
	       SIMHW_DOMAIN, SIMHW_BUS_OF(dev->slot), code, text);
	return 0;
}

static int cmd_seed(struct words *w)
{
	int i;

	for (i = 0; i < SIMHW_MAX_DEVS; i++)
		if (simhw_devs[i])
			return refuse(w, "seed: want it before the first device");
	if (strscpy(simhw_seed, w->at[0] + strlen("seed="), sizeof(simhw_seed)) <= 0)
		return refuse(w, "seed: want 1 to 63 characters");
	return 0;
}

static int command(struct words *w)
{
	const char *verb = w->at[0];

	if (!strncmp(verb, "seed=", 5) && w->n == 1)
		return cmd_seed(w);
	if (!strcmp(verb, "gpu") || !strcmp(verb, "hca")) {
		enum simhw_kind kind = *verb == 'g' ? SIMHW_GPU : SIMHW_HCA;

		return w->n > 1 && strchr(w->at[1], '=') ? cmd_add(w, kind) : cmd_device(w, kind);
	}
	if (!strcmp(verb, "port"))
		return cmd_port(w);
	if (!strcmp(verb, "xid"))
		return cmd_xid(w);
	if (!strcmp(verb, "reset") && w->n == 1) {
		simhw_pci_remove_all();
		return 0;
	}
	return refuse(w, "unknown command");
}

static int run_line(char *line, int number)
{
	char whole[120];
	struct words w = {};
	char *copy, *p;
	int ret;

	line[strcspn(line, "#")] = 0;
	line = strim(line);
	if (!*line)
		return 0;
	strscpy(whole, line, sizeof(whole));
	copy = kstrdup(line, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	for (p = line; *p && w.n < MAX_WORDS;) {
		w.at[w.n] = p;
		w.rest[w.n] = copy + (p - line);
		w.n++;
		p += strcspn(p, " \t");
		if (!*p)
			break;
		*p++ = 0;
		p = skip_spaces(p);
	}
	ret = command(&w);
	if (ret)
		pr_err("simhw: line %d: '%s': %s (%d)\n", number, whole, w.why ?: "not done", ret);
	kfree(copy);
	return ret;
}

/* One command per line; those before a bad one have been done. */
static ssize_t control_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	char *text, *line, *next;
	int number = 0, ret = 0;

	if (len > MAX_TEXT)
		return -E2BIG;
	text = memdup_user_nul(buf, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	mutex_lock(&simhw_lock);
	for (next = text; !ret && (line = strsep(&next, "\n"));)
		ret = run_line(line, ++number);
	mutex_unlock(&simhw_lock);
	kfree(text);
	return ret ?: len;
}

static int control_open(struct inode *inode, struct file *file)
{
	return single_open(file, control_show, NULL);
}

static const struct proc_ops control_ops = {
	.proc_open = control_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = control_write,
};

int simhw_control_init(void)
{
	return proc_create("simhw", 0600, NULL, &control_ops) ? 0 : -ENOMEM;
}

void simhw_control_exit(void)
{
	remove_proc_entry("simhw", NULL);
}
