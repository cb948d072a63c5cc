// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The device files of NVIDIA's unified memory driver, without the driver. */
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/device.h>

#include "nv-version.h"
#include "nvidia-exports.h"

static dev_t uvm_dev;
static struct cdev uvm_cdev;
static struct class *uvm_class;

static const struct file_operations uvm_fops = { .owner = THIS_MODULE };

static char *uvm_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int __init uvm_init(void)
{
	int rc;

	if (strcmp(nvidia_sim_version(), NV_VERSION_STRING))
		return -EINVAL;
	rc = alloc_chrdev_region(&uvm_dev, 0, 2, "nvidia-uvm");
	if (rc)
		return rc;
	cdev_init(&uvm_cdev, &uvm_fops);
	rc = cdev_add(&uvm_cdev, uvm_dev, 2);
	if (rc)
		goto err_region;
	uvm_class = class_create("nvidia-uvm");
	if (IS_ERR(uvm_class)) {
		rc = PTR_ERR(uvm_class);
		goto err_cdev;
	}
	uvm_class->devnode = uvm_devnode;
	device_create(uvm_class, NULL, uvm_dev, NULL, "nvidia-uvm");
	device_create(uvm_class, NULL, uvm_dev + 1, NULL, "nvidia-uvm-tools");
	pr_info("nvidia-uvm: Loaded the UVM driver (simulated), major device number %d.\n",
		MAJOR(uvm_dev));
	return 0;

err_cdev:
	cdev_del(&uvm_cdev);
err_region:
	unregister_chrdev_region(uvm_dev, 2);
	return rc;
}

static void __exit uvm_exit(void)
{
	device_destroy(uvm_class, uvm_dev + 1);
	device_destroy(uvm_class, uvm_dev);
	class_destroy(uvm_class);
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_dev, 2);
}

module_init(uvm_init);
module_exit(uvm_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Simulated NVIDIA unified memory driver of the Rackwright lab");
MODULE_VERSION(NV_VERSION_STRING);
