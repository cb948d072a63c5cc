// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * MIG capabilities: /proc/driver/nvidia/capabilities, /proc/driver/nvidia-caps/mig-minors,
 * /dev/nvidia-caps/nvidia-capN. Source: NVIDIA "Multi-Instance GPU User Guide", "Device Nodes and
 * Capabilities" (the /dev based nvidia-capabilities).
 */
#include <linux/cdev.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "nv.h"

/* The administrator configures, everybody monitors, and access is given by the device file alone.
 */
#define CAP_MODE_CONFIG 0400
#define CAP_MODE_OTHER	0444

static dev_t caps_dev;
static struct cdev caps_cdev;
static struct class *caps_class;
static struct proc_dir_entry *proc_caps, *proc_minors;
static struct proc_dir_entry *cap_entries[NVSIM_CAP_COUNT];

static int caps_open(struct inode *inode, struct file *file)
{
	unsigned int cap = iminor(inode);

	if (cap >= NVSIM_CAP_COUNT || !cap_entries[cap])
		return -ENODEV;
	return nv_client_add(file, &nv_cap_clients, cap);
}

static int caps_release(struct inode *inode, struct file *file)
{
	nv_client_remove(file);
	return 0;
}

static const struct file_operations caps_fops = {
	.owner = THIS_MODULE,
	.open = caps_open,
	.release = caps_release,
};

static umode_t cap_mode(unsigned int cap)
{
	return cap == NVSIM_CAP_CONFIG ? CAP_MODE_CONFIG : CAP_MODE_OTHER;
}

static char *caps_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = cap_mode(MINOR(dev->devt));
	return NULL;
}

static int cap_show(struct seq_file *m, void *unused)
{
	unsigned int cap = (uintptr_t)m->private;

	seq_printf(m, "DeviceFileMinor: %u\nDeviceFileMode: %u\nDeviceFileModify: 1\n", cap,
		   cap_mode(cap));
	return 0;
}

static int minors_show(struct seq_file *m, void *unused)
{
	unsigned int gpu, gi, ci;

	seq_printf(m, "config %d\nmonitor %d\n", NVSIM_CAP_CONFIG, NVSIM_CAP_MONITOR);
	for (gpu = 0; gpu < NVSIM_MAX_GPUS; gpu++) {
		for (gi = 0; gi < NVSIM_MAX_GPU_INSTANCES; gi++) {
			seq_printf(m, "gpu%u/gi%u/access %u\n", gpu, gi, NVSIM_CAP_GI(gpu, gi));
			for (ci = 0; ci < NVSIM_MAX_COMPUTE; ci++)
				seq_printf(m, "gpu%u/gi%u/ci%u/access %u\n", gpu, gi, ci,
					   NVSIM_CAP_CI(gpu, gi, ci));
		}
	}
	return 0;
}

/* The entry's folders come and go with it: an empty giN would say that the instance exists. */
static struct proc_dir_entry *cap_proc(unsigned int cap)
{
	unsigned int rest = cap - NVSIM_CAP_GI(0, 0), gi = rest / (NVSIM_MAX_COMPUTE + 1),
		     ci = rest % (NVSIM_MAX_COMPUTE + 1);
	unsigned int gpu = gi / NVSIM_MAX_GPU_INSTANCES;
	struct proc_dir_entry *dir;
	char path[48];

	gi %= NVSIM_MAX_GPU_INSTANCES;
	if (ci)
		scnprintf(path, sizeof(path), "gpu%u/mig/gi%u/ci%u", gpu, gi, ci - 1);
	else
		scnprintf(path, sizeof(path), "gpu%u/mig/gi%u", gpu, gi);
	dir = proc_mkdir(path, proc_caps);
	if (!dir)
		return NULL;
	if (!proc_create_single_data("access", 0444, dir, cap_show, (void *)(uintptr_t)cap)) {
		proc_remove(dir);
		return NULL;
	}
	return dir;
}

