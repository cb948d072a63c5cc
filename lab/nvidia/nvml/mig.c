/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "placement.h"
#include "state.h"

#define ENTER()                  \
	struct view v;           \
	nvmlReturn rc = enter(); \
	if (rc)                  \
	return rc

#define TRY(call)                         \
	do {                              \
		rc = (call);              \
		if (rc)                   \
			return leave(rc); \
	} while (0)

#define NEED(condition)                                      \
	do {                                                 \
		if (!(condition))                            \
			return leave(NVML_INVALID_ARGUMENT); \
	} while (0)

/* A GPU, not a MIG device of one, that can do MIG. */
static nvmlReturn view_mig_gpu(nvmlDevice device, struct view *v)
{
	nvmlReturn rc = view_device(device, v);

	if (rc)
		return rc;
	if (!(v->gpu.flags & NVSIM_FLAG_MIG_CAPABLE))
		return NVML_NOT_SUPPORTED;
	return device->mig ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* ---- mode ---- */

API nvmlReturn nvmlDeviceGetMigMode(nvmlDevice device, unsigned int *current, unsigned int *pending)
{
	ENTER();
	NEED(current && pending);
	TRY(view_mig_gpu(device, &v));
	*current = v.gpu.mig_current;
	*pending = v.gpu.mig_pending;
	return leave(NVML_SUCCESS);
}

/* Success with another status: the mode is pending, for the reason in the status. */
API nvmlReturn nvmlDeviceSetMigMode(nvmlDevice device, unsigned int mode, nvmlReturn *status)
{
	bool pending;

	ENTER();
	NEED(mode <= 1 && status);
	TRY(view_mig_gpu(device, &v));
	rc = driver_change(NVSIM_SET_MIG_MODE,
			   &(struct nvsim_request){ .minor = device->minor, .value = mode },
			   &pending);
	*status = rc ? rc : pending ? NVML_IN_USE : NVML_SUCCESS;
	return leave(rc);
}

/* ---- GPU instances ---- */

API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned int *n)
{
	ENTER();
	NEED(n);
	TRY(view_device(device, &v));
	*n = v.gpu.flags & NVSIM_FLAG_MIG_CAPABLE ? 7 : 0;
	return leave(NVML_SUCCESS);
}

static nvmlReturn view_profile(nvmlDevice device, unsigned int index, struct view *v)
{
	nvmlReturn rc;

	if (index >= GI_PROFILE_COUNT)
		return NVML_INVALID_ARGUMENT;
	rc = view_mig_gpu(device, v);
	if (rc)
		return rc;
	v->profile = profile_by_index(v->model, index);
	return v->profile ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

/* What the versions of the structure, and our own table, have under one name. */
#define COMMON_PROFILE(p)                                                                         \
	.id = (p).id, .slices = (p).slices, .instances = (p).instances,                           \
	.multiprocessors = (p).multiprocessors, .copy_engines = (p).copy_engines,                 \
	.decoders = (p).decoders, .encoders = (p).encoders, .jpegs = (p).jpegs, .ofas = (p).ofas, \
	.memory_mb = (p).memory_mb

static void fill_profile(const struct gi_profile *p, struct nvml_gi_profile *info)
{
	*info = (struct nvml_gi_profile){ COMMON_PROFILE(*p) };
}

API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice device, unsigned int index,
						   struct nvml_gi_profile *info)
{
	ENTER();
	NEED(info);
	TRY(view_profile(device, index, &v));
	fill_profile(v.profile, info);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice device, unsigned int index,
						    struct nvml_gi_profile_v2 *v2)
{
	struct nvml_gi_profile_v3 *v3 = (void *)v2;
	struct nvml_gi_profile p;

	ENTER();
	NEED(v2);
	TRY(view_profile(device, index, &v));
	fill_profile(v.profile, &p);
	switch (v2->version >> 24) {
	case 2:
		*v2 = (struct nvml_gi_profile_v2){ .version = v2->version, COMMON_PROFILE(p) };
		snprintf(v2->name, sizeof(v2->name), "MIG %s", v.profile->name);
		return leave(NVML_SUCCESS);
	case 3:
		*v3 = (struct nvml_gi_profile_v3){ .version = v3->version, COMMON_PROFILE(p) };
		snprintf(v3->name, sizeof(v3->name), "MIG %s", v.profile->name);
		return leave(NVML_SUCCESS);
	default: return leave(NVML_ARGUMENT_VERSION_MISMATCH);
	}
}

