// SPDX-License-Identifier: GPL-2.0
/* The PCI side: a host bridge, a root port per device, and their configuration spaces. */
#include <linux/ioport.h>
#include <linux/nodemask.h>
#include <linux/rcupdate.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/unaligned.h>
#include "simhw.h"

#define CAP_EXP		0x60		/* where the PCI Express capability is, in all functions */
#define CAP_ACS		0x100		/* root ports only: the first extended capability */
#define ACS_CTRL_ALL	(PCI_ACS_SV | PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF)

#define WINDOW_SIZE	SZ_32G

/* The accessors run with interrupts off and on any CPU; commands change the same bytes. */
static DEFINE_RAW_SPINLOCK(cfg_lock);

static struct pci_sysdata root_sysdata = { .domain = SIMHW_DOMAIN, .node = NUMA_NO_NODE };
static struct resource bus_res = {
	.name = "simhw", .start = SIMHW_ROOT_BUS, .end = SIMHW_BUS_OF(SIMHW_MAX_DEVS - 1),
	.flags = IORESOURCE_BUS,
};
/* Addresses that nothing decodes: reads through a BAR find no registers. */
static struct resource mem_res = {
	.name = "simhw (simulated devices)", .flags = IORESOURCE_MEM | IORESOURCE_MEM_64 |
	IORESOURCE_PREFETCH,
};
static struct pci_bus *root_bus;

static void fn_u8(struct simhw_fn *fn, int where, u8 value, u8 mask)
{
	fn->cfg[where] = value;
	if (where < SIMHW_MASK_SIZE)
		fn->mask[where] = mask;
}

static void fn_u16(struct simhw_fn *fn, int where, u16 value, u16 mask)
{
	fn_u8(fn, where, value, mask);
	fn_u8(fn, where + 1, value >> 8, mask >> 8);
}

static void fn_u32(struct simhw_fn *fn, int where, u32 value, u32 mask)
{
	fn_u16(fn, where, value, mask);
	fn_u16(fn, where + 2, value >> 16, mask >> 16);
}

/* Capability of both ends of a link; @type is PCI_EXP_TYPE_*. */
static void fn_express(struct simhw_fn *fn, int type, int port, u8 speed, u8 width)
{
	u32 lnkcap = speed | width << 4 | port << 24;
	u16 flags = 2 | type << 4;

	if (type == PCI_EXP_TYPE_ROOT_PORT) {
		lnkcap |= PCI_EXP_LNKCAP_DLLLARC;
		flags |= PCI_EXP_FLAGS_SLOT;
	}
	fn_u8(fn, PCI_CAPABILITY_LIST, CAP_EXP, 0);
	fn_u16(fn, PCI_STATUS, PCI_STATUS_CAP_LIST, 0);
	fn_u8(fn, CAP_EXP, PCI_CAP_ID_EXP, 0);
	fn_u16(fn, CAP_EXP + PCI_EXP_FLAGS, flags, 0);
	fn_u32(fn, CAP_EXP + PCI_EXP_DEVCAP, 1 | PCI_EXP_DEVCAP_RBER, 0);
	fn_u16(fn, CAP_EXP + PCI_EXP_DEVCTL, 0x2810, 0x7fff);
	fn_u32(fn, CAP_EXP + PCI_EXP_LNKCAP, lnkcap, 0);
	/* Retrain Link reads as zero: a link is always trained at once. */
	fn_u16(fn, CAP_EXP + PCI_EXP_LNKCTL, 0, 0x0fff & ~PCI_EXP_LNKCTL_RL);
	fn_u32(fn, CAP_EXP + PCI_EXP_SLTCAP, (port + 1) << 19, 0);
	fn_u16(fn, CAP_EXP + PCI_EXP_DEVCTL2, 0, 0xffff);
	fn_u32(fn, CAP_EXP + PCI_EXP_LNKCAP2, GENMASK(speed, 1), 0);
	fn_u16(fn, CAP_EXP + PCI_EXP_LNKCTL2, speed, 0xffff);
}

