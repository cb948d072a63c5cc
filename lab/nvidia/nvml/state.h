/* SPDX-License-Identifier: Apache-2.0 */
/* The library's state, and what every function starts and ends with. */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stdbool.h>

#include "driver.h"
#include "models.h"
#include "nvml.h"

/* A GPU or, with mig set, a MIG device of it. Handles stay valid until the library is unloaded, as
 * callers expect. */
struct device {
	unsigned int minor;
	bool mig;
	unsigned int gi, ci;
	struct device *next;
};

struct gpu_instance {
	unsigned int minor, gi;
	struct gpu_instance *next;
};

struct compute_instance {
	unsigned int minor, gi, ci;
	struct compute_instance *next;
};

/* What a call works on: read from the driver when it starts. */
struct view {
	struct nvsim_gpu gpu;
	const struct model *model;
	const struct nvsim_gpu_instance *gi;
	const struct nvsim_compute_instance *ci;
	const struct gi_profile *profile; /* of gi */
};

/* Locks the library; not NVML_SUCCESS: not locked. Here a simulated hang hangs. */
nvmlReturn enter(void);
nvmlReturn leave(nvmlReturn rc);

unsigned int gpu_count(void);
nvmlDevice gpu_at(unsigned int index); /* in the order of PCI addresses; NULL: no such */
int gpu_index(unsigned int minor);

nvmlDevice mig_handle(unsigned int minor, unsigned int gi, unsigned int ci);
nvmlGpuInstance gi_handle(unsigned int minor, unsigned int gi);
nvmlComputeInstance ci_handle(unsigned int minor, unsigned int gi, unsigned int ci);

nvmlReturn view_device(nvmlDevice device, struct view *view);
nvmlReturn view_gi(nvmlGpuInstance gi, struct view *view);
nvmlReturn view_ci(nvmlComputeInstance ci, struct view *view);

nvmlReturn copy_text(char *out, unsigned int size, const char *text);
void mig_uuid(const struct nvsim_gpu *gpu, unsigned int gi, unsigned int ci, char out[48]);

/* Runs over the MIG devices that this process may use, in index order; stops when visit says so. */
bool visit_mig(const struct nvsim_gpu *gpu,
	       bool (*visit)(unsigned int index, unsigned int gi, unsigned int ci, void *arg),
	       void *arg);

#endif
