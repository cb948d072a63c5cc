// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The device file of NVIDIA's mode-setting driver, without the driver. */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>

#include "nv-version.h"
#include "nvidia-exports.h"

#define MODESET_DEV MKDEV(195, 254)

static struct cdev modeset_cdev;
static struct class *modeset_class;

static const struct file_operations modeset_fops = { .owner = THIS_MODULE };

static char *modeset_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int __init modeset_init(void)
{
	int rc;

	if (strcmp(nvidia_sim_version(), NV_VERSION_STRING))
		return -EINVAL;
	rc = register_chrdev_region(MODESET_DEV, 1, "nvidia-modeset");
	if (rc)
		return rc;
	cdev_init(&modeset_cdev, &modeset_fops);
	rc = cdev_add(&modeset_cdev, MODESET_DEV, 1);
	if (rc)
		goto err_region;
	modeset_class = class_create("nvidia-modeset");
	if (IS_ERR(modeset_class)) {
		rc = PTR_ERR(modeset_class);
		goto err_cdev;
	}
	modeset_class->devnode = modeset_devnode;
	device_create(modeset_class, NULL, MODESET_DEV, NULL, "nvidia-modeset");
	pr_info("nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  %s  Release Build  (simulated)\n",
		NV_VERSION_STRING);
	return 0;

err_cdev:
	cdev_del(&modeset_cdev);
err_region:
	unregister_chrdev_region(MODESET_DEV, 1);
	return rc;
}

static void __exit modeset_exit(void)
{
	device_destroy(modeset_class, MODESET_DEV);
	class_destroy(modeset_class);
	cdev_del(&modeset_cdev);
	unregister_chrdev_region(MODESET_DEV, 1);
}

module_init(modeset_init);
module_exit(modeset_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Simulated NVIDIA mode-setting driver of the Rackwright lab");
MODULE_VERSION(NV_VERSION_STRING);
