// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Makes nvidia-drm depend on nvidia-modeset. A file of its own: see nv-exports.c. */
#include <linux/export.h>

#include "nvidia-exports.h"

void nvidia_sim_modeset_user(int change)
{
	nvidia_sim_kernel_client(change);
}
EXPORT_SYMBOL(nvidia_sim_modeset_user);
