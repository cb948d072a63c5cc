// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What nvidia.ko exports, in a file of its own: for each file with an export the kernel's build
 * parses all of its headers a second time, which takes an emulated machine long.
 */
#include <linux/export.h>

#include "nv-version.h"
#include "nvidia-exports.h"

const char *nvidia_sim_version(void)
{
	return NV_VERSION_STRING;
}
EXPORT_SYMBOL(nvidia_sim_version);
EXPORT_SYMBOL(nvidia_sim_kernel_client);
