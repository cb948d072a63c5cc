/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_PLACEMENT_H
#define SIM_PLACEMENT_H

#include "models.h"
#include "nvidia-sim.h"

/* Slices taken, one bit for each. */
unsigned int gi_occupied(const struct nvsim_gpu *gpu);
unsigned int ci_occupied(const struct nvsim_gpu_instance *gi);

/* Where the driver would put one more; -1: nowhere. */
int gi_place(const struct model *model, const struct nvsim_gpu *gpu,
	     const struct gi_profile *profile);
int ci_place(const struct nvsim_gpu_instance *gi, const struct gi_profile *profile,
	     unsigned int slices);

/* How many more there is room for. */
unsigned int gi_capacity(const struct nvsim_gpu *gpu, const struct gi_profile *profile);
unsigned int ci_capacity(const struct nvsim_gpu_instance *gi, const struct gi_profile *profile,
			 unsigned int slices);

/* The id an instance gets follows from its place. */
unsigned int gi_id(const struct gi_profile *profile, unsigned int start);

#endif