static void fn_bars(struct simhw_fn *fn, const u8 *order)
{
	int i;

	for (i = 0; i < 6; i++) {
		u64 size_mask;

		if (!order[i])
			continue;
		size_mask = ~(BIT_ULL(order[i]) - 1);
		fn_u32(fn, PCI_BASE_ADDRESS_0 + 4 * i,
		       PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH,
		       lower_32_bits(size_mask));
		fn_u32(fn, PCI_BASE_ADDRESS_0 + 4 * i + 4, 0, upper_32_bits(size_mask));
	}
}

static u32 class_of(const struct simhw_dev *dev)
{
	if (dev->model->kind == SIMHW_GPU)
		return PCI_CLASS_DISPLAY_3D;
	return dev->port.ethernet ? PCI_CLASS_NETWORK_ETHERNET : 0x0207;
}

static void endpoint_fill(struct simhw_dev *dev)
{
	const struct simhw_model *m = dev->model;
	struct simhw_fn *fn = &dev->ep;

	memset(fn, 0, sizeof(*fn));
	fn_u16(fn, PCI_VENDOR_ID, m->vendor, 0);
	fn_u16(fn, PCI_DEVICE_ID, m->device, 0);
	fn_u16(fn, PCI_COMMAND, 0, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER |
	       PCI_COMMAND_INTX_DISABLE);
	fn_u32(fn, PCI_CLASS_REVISION, class_of(dev) << 16 | m->revision, 0);
	fn_u16(fn, PCI_SUBSYSTEM_VENDOR_ID, m->vendor, 0);
	fn_u16(fn, PCI_SUBSYSTEM_ID, m->subsystem, 0);
	fn_u8(fn, PCI_INTERRUPT_LINE, 0, 0xff);
	fn_bars(fn, m->bar_order);
	fn_express(fn, PCI_EXP_TYPE_ENDPOINT, 0, m->link_speed, m->link_width);
	if (m->kind == SIMHW_GPU)
		/* Says that the audio function is as it should be; else the kernel tries to enable it. */
		fn_u32(fn, 0x488, BIT(25), 0);
}

