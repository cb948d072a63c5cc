// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The outside of NVIDIA's driver for GPUs that exist only in the simulated PCI bus: it binds them,
 * and has the device files and /proc entries that installers and container tools look at. There is
 * no GPU behind it.
 */
#include <linux/cdev.h>
#include <linux/dmi.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/siphash.h>
#include <linux/slab.h>

#include "nv.h"
#include "nvidia-exports.h"

DEFINE_MUTEX(nv_lock);
struct nv_gpu *nv_gpus[NVSIM_MAX_GPUS];
LIST_HEAD(nv_gpu_clients);
LIST_HEAD(nv_cap_clients);
int nv_kernel_clients;
struct proc_dir_entry *nv_proc;

static struct proc_dir_entry *nv_proc_gpus;
static struct class *nv_class;
static struct cdev nv_gpu_cdev, nv_ctl_cdev;

/* Parameters of the real module that people set; they change nothing here. */
static int NVreg_ModifyDeviceFiles = 1;
static int NVreg_DeviceFileUID;
static int NVreg_DeviceFileGID;
static int NVreg_DeviceFileMode = 0666;
static int NVreg_PreserveVideoMemoryAllocations = 1;
static int NVreg_RestrictProfilingToAdminUsers = 1;
static int NVreg_EnablePCIERelaxedOrderingMode;
static int NVreg_GrdmaPciTopoCheckOverride;
static int NVreg_EnableStreamMemOPs;
static int NVreg_NvLinkDisable;
static int NVreg_CreateImexChannel0;
static int NVreg_OpenRmEnableUnsupportedGpus = 1;
static char *NVreg_RegistryDwords = "";
static char *NVreg_CoherentGPUMemoryMode = "";
module_param(NVreg_ModifyDeviceFiles, int, 0444);
module_param(NVreg_DeviceFileUID, int, 0444);
module_param(NVreg_DeviceFileGID, int, 0444);
module_param(NVreg_DeviceFileMode, int, 0444);
module_param(NVreg_PreserveVideoMemoryAllocations, int, 0444);
module_param(NVreg_RestrictProfilingToAdminUsers, int, 0444);
module_param(NVreg_EnablePCIERelaxedOrderingMode, int, 0444);
module_param(NVreg_GrdmaPciTopoCheckOverride, int, 0444);
module_param(NVreg_EnableStreamMemOPs, int, 0444);
module_param(NVreg_NvLinkDisable, int, 0444);
module_param(NVreg_CreateImexChannel0, int, 0444);
module_param(NVreg_OpenRmEnableUnsupportedGpus, int, 0444);
module_param(NVreg_RegistryDwords, charp, 0444);
module_param(NVreg_CoherentGPUMemoryMode, charp, 0444);

/* Source: "The PCI ID Repository" (pci-ids.ucw.cz), vendor 10de; names as NVIDIA's "MIG User Guide"
 * and driver print them. */
static const struct nv_model {
	u16 device;
	const char *name;
	u32 flags;
} nv_models[] = {
	{ 0x1eb8, "Tesla T4", 0 },
	{ 0x20b0, "NVIDIA A100-SXM4-40GB", NVSIM_FLAG_MIG_CAPABLE | NVSIM_FLAG_MIG_RESET },
	{ 0x20b2, "NVIDIA A100-SXM4-80GB", NVSIM_FLAG_MIG_CAPABLE | NVSIM_FLAG_MIG_RESET },
	{ 0x2330, "NVIDIA H100 80GB HBM3", NVSIM_FLAG_MIG_CAPABLE },
	{ 0x2335, "NVIDIA H200", NVSIM_FLAG_MIG_CAPABLE },
};

static const struct nv_model *nv_model(u16 device)
{
	for (size_t i = 0; i < ARRAY_SIZE(nv_models); i++)
		if (nv_models[i].device == device)
			return &nv_models[i];
	return NULL;
}

/*
 * A board's UUID never changes and no two are the same: made from the PCI serial number where there
 * is one, else from the machine's UUID and the slot.
 */
static void nv_make_uuid(struct pci_dev *pdev, char *uuid, size_t size)
{
	static const siphash_key_t keys[2] = { { { 0x7261636b, 1 } }, { { 0x7269676874, 2 } } };
	const char *machine = dmi_get_system_info(DMI_PRODUCT_UUID);
	u64 serial = pci_get_dsn(pdev), hash[2];
	char seed[128];
	int length;

	if (serial)
		length = scnprintf(seed, sizeof(seed), "%016llx", serial);
	else
		length = scnprintf(seed, sizeof(seed), "%s/%s", machine ?: "", pci_name(pdev));
	hash[0] = siphash(seed, length, &keys[0]);
	hash[1] = siphash(seed, length, &keys[1]);
	scnprintf(uuid, size, "GPU-%08x-%04x-4%03x-a%03x-%012llx", (u32)(hash[0] >> 32),
		  (u32)(hash[0] >> 16) & 0xffff, (u32)hash[0] & 0xfff, (u32)(hash[1] >> 52),
		  hash[1] & 0xffffffffffffULL);
}

