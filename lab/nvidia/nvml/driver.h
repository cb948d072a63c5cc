/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include <stdbool.h>

#include "nvidia-sim.h"
#include "nvml.h"

/* Opens the loaded module, after checking that it has this library's version. */
nvmlReturn driver_open(void);
void driver_close(void);

nvmlReturn driver_get_gpu(unsigned int minor, struct nvsim_gpu *gpu);
/* 1 in *pending: the change waits for a reset. */
nvmlReturn driver_change(unsigned long what, const struct nvsim_request *request, bool *pending);

/* Keeps the GPU's device file open; -1 where this process (a container) may not have it. */
int driver_hold_gpu(unsigned int minor);
bool driver_may_use_cap(unsigned int cap);

/* The module's version, "" if there is none. */
const char *driver_version(void);

#endif
