/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where instances go. The rule, "where it spoils the fewest places that are still free, lowest
 * first", is ours; it gives what NVIDIA's "MIG User Guide" shows in "Creating GPU Instances":
 * 9,19,14,19 fits and gets the ids 2, 7, 4, 8; 19,19,14,9 does not, after 13, 11, 3; 19,14,5 gets
 * 13, 5, 1; seven of 19 get 13, 11, 12, 7, 8, 9, 10.
 */
#include "placement.h"

static unsigned int mask(unsigned int start, unsigned int size)
{
	return ((1u << size) - 1) << start;
}

unsigned int gi_occupied(const struct nvsim_gpu *gpu)
{
	unsigned int occupied = 0;

	for (int i = 0; i < NVSIM_MAX_GPU_INSTANCES; i++)
		if (gpu->gi[i].used)
			occupied |= mask(gpu->gi[i].start, gpu->gi[i].size);
	return occupied;
}

unsigned int ci_occupied(const struct nvsim_gpu_instance *gi)
{
	unsigned int occupied = 0;

	for (int i = 0; i < NVSIM_MAX_COMPUTE; i++)
		if (gi->ci[i].used)
			occupied |= mask(gi->ci[i].start, gi->ci[i].size);
	return occupied;
}

static unsigned int gi_count(const struct nvsim_gpu *gpu, const struct gi_profile *profile)
{
	unsigned int n = 0;

	for (int i = 0; i < NVSIM_MAX_GPU_INSTANCES; i++)
		n += gpu->gi[i].used && gpu->gi[i].profile == profile->id;
	return n;
}

static unsigned int places_left(const struct model *model, unsigned int occupied)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < model->profile_count; i++) {
		const struct gi_profile *p = &model->profiles[i];

		for (unsigned int k = 0; k < p->start_count; k++)
			n += !(occupied & mask(p->starts[k], p->size));
	}
	return n;
}

int gi_place(const struct model *model, const struct nvsim_gpu *gpu,
	     const struct gi_profile *profile)
{
	unsigned int occupied = gi_occupied(gpu), best_left = 0;
	int best = -1;

	if (gi_count(gpu, profile) >= profile->instances)
		return -1;
	for (unsigned int k = 0; k < profile->start_count; k++) {
		unsigned int taken = mask(profile->starts[k], profile->size), left;

		if (occupied & taken)
			continue;
		left = places_left(model, occupied | taken);
		if (best < 0 || left > best_left) {
			best = (int)profile->starts[k];
			best_left = left;
		}
	}
	return best;
}

unsigned int gi_capacity(const struct nvsim_gpu *gpu, const struct gi_profile *profile)
{
	unsigned int occupied = gi_occupied(gpu), n = 0,
		     more = profile->instances - gi_count(gpu, profile);

	for (unsigned int k = 0; k < profile->start_count && n < more; k++) {
		unsigned int taken = mask(profile->starts[k], profile->size);

		if (occupied & taken)
			continue;
		occupied |= taken;
		n++;
	}
	return n;
}

unsigned int gi_id(const struct gi_profile *profile, unsigned int start)
{
	switch (profile->size) {
	case 8: return 0;
	case 4: return 1 + start / 4;
	case 2: return 3 + start / 2;
	default: return 7 + start;
	}
}

int ci_place(const struct nvsim_gpu_instance *gi, const struct gi_profile *profile,
	     unsigned int slices)
{
	unsigned int occupied = ci_occupied(gi);

	for (unsigned int start = 0; start + slices <= profile->slices; start++)
		if (!(occupied & mask(start, slices)))
			return (int)start;
	return -1;
}

unsigned int ci_capacity(const struct nvsim_gpu_instance *gi, const struct gi_profile *profile,
			 unsigned int slices)
{
	unsigned int occupied = ci_occupied(gi), n = 0;

	for (unsigned int start = 0; start + slices <= profile->slices; start++) {
		if (occupied & mask(start, slices))
			continue;
		occupied |= mask(start, slices);
		n++;
	}
	return n;
}