/* From here on GPU instance profiles go by id. */
static nvmlReturn view_profile_id(nvmlDevice device, unsigned int id, struct view *v)
{
	nvmlReturn rc = view_mig_gpu(device, v);

	if (rc)
		return rc;
	v->profile = profile_by_id(v->model, id);
	return v->profile ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

API nvmlReturn nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice device, unsigned int id,
							     struct nvml_placement *placements,
							     unsigned int *n)
{
	ENTER();
	NEED(n);
	TRY(view_profile_id(device, id, &v));
	for (unsigned int i = 0; placements && i < v.profile->start_count; i++)
		placements[i] = (struct nvml_placement){ v.profile->starts[i], v.profile->size };
	*n = v.profile->start_count;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice device, unsigned int id,
							  struct nvml_placement *placements,
							  unsigned int *n)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, n);
}

API nvmlReturn nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice device, unsigned int id,
							 unsigned int *n)
{
	ENTER();
	NEED(n);
	TRY(view_profile_id(device, id, &v));
	*n = v.gpu.mig_current ? gi_capacity(&v.gpu, v.profile) : 0;
	return leave(NVML_SUCCESS);
}

/* start < 0: wherever. */
static nvmlReturn create_gi(nvmlDevice device, unsigned int id, int start,
			    nvmlGpuInstance *instance)
{
	struct nvsim_request request;

	ENTER();
	NEED(instance);
	TRY(view_profile_id(device, id, &v));
	if (!v.gpu.mig_current)
		return leave(NVML_NOT_SUPPORTED);
	if (start < 0)
		start = gi_place(v.model, &v.gpu, v.profile);
	if (start < 0 || gi_capacity(&v.gpu, v.profile) == 0)
		return leave(NVML_INSUFFICIENT_RESOURCES);
	request = (struct nvsim_request){
		.minor = device->minor,
		.gi = gi_id(v.profile, (unsigned int)start),
		.profile = id,
		.start = (unsigned int)start,
		.size = v.profile->size,
	};
	TRY(driver_change(NVSIM_CREATE_GI, &request, NULL));
	*instance = gi_handle(device->minor, request.gi);
	return leave(*instance ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlDeviceCreateGpuInstance(nvmlDevice device, unsigned int id,
					   nvmlGpuInstance *instance)
{
	return create_gi(device, id, -1, instance);
}

static bool possible(const struct gi_profile *profile, const struct nvml_placement *placement)
{
	for (unsigned int i = 0; i < profile->start_count; i++)
		if (profile->starts[i] == placement->start && profile->size == placement->size)
			return true;
	return false;
}

API nvmlReturn nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice device, unsigned int id,
							const struct nvml_placement *placement,
							nvmlGpuInstance *instance)
{
	{
		ENTER();
		NEED(placement);
		TRY(view_profile_id(device, id, &v));
		NEED(possible(v.profile, placement));
		leave(NVML_SUCCESS);
	}
	return create_gi(device, id, (int)placement->start, instance);
}

API nvmlReturn nvmlGpuInstanceDestroy(nvmlGpuInstance instance)
{
	ENTER();
	TRY(view_gi(instance, &v));
	return leave(driver_change(
		NVSIM_DESTROY_GI,
		&(struct nvsim_request){ .minor = instance->minor, .gi = instance->gi }, NULL));
}

API nvmlReturn nvmlDeviceGetGpuInstances(nvmlDevice device, unsigned int id,
					 nvmlGpuInstance *instances, unsigned int *n)
{
	ENTER();
	NEED(instances && n);
	TRY(view_profile_id(device, id, &v));
	if (!v.gpu.mig_current)
		return leave(NVML_NOT_SUPPORTED);
	*n = 0;
	for (unsigned int gi = 0; gi < NVSIM_MAX_GPU_INSTANCES; gi++)
		if (v.gpu.gi[gi].used && v.gpu.gi[gi].profile == id)
			instances[(*n)++] = gi_handle(device->minor, gi);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetGpuInstanceById(nvmlDevice device, unsigned int gi,
					    nvmlGpuInstance *instance)
{
	ENTER();
	NEED(instance);
	TRY(view_mig_gpu(device, &v));
	if (gi >= NVSIM_MAX_GPU_INSTANCES || !v.gpu.gi[gi].used)
		return leave(NVML_NOT_FOUND);
	*instance = gi_handle(device->minor, gi);
	return leave(*instance ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlGpuInstanceGetInfo(nvmlGpuInstance instance, struct nvml_gi_info *info)
{
	ENTER();
	NEED(info);
	TRY(view_gi(instance, &v));
	*info = (struct nvml_gi_info){ gpu_at((unsigned int)gpu_index(instance->minor)),
				       instance->gi,
				       v.gi->profile,
				       { v.gi->start, v.gi->size } };
	return leave(NVML_SUCCESS);
}

/* ---- compute instances ---- */

static nvmlReturn view_ci_profile(nvmlGpuInstance instance, unsigned int index,
				  unsigned int engines, struct view *v, unsigned int *slices)
{
	nvmlReturn rc;

	if (index >= CI_PROFILE_COUNT || engines)
		return NVML_INVALID_ARGUMENT;
	rc = view_gi(instance, v);
	if (rc)
		return rc;
	*slices = ci_slices(v->profile, index);
	return *slices ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

static struct nvml_ci_profile ci_profile(const struct gi_profile *p, unsigned int index,
					 unsigned int slices)
{
	return (struct nvml_ci_profile){
		.id = index,
		.slices = slices,
		.instances = p->slices / slices,
		.multiprocessors = p->multiprocessors / p->slices * slices,
		.copy_engines = p->copy_engines,
		.decoders = p->decoders,
		.encoders = p->encoders,
		.jpegs = p->jpegs,
		.ofas = p->ofas,
	};
}

API nvmlReturn nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance instance,
							    unsigned int index,
							    unsigned int engines,
							    struct nvml_ci_profile *info)
{
	unsigned int slices;

	ENTER();
	NEED(info);
	TRY(view_ci_profile(instance, index, engines, &v, &slices));
	*info = ci_profile(v.profile, index, slices);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance instance,
							     unsigned int index,
							     unsigned int engines,
							     struct nvml_ci_profile_v2 *v2)
{
	unsigned int slices;

	ENTER();
	NEED(v2);
	TRY(view_ci_profile(instance, index, engines, &v, &slices));
	if (v2->version >> 24 != 2 && v2->version >> 24 != 3)
		return leave(NVML_ARGUMENT_VERSION_MISMATCH);
	v2->profile = ci_profile(v.profile, index, slices);
	if (slices == v.profile->slices)
		snprintf(v2->name, sizeof(v2->name), "MIG %s", v.profile->name);
	else
		snprintf(v2->name, sizeof(v2->name), "MIG %uc.%s", slices, v.profile->name);
	if (v2->version >> 24 == 3)
		((struct nvml_ci_profile_v3 *)(void *)v2)->capabilities = 0;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance instance,
								  unsigned int index,
								  unsigned int *n)
{
	unsigned int slices;

	ENTER();
	NEED(n);
	TRY(view_ci_profile(instance, index, 0, &v, &slices));
	*n = ci_capacity(v.gi, v.profile, slices);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
	nvmlGpuInstance instance, unsigned int index, struct nvml_placement *placements,
	unsigned int *n)
{
	unsigned int slices, found = 0;

	ENTER();
	NEED(n);
	TRY(view_ci_profile(instance, index, 0, &v, &slices));
	for (unsigned int start = 0; start + slices <= v.profile->slices; start += slices, found++)
		if (placements)
			placements[found] = (struct nvml_placement){ start, slices };
	*n = found;
	return leave(NVML_SUCCESS);
}

static nvmlReturn create_ci(nvmlGpuInstance instance, unsigned int index, int start,
			    nvmlComputeInstance *compute)
{
	struct nvsim_request request;
	unsigned int slices, ci = 0;

	ENTER();
	NEED(compute);
	TRY(view_ci_profile(instance, index, 0, &v, &slices));
	if (start < 0)
		start = ci_place(v.gi, v.profile, slices);
	while (ci < NVSIM_MAX_COMPUTE && v.gi->ci[ci].used)
		ci++;
	if (start < 0 || ci == NVSIM_MAX_COMPUTE)
		return leave(NVML_INSUFFICIENT_RESOURCES);
	request = (struct nvsim_request){
		.minor = instance->minor,
		.gi = instance->gi,
		.ci = ci,
		.profile = index,
		.start = (unsigned int)start,
		.size = slices,
	};
	TRY(driver_change(NVSIM_CREATE_CI, &request, NULL));
	*compute = ci_handle(instance->minor, instance->gi, ci);
	return leave(*compute ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance instance, unsigned int index,
						    nvmlComputeInstance *compute)
{
	return create_ci(instance, index, -1, compute);
}

API nvmlReturn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
	nvmlGpuInstance instance, unsigned int index, const struct nvml_placement *placement,
	nvmlComputeInstance *compute)
{
	return placement ? create_ci(instance, index, (int)placement->start, compute)
			 : NVML_INVALID_ARGUMENT;
}

API nvmlReturn nvmlComputeInstanceDestroy(nvmlComputeInstance compute)
{
	ENTER();
	TRY(view_ci(compute, &v));
	return leave(driver_change(NVSIM_DESTROY_CI,
				   &(struct nvsim_request){ .minor = compute->minor,
							    .gi = compute->gi,
							    .ci = compute->ci },
				   NULL));
}

API nvmlReturn nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance instance, unsigned int index,
						  nvmlComputeInstance *computes, unsigned int *n)
{
	ENTER();
	NEED(computes && n && index < CI_PROFILE_COUNT);
	TRY(view_gi(instance, &v));
	*n = 0;
	for (unsigned int ci = 0; ci < NVSIM_MAX_COMPUTE; ci++)
		if (v.gi->ci[ci].used && v.gi->ci[ci].profile == index)
			computes[(*n)++] = ci_handle(instance->minor, instance->gi, ci);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance instance, unsigned int ci,
						     nvmlComputeInstance *compute)
{
	ENTER();
	NEED(compute);
	TRY(view_gi(instance, &v));
	if (ci >= NVSIM_MAX_COMPUTE || !v.gi->ci[ci].used)
		return leave(NVML_NOT_FOUND);
	*compute = ci_handle(instance->minor, instance->gi, ci);
	return leave(*compute ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance compute, struct nvml_ci_info *info)
{
	ENTER();
	NEED(info);
	TRY(view_ci(compute, &v));
	*info = (struct nvml_ci_info){ gpu_at((unsigned int)gpu_index(compute->minor)),
				       gi_handle(compute->minor, compute->gi),
				       compute->ci,
				       v.ci->profile,
				       { v.ci->start, v.ci->size } };
	return leave(NVML_SUCCESS);
}

/* ---- MIG devices ---- */

API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned int *mig)
{
	ENTER();
	NEED(mig);
	TRY(view_device(device, &v));
	*mig = device->mig;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetGpuInstanceId(nvmlDevice device, unsigned int *id)
{
	ENTER();
	NEED(id);
	TRY(view_device(device, &v));
	if (!device->mig)
		return leave(NVML_NOT_FOUND);
	*id = device->gi;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetComputeInstanceId(nvmlDevice device, unsigned int *id)
{
	ENTER();
	NEED(id);
	TRY(view_device(device, &v));
	if (!device->mig)
		return leave(NVML_NOT_FOUND);
	*id = device->ci;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice device, nvmlDevice *parent)
{
	ENTER();
	NEED(parent);
	TRY(view_device(device, &v));
	NEED(device->mig);
	*parent = gpu_at((unsigned int)gpu_index(device->minor));
	return leave(NVML_SUCCESS);
}

struct wanted_mig {
	unsigned int index, minor;
	nvmlDevice found;
};

static bool match_index(unsigned int index, unsigned int gi, unsigned int ci, void *arg)
{
	struct wanted_mig *wanted = arg;

	if (index != wanted->index)
		return false;
	wanted->found = mig_handle(wanted->minor, gi, ci);
	return true;
}

API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned int index,
						   nvmlDevice *mig)
{
	struct wanted_mig wanted = { .index = index };

	ENTER();
	NEED(mig);
	TRY(view_mig_gpu(device, &v));
	wanted.minor = device->minor;
	if (!v.gpu.mig_current || !visit_mig(&v.gpu, match_index, &wanted))
		return leave(NVML_NOT_FOUND);
	*mig = wanted.found;
	return leave(*mig ? NVML_SUCCESS : NVML_MEMORY);
}

API nvmlReturn nvmlDeviceGetAttributes_v2(nvmlDevice device, struct nvml_attributes *attributes)
{
	ENTER();
	NEED(attributes);
	TRY(view_device(device, &v));
	if (!device->mig)
		return leave(NVML_NOT_SUPPORTED);
	*attributes = (struct nvml_attributes){
		.multiprocessors = v.profile->multiprocessors / v.profile->slices * v.ci->size,
		.copy_engines = v.profile->copy_engines,
		.decoders = v.profile->decoders,
		.encoders = v.profile->encoders,
		.jpegs = v.profile->jpegs,
		.ofas = v.profile->ofas,
		.gpu_slices = v.profile->slices,
		.compute_slices = v.ci->size,
		.memory_mb = v.profile->memory_mb,
	};
	return leave(NVML_SUCCESS);
}