/* ---- who holds what ---- */

int nv_client_add(struct file *file, struct list_head *list, unsigned int minor)
{
	struct nv_client *client = kzalloc(sizeof(*client), GFP_KERNEL);

	if (!client)
		return -ENOMEM;
	client->tgid = task_tgid_nr(current);
	client->minor = minor;
	mutex_lock(&nv_lock);
	list_add_tail(&client->node, list);
	mutex_unlock(&nv_lock);
	file->private_data = client;
	return 0;
}

void nv_client_remove(struct file *file)
{
	struct nv_client *client = file->private_data;

	mutex_lock(&nv_lock);
	list_del(&client->node);
	mutex_unlock(&nv_lock);
	kfree(client);
}

/* nvidia-smi itself holds the GPU while it asks for a reset: what counts is everybody else. */
bool nv_gpu_has_other_clients(unsigned int minor)
{
	struct nv_client *client;

	lockdep_assert_held(&nv_lock);
	if (nv_kernel_clients)
		return true;
	list_for_each_entry(client, &nv_gpu_clients, node)
		if (client->minor == minor && client->tgid != task_tgid_nr(current))
			return true;
	return false;
}

/* A kernel module on top (nvidia-drm) keeps every GPU from being reset. Exported by nv-exports.c.
 */
void nvidia_sim_kernel_client(int change)
{
	mutex_lock(&nv_lock);
	nv_kernel_clients += change;
	mutex_unlock(&nv_lock);
}

/* ---- device files ---- */

static int nv_gpu_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	struct nv_gpu *gpu;

	mutex_lock(&nv_lock);
	gpu = minor < NVSIM_MAX_GPUS ? nv_gpus[minor] : NULL;
	if (gpu)
		nv_inforom_read(gpu);
	mutex_unlock(&nv_lock);
	return gpu ? nv_client_add(file, &nv_gpu_clients, minor) : -ENXIO;
}

static int nv_release(struct inode *inode, struct file *file)
{
	nv_client_remove(file);
	return 0;
}

static const struct file_operations nv_gpu_fops = {
	.owner = THIS_MODULE,
	.open = nv_gpu_open,
	.release = nv_release,
};

static int nv_ctl_open(struct inode *inode, struct file *file)
{
	static LIST_HEAD(unused); /* /dev/nvidiactl alone keeps no GPU busy */

	return nv_client_add(file, &unused, NV_MINOR_CTL);
}

static const struct file_operations nv_ctl_fops = {
	.owner = THIS_MODULE,
	.open = nv_ctl_open,
	.release = nv_release,
	.unlocked_ioctl = nv_ioctl,
};

static char *nv_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

/* ---- /proc/driver/nvidia ---- */

static int nv_version_show(struct seq_file *m, void *unused)
{
	seq_printf(
		m,
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\n",
		NV_VERSION_STRING);
	seq_printf(m, "GCC version:  gcc version %s\n", __VERSION__);
	return 0;
}

static int nv_params_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "ModifyDeviceFiles: %d\n", NVreg_ModifyDeviceFiles);
	seq_printf(m, "DeviceFileUID: %d\n", NVreg_DeviceFileUID);
	seq_printf(m, "DeviceFileGID: %d\n", NVreg_DeviceFileGID);
	seq_printf(m, "DeviceFileMode: %d\n", NVreg_DeviceFileMode);
	seq_printf(m, "PreserveVideoMemoryAllocations: %d\n", NVreg_PreserveVideoMemoryAllocations);
	seq_printf(m, "EnableStreamMemOPs: %d\n", NVreg_EnableStreamMemOPs);
	seq_printf(m, "EnablePCIERelaxedOrderingMode: %d\n", NVreg_EnablePCIERelaxedOrderingMode);
	seq_printf(m, "GrdmaPciTopoCheckOverride: %d\n", NVreg_GrdmaPciTopoCheckOverride);
	seq_printf(m, "RmProfilingAdminOnly: %d\n", NVreg_RestrictProfilingToAdminUsers);
	seq_printf(m, "NvLinkDisable: %d\n", NVreg_NvLinkDisable);
	seq_printf(m, "CreateImexChannel0: %d\n", NVreg_CreateImexChannel0);
	seq_printf(m, "OpenRmEnableUnsupportedGpus: %d\n", NVreg_OpenRmEnableUnsupportedGpus);
	seq_printf(m, "RegistryDwords: \"%s\"\n", NVreg_RegistryDwords);
	seq_printf(m, "CoherentGPUMemoryMode: \"%s\"\n", NVreg_CoherentGPUMemoryMode);
	return 0;
}

