/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv-version.h"
#include "state.h"

/* Faults for tests. While the first file exists every call waits; the second has an NVML error
 * number for nvmlInit. */
#define FAULT_HANG "/run/rackwright-sim/nvml-hangs"
#define FAULT_INIT "/run/rackwright-sim/nvml-init-error"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;

struct held_gpu {
	struct device device;
	unsigned int domain, bus, slot;
	int fd;
};

static struct held_gpu gpus[NVSIM_MAX_GPUS];
static unsigned int count;
static struct device *mig_handles;
static struct gpu_instance *gi_handles;
static struct compute_instance *ci_handles;

static void hang(void)
{
	while (!access(FAULT_HANG, F_OK))
		usleep(100000);
}

static nvmlReturn init_fault(void)
{
	FILE *file = fopen(FAULT_INIT, "re");
	int rc = 0;

	if (!file)
		return NVML_SUCCESS;
	if (fscanf(file, "%d", &rc) != 1)
		rc = NVML_UNKNOWN;
	fclose(file);
	return rc;
}

static int by_address(const void *a, const void *b)
{
	const struct held_gpu *x = a, *y = b;

	if (x->domain != y->domain)
		return x->domain < y->domain ? -1 : 1;
	if (x->bus != y->bus)
		return x->bus < y->bus ? -1 : 1;
	return x->slot < y->slot ? -1 : x->slot > y->slot;
}

/* GPUs whose device file cannot be opened are not this process's: that is how a container sees its
 * own only. */
static void find_gpus(void)
{
	struct nvsim_gpu gpu;

	count = 0;
	for (unsigned int minor = 0; minor < NVSIM_MAX_GPUS; minor++) {
		struct held_gpu *held = &gpus[count];

		if (driver_get_gpu(minor, &gpu))
			continue;
		held->fd = driver_hold_gpu(minor);
		if (held->fd < 0)
			continue;
		held->device = (struct device){ .minor = minor };
		held->domain = gpu.pci_domain;
		held->bus = gpu.pci_bus;
		held->slot = gpu.pci_device;
		count++;
	}
	qsort(gpus, count, sizeof(gpus[0]), by_address);
}

static nvmlReturn init(void)
{
	nvmlReturn rc = NVML_SUCCESS;

	hang();
	pthread_mutex_lock(&mutex);
	if (!users) {
		rc = init_fault();
		if (!rc)
			rc = driver_open();
		if (!rc)
			find_gpus();
	}
	if (!rc)
		users++;
	pthread_mutex_unlock(&mutex);
	return rc;
}

API nvmlReturn nvmlInit_v2(void)
{
	return init();
}

API nvmlReturn nvmlInit(void)
{
	return init();
}

API nvmlReturn nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return init();
}

API nvmlReturn nvmlShutdown(void)
{
	nvmlReturn rc = enter();

	if (rc)
		return rc;
	if (!--users) {
		for (unsigned int i = 0; i < count; i++)
			close(gpus[i].fd);
		count = 0;
		driver_close();
	}
	return leave(NVML_SUCCESS);
}

nvmlReturn enter(void)
{
	hang();
	pthread_mutex_lock(&mutex);
	if (users)
		return NVML_SUCCESS;
	pthread_mutex_unlock(&mutex);
	return NVML_UNINITIALIZED;
}

nvmlReturn leave(nvmlReturn rc)
{
	pthread_mutex_unlock(&mutex);
	return rc;
}

unsigned int gpu_count(void)
{
	return count;
}

nvmlDevice gpu_at(unsigned int index)
{
	return index < count ? &gpus[index].device : NULL;
}

int gpu_index(unsigned int minor)
{
	for (unsigned int i = 0; i < count; i++)
		if (gpus[i].device.minor == minor)
			return (int)i;
	return -1;
}

nvmlDevice mig_handle(unsigned int minor, unsigned int gi, unsigned int ci)
{
	struct device *d;

	for (d = mig_handles; d; d = d->next)
		if (d->minor == minor && d->gi == gi && d->ci == ci)
			return d;
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	*d = (struct device){
		.minor = minor, .mig = true, .gi = gi, .ci = ci, .next = mig_handles
	};
	return mig_handles = d;
}

nvmlGpuInstance gi_handle(unsigned int minor, unsigned int gi)
{
	struct gpu_instance *g;

	for (g = gi_handles; g; g = g->next)
		if (g->minor == minor && g->gi == gi)
			return g;
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	*g = (struct gpu_instance){ .minor = minor, .gi = gi, .next = gi_handles };
	return gi_handles = g;
}