static int cap_publish(unsigned int cap, struct proc_dir_entry *entry)
{
	struct device *dev;

	if (!entry)
		return -ENOMEM;
	cap_entries[cap] = entry;
	dev = device_create(caps_class, NULL, MKDEV(MAJOR(caps_dev), cap), NULL,
			    "nvidia-caps!nvidia-cap%u", cap);
	if (IS_ERR(dev)) {
		cap_entries[cap] = NULL;
		proc_remove(entry);
		return PTR_ERR(dev);
	}
	return 0;
}

int nv_caps_add(unsigned int cap)
{
	return cap_publish(cap, cap_proc(cap));
}

void nv_caps_remove(unsigned int cap)
{
	if (!cap_entries[cap])
		return;
	device_destroy(caps_class, MKDEV(MAJOR(caps_dev), cap));
	proc_remove(cap_entries[cap]);
	cap_entries[cap] = NULL;
}

/* A workload holds the capability of its instance for as long as it runs. */
bool nv_caps_in_use(unsigned int cap)
{
	struct nv_client *client;

	lockdep_assert_held(&nv_lock);
	list_for_each_entry(client, &nv_cap_clients, node)
		if (client->minor == cap && client->tgid != task_tgid_nr(current))
			return true;
	return false;
}

int nv_caps_init(void)
{
	struct proc_dir_entry *mig;
	unsigned int gpu;
	char path[16];
	int rc;

	rc = alloc_chrdev_region(&caps_dev, 0, NVSIM_CAP_COUNT, "nvidia-caps");
	if (rc)
		return rc;
	cdev_init(&caps_cdev, &caps_fops);
	caps_cdev.owner = THIS_MODULE;
	rc = cdev_add(&caps_cdev, caps_dev, NVSIM_CAP_COUNT);
	if (rc)
		goto err_region;
	caps_class = class_create("nvidia-caps");
	if (IS_ERR(caps_class)) {
		rc = PTR_ERR(caps_class);
		goto err_cdev;
	}
	caps_class->devnode = caps_devnode;
	rc = -ENOMEM;
	proc_minors = proc_mkdir("driver/nvidia-caps", NULL);
	if (!proc_minors)
		goto err_class;
	if (!proc_create_single("mig-minors", 0444, proc_minors, minors_show))
		goto err_minors;
	proc_caps = proc_mkdir("capabilities", nv_proc);
	if (!proc_caps)
		goto err_minors;
	/* gpuN and gpuN/mig stay: proc_mkdir() makes one level at a time. */
	for (gpu = 0; gpu < NVSIM_MAX_GPUS; gpu++) {
		scnprintf(path, sizeof(path), "gpu%u", gpu);
		mig = proc_mkdir(path, proc_caps);
		if (!mig || !proc_mkdir("mig", mig))
			goto err_caps;
	}
	mig = proc_mkdir("mig", proc_caps);
	if (!mig)
		goto err_caps;
	rc = cap_publish(NVSIM_CAP_CONFIG,
			 proc_create_single_data("config", 0444, mig, cap_show,
						 (void *)(uintptr_t)NVSIM_CAP_CONFIG));
	if (!rc)
		rc = cap_publish(NVSIM_CAP_MONITOR,
				 proc_create_single_data("monitor", 0444, mig, cap_show,
							 (void *)(uintptr_t)NVSIM_CAP_MONITOR));
	if (!rc)
		return 0;
	nv_caps_remove(NVSIM_CAP_CONFIG);
err_caps:
	proc_remove(proc_caps);
err_minors:
	proc_remove(proc_minors);
err_class:
	class_destroy(caps_class);
err_cdev:
	cdev_del(&caps_cdev);
err_region:
	unregister_chrdev_region(caps_dev, NVSIM_CAP_COUNT);
	return rc;
}

void nv_caps_exit(void)
{
	nv_caps_remove(NVSIM_CAP_MONITOR);
	nv_caps_remove(NVSIM_CAP_CONFIG);
	proc_remove(proc_caps);
	proc_remove(proc_minors);
	class_destroy(caps_class);
	cdev_del(&caps_cdev);
	unregister_chrdev_region(caps_dev, NVSIM_CAP_COUNT);
}