static int nv_information_show(struct seq_file *m, void *unused)
{
	struct nv_gpu *gpu = m->private;

	seq_printf(m, "Model: \t\t %s\n", gpu->state.name);
	seq_printf(m, "IRQ:   \t\t %u\n", gpu->pdev->irq);
	seq_printf(m, "GPU UUID: \t %s\n", gpu->state.uuid);
	seq_puts(m, "Video BIOS: \t simulated\n");
	seq_puts(m, "Bus Type: \t PCIe\n");
	seq_printf(m, "Bus Location: \t %s\n", pci_name(gpu->pdev));
	seq_printf(m, "Device Minor: \t %u\n", gpu->state.minor);
	seq_printf(m, "GPU Firmware: \t %s\n", NV_VERSION_STRING);
	seq_puts(m, "GPU Excluded:\t No\n");
	return 0;
}

/* ---- the PCI driver ---- */

static int nv_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	const struct nv_model *model = nv_model(pdev->device);
	struct nv_gpu *gpu;
	struct device *dev;
	unsigned int minor;

	gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	if (!gpu)
		return -ENOMEM;
	mutex_lock(&nv_lock);
	for (minor = 0; minor < NVSIM_MAX_GPUS && nv_gpus[minor]; minor++)
		;
	if (minor < NVSIM_MAX_GPUS)
		nv_gpus[minor] = gpu;
	mutex_unlock(&nv_lock);
	if (minor == NVSIM_MAX_GPUS) {
		kfree(gpu);
		return -ENOSPC;
	}

	gpu->pdev = pdev;
	gpu->state.minor = minor;
	gpu->state.flags = model ? model->flags : 0;
	gpu->state.pci_domain = pci_domain_nr(pdev->bus);
	gpu->state.pci_bus = pdev->bus->number;
	gpu->state.pci_device = PCI_SLOT(pdev->devfn);
	gpu->state.pci_id = (u32)pdev->device << 16 | pdev->vendor;
	gpu->state.pci_subsystem_id = (u32)pdev->subsystem_device << 16 | pdev->subsystem_vendor;
	gpu->state.numa_node = dev_to_node(&pdev->dev);
	if (model)
		strscpy(gpu->state.name, model->name, sizeof(gpu->state.name));
	else
		scnprintf(gpu->state.name, sizeof(gpu->state.name), "NVIDIA Graphics Device %04x",
			  pdev->device);
	nv_make_uuid(pdev, gpu->state.uuid, sizeof(gpu->state.uuid));
	pci_set_drvdata(pdev, gpu);

	gpu->proc = proc_mkdir(pci_name(pdev), nv_proc_gpus);
	if (gpu->proc)
		proc_create_single_data("information", 0444, gpu->proc, nv_information_show, gpu);
	dev = device_create(nv_class, &pdev->dev, MKDEV(NV_MAJOR, minor), NULL, "nvidia%u", minor);
	if (IS_ERR(dev) || !gpu->proc) {
		if (!IS_ERR(dev))
			device_destroy(nv_class, MKDEV(NV_MAJOR, minor));
		proc_remove(gpu->proc);
		mutex_lock(&nv_lock);
		nv_gpus[minor] = NULL;
		mutex_unlock(&nv_lock);
		kfree(gpu);
		return IS_ERR(dev) ? PTR_ERR(dev) : -ENOMEM;
	}
	return 0;
}

static void nv_remove(struct pci_dev *pdev)
{
	struct nv_gpu *gpu = pci_get_drvdata(pdev);
	unsigned int minor = gpu->state.minor;

	device_destroy(nv_class, MKDEV(NV_MAJOR, minor));
	proc_remove(gpu->proc);
	mutex_lock(&nv_lock);
	nv_mig_gone(gpu);
	nv_gpus[minor] = NULL;
	mutex_unlock(&nv_lock);
	kfree(gpu);
}

static const struct pci_device_id nv_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_VGA << 8,
	  .class_mask = ~0 },
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_3D << 8,
	  .class_mask = ~0 },
	{}
};
MODULE_DEVICE_TABLE(pci, nv_ids);