static void root_port_fill(struct simhw_dev *dev)
{
	struct simhw_fn *fn = &dev->rp;

	memset(fn, 0, sizeof(*fn));
	/* QEMU's "PCIe Root port": a virtual bridge that is known as one. */
	fn_u16(fn, PCI_VENDOR_ID, PCI_VENDOR_ID_REDHAT, 0);
	fn_u16(fn, PCI_DEVICE_ID, 0x000c, 0);
	fn_u16(fn, PCI_COMMAND, 0, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	fn_u32(fn, PCI_CLASS_REVISION, PCI_CLASS_BRIDGE_PCI_NORMAL << 8, 0);
	fn_u8(fn, PCI_HEADER_TYPE, PCI_HEADER_TYPE_BRIDGE, 0);
	fn_u8(fn, PCI_PRIMARY_BUS, SIMHW_ROOT_BUS, 0xff);
	fn_u8(fn, PCI_SECONDARY_BUS, SIMHW_BUS_OF(dev->slot), 0xff);
	fn_u8(fn, PCI_SUBORDINATE_BUS, SIMHW_BUS_OF(dev->slot), 0xff);
	/* Base above limit: nothing passes until the kernel says so. There is no room for ports. */
	fn_u8(fn, PCI_IO_BASE, 0xf0, 0);
	fn_u8(fn, PCI_IO_LIMIT, 0, 0);
	fn_u16(fn, PCI_MEMORY_BASE, 0xfff0, 0xfff0);
	fn_u16(fn, PCI_MEMORY_LIMIT, 0, 0xfff0);
	fn_u16(fn, PCI_PREF_MEMORY_BASE, 0xfff0 | PCI_PREF_RANGE_TYPE_64, 0xfff0);
	fn_u16(fn, PCI_PREF_MEMORY_LIMIT, PCI_PREF_RANGE_TYPE_64, 0xfff0);
	fn_u32(fn, PCI_PREF_BASE_UPPER32, 0, ~0u);
	fn_u32(fn, PCI_PREF_LIMIT_UPPER32, 0, ~0u);
	fn_u16(fn, PCI_BRIDGE_CONTROL, 0, 0x0fff);
	fn_express(fn, PCI_EXP_TYPE_ROOT_PORT, dev->slot, dev->model->link_speed,
		   dev->model->link_width);
	fn_u32(fn, CAP_ACS, PCI_EXT_CAP_ID_ACS | 1 << 16, 0);
	fn_u16(fn, CAP_ACS + PCI_ACS_CAP, ACS_CTRL_ALL, 0);
	fn_u16(fn, CAP_ACS + PCI_ACS_CTRL, 0, ACS_CTRL_ALL);
}

/* Both ends' Link Status, from the state of the device. */
static void link_fill(struct simhw_dev *dev)
{
	u16 up = dev->link_speed | dev->link_width << 4 | PCI_EXP_LNKSTA_SLC;

	fn_u16(&dev->ep, CAP_EXP + PCI_EXP_LNKSTA, up, 0);
	if (dev->condition == SIMHW_PRESENT) {
		fn_u16(&dev->rp, CAP_EXP + PCI_EXP_LNKSTA, up | PCI_EXP_LNKSTA_DLLLA, 0);
		fn_u16(&dev->rp, CAP_EXP + PCI_EXP_SLTSTA, PCI_EXP_SLTSTA_PDS, 0);
	} else {
		fn_u16(&dev->rp, CAP_EXP + PCI_EXP_LNKSTA, PCI_EXP_LNKSTA_SLC | 1 << 4 | 1, 0);
		fn_u16(&dev->rp, CAP_EXP + PCI_EXP_SLTSTA, 0, 0);
	}
}

/* With cfg_lock. NULL: nothing answers there. */
static struct simhw_fn *fn_at(unsigned int busnr, unsigned int devfn)
{
	int i;

	if (PCI_FUNC(devfn))
		return NULL;
	if (busnr == SIMHW_ROOT_BUS) {
		struct simhw_dev *dev;

		dev = PCI_SLOT(devfn) < SIMHW_MAX_DEVS ? simhw_devs[PCI_SLOT(devfn)] : NULL;
		return dev ? &dev->rp : NULL;
	}
	if (PCI_SLOT(devfn))
		return NULL;
	for (i = 0; i < SIMHW_MAX_DEVS; i++) {
		struct simhw_dev *dev = simhw_devs[i];

		if (dev && dev->rp.cfg[PCI_SECONDARY_BUS] == busnr)
			return dev->condition == SIMHW_PRESENT ? &dev->ep : NULL;
	}
	return NULL;
}

static int cfg_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *val)
{
	struct simhw_fn *fn;
	unsigned long flags;
	u32 v = ~0u;

	if (where + size > SIMHW_CFG_SIZE)
		return PCIBIOS_BAD_REGISTER_NUMBER;
	raw_spin_lock_irqsave(&cfg_lock, flags);
	fn = fn_at(bus->number, devfn);
	if (fn) {
		int i;

		v = 0;
		for (i = 0; i < size; i++)
			v |= (u32)fn->cfg[where + i] << (8 * i);
	}
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
	*val = v;
	return PCIBIOS_SUCCESSFUL;
}

static int cfg_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 val)
{
	struct simhw_fn *fn;
	unsigned long flags;
	int i;

	if (where + size > SIMHW_CFG_SIZE)
		return PCIBIOS_BAD_REGISTER_NUMBER;
	if (where + size > SIMHW_MASK_SIZE)
		return PCIBIOS_SUCCESSFUL;
	raw_spin_lock_irqsave(&cfg_lock, flags);
	fn = fn_at(bus->number, devfn);
	for (i = 0; fn && i < size; i++) {
		u8 mask = fn->mask[where + i];

		fn->cfg[where + i] = (fn->cfg[where + i] & ~mask) | ((val >> (8 * i)) & mask);
	}
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
	return PCIBIOS_SUCCESSFUL;
}