nvmlComputeInstance ci_handle(unsigned int minor, unsigned int gi, unsigned int ci)
{
	struct compute_instance *c;

	for (c = ci_handles; c; c = c->next)
		if (c->minor == minor && c->gi == gi && c->ci == ci)
			return c;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	*c = (struct compute_instance){ .minor = minor, .gi = gi, .ci = ci, .next = ci_handles };
	return ci_handles = c;
}

static bool known_device(nvmlDevice device)
{
	for (unsigned int i = 0; i < count; i++)
		if (device == &gpus[i].device)
			return true;
	for (struct device *d = mig_handles; d; d = d->next)
		if (device == d)
			return true;
	return false;
}

static nvmlReturn view_gpu(unsigned int minor, struct view *view)
{
	nvmlReturn rc;

	memset(view, 0, sizeof(*view));
	rc = driver_get_gpu(minor, &view->gpu);
	if (rc)
		return rc == NVML_NOT_FOUND ? NVML_GPU_IS_LOST : rc;
	if (view->gpu.flags & NVSIM_FLAG_LOST)
		return NVML_GPU_IS_LOST;
	view->model = model_for(view->gpu.pci_id >> 16);
	return NVML_SUCCESS;
}

static nvmlReturn view_instance(unsigned int minor, unsigned int gi, struct view *view)
{
	nvmlReturn rc = view_gpu(minor, view);

	if (rc)
		return rc;
	if (!view->gpu.gi[gi].used)
		return NVML_NOT_FOUND;
	view->gi = &view->gpu.gi[gi];
	view->profile = profile_by_id(view->model, view->gi->profile);
	return view->profile ? NVML_SUCCESS : NVML_UNKNOWN;
}

static nvmlReturn view_compute(unsigned int minor, unsigned int gi, unsigned int ci,
			       struct view *view)
{
	nvmlReturn rc = view_instance(minor, gi, view);

	if (rc)
		return rc;
	if (!view->gi->ci[ci].used)
		return NVML_NOT_FOUND;
	view->ci = &view->gi->ci[ci];
	return NVML_SUCCESS;
}

nvmlReturn view_device(nvmlDevice device, struct view *view)
{
	if (!known_device(device))
		return NVML_INVALID_ARGUMENT;
	return device->mig ? view_compute(device->minor, device->gi, device->ci, view)
			   : view_gpu(device->minor, view);
}

nvmlReturn view_gi(nvmlGpuInstance gi, struct view *view)
{
	for (struct gpu_instance *g = gi_handles; g; g = g->next)
		if (g == gi)
			return view_instance(g->minor, g->gi, view);
	return NVML_INVALID_ARGUMENT;
}

nvmlReturn view_ci(nvmlComputeInstance ci, struct view *view)
{
	for (struct compute_instance *c = ci_handles; c; c = c->next)
		if (c == ci)
			return view_compute(c->minor, c->gi, c->ci, view);
	return NVML_INVALID_ARGUMENT;
}

nvmlReturn copy_text(char *out, unsigned int size, const char *text)
{
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

/* The same instance at the same place has the same UUID each time. FNV-1a, twice; any mixing would
 * do. */
void mig_uuid(const struct nvsim_gpu *gpu, unsigned int gi, unsigned int ci, char out[48])
{
	uint64_t a = 0xcbf29ce484222325, b;
	char seed[96];

	snprintf(seed, sizeof(seed), "%s/%u/%u", gpu->uuid, gi, ci);
	for (const char *p = seed; *p; p++)
		a = (a ^ (unsigned char)*p) * 0x100000001b3;
	b = (a ^ (a >> 31)) * 0x9e3779b97f4a7c15;
	snprintf(out, 48, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned int)(a >> 32),
		 (unsigned int)(a >> 16) & 0xffff, (unsigned int)a & 0xfff, (unsigned int)(b >> 52),
		 (unsigned long long)b & 0xffffffffffff);
}

bool visit_mig(const struct nvsim_gpu *gpu,
	       bool (*visit)(unsigned int, unsigned int, unsigned int, void *), void *arg)
{
	unsigned int index = 0;

	for (unsigned int gi = 0; gi < NVSIM_MAX_GPU_INSTANCES; gi++) {
		if (!gpu->gi[gi].used || !driver_may_use_cap(NVSIM_CAP_GI(gpu->minor, gi)))
			continue;
		for (unsigned int ci = 0; ci < NVSIM_MAX_COMPUTE; ci++) {
			if (!gpu->gi[gi].ci[ci].used ||
			    !driver_may_use_cap(NVSIM_CAP_CI(gpu->minor, gi, ci)))
				continue;
			if (visit(index++, gi, ci, arg))
				return true;
		}
	}
	return false;
}