static struct pci_driver nv_driver = {
	.name = "nvidia",
	.id_table = nv_ids,
	.probe = nv_probe,
	.remove = nv_remove,
};

/* The real module refuses to load when it got no GPU, and says which driver has them. */
static int nv_count_gpus(void)
{
	struct pci_dev *pdev = NULL;
	int found = 0, bound = 0;

	for_each_pci_dev(pdev) {
		if (!pci_match_id(nv_ids, pdev))
			continue;
		found++;
		if (pdev->driver == &nv_driver)
			bound++;
		else if (pdev->driver)
			pr_err("NVRM: GPU %s is already bound to %s.\n", pci_name(pdev),
			       pdev->driver->name);
	}
	if (!found)
		pr_err("NVRM: No NVIDIA GPU found.\n");
	else if (bound < found)
		pr_err("NVRM: The NVIDIA probe routine was not called for %d device(s).\n",
		       found - bound);
	if (found && !bound)
		pr_err("NVRM: None of the NVIDIA devices were initialized.\n");
	return bound;
}

static int __init nv_add_cdev(struct cdev *cdev, const struct file_operations *fops,
			      unsigned int minor, unsigned int count, const char *name)
{
	int rc = register_chrdev_region(MKDEV(NV_MAJOR, minor), count, name);

	if (rc)
		return rc;
	cdev_init(cdev, fops);
	cdev->owner = THIS_MODULE;
	rc = cdev_add(cdev, MKDEV(NV_MAJOR, minor), count);
	if (rc)
		unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
	return rc;
}

static void nv_del_cdev(struct cdev *cdev, unsigned int minor, unsigned int count)
{
	cdev_del(cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, minor), count);
}

static int __init nv_init(void)
{
	int rc;

	/* Names per minor range as in /proc/devices of driver 550.40 and later. */
	rc = nv_add_cdev(&nv_gpu_cdev, &nv_gpu_fops, 0, NV_MINOR_MODESET, "nvidia");
	if (rc)
		return rc;
	rc = nv_add_cdev(&nv_ctl_cdev, &nv_ctl_fops, NV_MINOR_CTL, 1, "nvidiactl");
	if (rc)
		goto err_gpu_cdev;
	nv_class = class_create("nvidia");
	if (IS_ERR(nv_class)) {
		rc = PTR_ERR(nv_class);
		goto err_ctl_cdev;
	}
	nv_class->devnode = nv_devnode;
	rc = -ENOMEM;
	nv_proc = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc)
		goto err_class;
	nv_proc_gpus = proc_mkdir("gpus", nv_proc);
	if (!nv_proc_gpus || !proc_create_single("version", 0444, nv_proc, nv_version_show) ||
	    !proc_create_single("params", 0444, nv_proc, nv_params_show))
		goto err_proc;
	rc = nv_caps_init();
	if (rc)
		goto err_proc;
	if (IS_ERR(device_create(nv_class, NULL, MKDEV(NV_MAJOR, NV_MINOR_CTL), NULL,
				 "nvidiactl"))) {
		rc = -ENOMEM;
		goto err_caps;
	}
	rc = pci_register_driver(&nv_driver);
	if (rc)
		goto err_ctl;
	if (!nv_count_gpus()) {
		rc = -ENODEV;
		goto err_driver;
	}
	pr_info("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\n",
		NV_VERSION_STRING);
	return 0;

err_driver:
	pci_unregister_driver(&nv_driver);
err_ctl:
	device_destroy(nv_class, MKDEV(NV_MAJOR, NV_MINOR_CTL));
err_caps:
	nv_caps_exit();
err_proc:
	proc_remove(nv_proc);
err_class:
	class_destroy(nv_class);
err_ctl_cdev:
	nv_del_cdev(&nv_ctl_cdev, NV_MINOR_CTL, 1);
err_gpu_cdev:
	nv_del_cdev(&nv_gpu_cdev, 0, NV_MINOR_MODESET);
	return rc;
}

static void __exit nv_exit(void)
{
	pci_unregister_driver(&nv_driver);
	device_destroy(nv_class, MKDEV(NV_MAJOR, NV_MINOR_CTL));
	nv_caps_exit();
	proc_remove(nv_proc);
	class_destroy(nv_class);
	nv_del_cdev(&nv_ctl_cdev, NV_MINOR_CTL, 1);
	nv_del_cdev(&nv_gpu_cdev, 0, NV_MINOR_MODESET);
}

module_init(nv_init);
module_exit(nv_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Simulated NVIDIA GPU driver of the Rackwright lab: no GPU behind it");
MODULE_INFO(supported, "external");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_ALIAS_CHARDEV_MAJOR(NV_MAJOR);
