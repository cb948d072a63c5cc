// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Of NVIDIA's DRM driver only what gets in the way on a headless server: while it is loaded no GPU
 * can be reset, and no process shows up as the one to blame. Source: github.com/NVIDIA/mig-parted
 * issue 181.
 */
#include <linux/module.h>

#include "nv-version.h"
#include "nvidia-exports.h"

static int modeset;
module_param(modeset, int, 0444);

static int __init drm_init(void)
{
	nvidia_sim_modeset_user(1);
	return 0;
}

static void __exit drm_exit(void)
{
	nvidia_sim_modeset_user(-1);
}

module_init(drm_init);
module_exit(drm_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION(
	"Simulated NVIDIA DRM driver of the Rackwright lab: holds the GPUs, shows nothing");
MODULE_VERSION(NV_VERSION_STRING);