/* A bus behind a root port says which NUMA node its device belongs to. */
static int add_bus(struct pci_bus *bus)
{
	struct simhw_dev *dev;

	if (pci_is_root_bus(bus))
		return 0;
	dev = simhw_devs[PCI_SLOT(bus->self->devfn)];
	bus->sysdata = &dev->sysdata;
	set_dev_node(&bus->self->dev, dev->numa);
	return 0;
}

static struct pci_ops cfg_ops = { .add_bus = add_bus, .read = cfg_read, .write = cfg_write };

static void rescan(void)
{
	pci_lock_rescan_remove();
	pci_rescan_bus(root_bus);
	pci_unlock_rescan_remove();
}

/* The endpoint, with a reference, or NULL. */
struct pci_dev *simhw_pci_get(struct simhw_dev *dev)
{
	return pci_get_domain_bus_and_slot(SIMHW_DOMAIN, SIMHW_BUS_OF(dev->slot), 0);
}

struct simhw_dev *simhw_pci_to_dev(struct pci_dev *pdev)
{
	struct pci_dev *port = pci_upstream_bridge(pdev);

	if (!port || port->bus->ops != &cfg_ops)
		return NULL;
	return simhw_devs[PCI_SLOT(port->devfn)];
}

static int next_index(enum simhw_kind kind)
{
	int i, n = 0;

	for (i = 0; i < SIMHW_MAX_DEVS; i++)
		if (simhw_devs[i] && simhw_devs[i]->model->kind == kind)
			n++;
	return n;
}

/* @port: of an HCA, its identity not yet filled in. */
struct simhw_dev *simhw_pci_add(const struct simhw_model *model, int numa,
				const struct simhw_port *port)
{
	struct simhw_dev *dev;
	unsigned long flags;
	int slot;

	lockdep_assert_held(&simhw_lock);
	for (slot = 0; slot < SIMHW_MAX_DEVS && simhw_devs[slot]; slot++)
		;
	if (slot == SIMHW_MAX_DEVS)
		return ERR_PTR(-ENOSPC);
	/* The kernel would allocate on that node for the device, and fall over. */
	if (numa != NUMA_NO_NODE && (numa < 0 || numa >= MAX_NUMNODES || !node_online(numa)))
		return ERR_PTR(-ENODEV);
	dev = kvzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	dev->slot = slot;
	dev->index = next_index(model->kind);
	dev->numa = numa;
	dev->model = model;
	dev->link_speed = model->link_speed;
	dev->link_width = model->link_width;
	dev->sysdata.domain = SIMHW_DOMAIN;
	dev->sysdata.node = numa;
	if (port) {
		dev->port = *port;
		simhw_port_identity(&dev->port, slot);
	}
	endpoint_fill(dev);
	root_port_fill(dev);
	link_fill(dev);
	raw_spin_lock_irqsave(&cfg_lock, flags);
	simhw_devs[slot] = dev;
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
	rescan();
	return dev;
}

void simhw_pci_remove_all(void)
{
	unsigned long flags;
	int i;

	for (i = 0; i < SIMHW_MAX_DEVS; i++) {
		struct simhw_dev *dev = simhw_devs[i];
		struct pci_dev *port;

		if (!dev)
			continue;
		port = pci_get_domain_bus_and_slot(SIMHW_DOMAIN, SIMHW_ROOT_BUS,
						   PCI_DEVFN(dev->slot, 0));
		if (port) {
			pci_stop_and_remove_bus_device_locked(port);
			pci_dev_put(port);
		}
		raw_spin_lock_irqsave(&cfg_lock, flags);
		WRITE_ONCE(simhw_devs[i], NULL);
		raw_spin_unlock_irqrestore(&cfg_lock, flags);
		synchronize_rcu();	/* another port may just be looking for this one's LID */
		kvfree(dev);
	}
}

