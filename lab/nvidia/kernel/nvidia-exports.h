/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef NVIDIA_EXPORTS_H
#define NVIDIA_EXPORTS_H

/* What nvidia.ko exports to its siblings. It also makes them depend on it, as the real ones do. */
const char *nvidia_sim_version(void);
void nvidia_sim_kernel_client(int change);

/* What nvidia-modeset.ko exports to nvidia-drm.ko. */
void nvidia_sim_modeset_user(int change);

#endif