void simhw_pci_set_condition(struct simhw_dev *dev, enum simhw_condition condition)
{
	struct pci_dev *pdev;
	unsigned long flags;

	lockdep_assert_held(&simhw_lock);
	raw_spin_lock_irqsave(&cfg_lock, flags);
	dev->condition = condition;
	if (condition == SIMHW_PRESENT) {
		dev->link_speed = dev->model->link_speed;
		dev->link_width = dev->model->link_width;
	}
	link_fill(dev);
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
	if (condition == SIMHW_LOST)
		return;
	pdev = simhw_pci_get(dev);
	if (pdev) {
		/* On return, too: a device that was lost has forgotten its BARs and needs a new probe. */
		pci_stop_and_remove_bus_device_locked(pdev);
		pci_dev_put(pdev);
	}
	if (condition == SIMHW_PRESENT) {
		raw_spin_lock_irqsave(&cfg_lock, flags);
		endpoint_fill(dev);
		link_fill(dev);
		raw_spin_unlock_irqrestore(&cfg_lock, flags);
		rescan();
	}
}

void simhw_pci_set_link(struct simhw_dev *dev, u8 speed, u8 width)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&cfg_lock, flags);
	dev->link_speed = speed;
	dev->link_width = width;
	link_fill(dev);
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
}

void simhw_pci_set_acs(struct simhw_dev *dev, bool on)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&cfg_lock, flags);
	put_unaligned_le16(on ? ACS_CTRL_ALL : 0, dev->rp.cfg + CAP_ACS + PCI_ACS_CTRL);
	raw_spin_unlock_irqrestore(&cfg_lock, flags);
}

bool simhw_pci_acs(struct simhw_dev *dev)
{
	return get_unaligned_le16(dev->rp.cfg + CAP_ACS + PCI_ACS_CTRL) & PCI_ACS_RR;
}

int simhw_pci_init(void)
{
	struct pci_host_bridge *bridge;
	int ret;

	if (pci_find_bus(SIMHW_DOMAIN, SIMHW_ROOT_BUS)) {
		pr_err("simhw: PCI domain %04x is taken\n", SIMHW_DOMAIN);
		return -EBUSY;
	}
	ret = allocate_resource(&iomem_resource, &mem_res, WINDOW_SIZE, SZ_4G,
				iomem_resource.end, SZ_1G, NULL, NULL);
	if (ret) {
		pr_err("simhw: no free range of addresses above 4 GiB for the BARs\n");
		return ret;
	}
	bridge = pci_alloc_host_bridge(0);
	if (!bridge) {
		ret = -ENOMEM;
		goto err_res;
	}
	bridge->sysdata = &root_sysdata;
	bridge->ops = &cfg_ops;
	bridge->busnr = SIMHW_ROOT_BUS;
	/* The root ports have no interrupt, so no port services. */
	bridge->native_aer = 0;
	bridge->native_pcie_hotplug = 0;
	bridge->native_shpc_hotplug = 0;
	bridge->native_pme = 0;
	bridge->native_dpc = 0;
	pci_add_resource(&bridge->windows, &bus_res);
	pci_add_resource(&bridge->windows, &mem_res);
	ret = pci_scan_root_bus_bridge(bridge);
	if (ret) {
		pci_free_host_bridge(bridge);
		goto err_res;
	}
	root_bus = bridge->bus;
	pci_bus_add_devices(root_bus);
	return 0;

err_res:
	release_resource(&mem_res);
	return ret;
}

void simhw_pci_exit(void)
{
	mutex_lock(&simhw_lock);
	simhw_pci_remove_all();
	mutex_unlock(&simhw_lock);
	pci_lock_rescan_remove();
	pci_stop_root_bus(root_bus);
	pci_remove_root_bus(root_bus);
	pci_unlock_rescan_remove();
	release_resource(&mem_res);
}
