/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "state.h"

/* ---- finding devices ---- */

API nvmlReturn nvmlDeviceGetCount_v2(unsigned int *n)
{
	nvmlReturn rc = enter();

	if (rc)
		return rc;
	if (!n)
		return leave(NVML_INVALID_ARGUMENT);
	*n = gpu_count();
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice *device)
{
	nvmlReturn rc = enter();
	struct view v;

	if (rc)
		return rc;
	if (!device || !gpu_at(index))
		return leave(NVML_INVALID_ARGUMENT);
	rc = view_device(gpu_at(index), &v);
	if (!rc)
		*device = gpu_at(index);
	return leave(rc);
}

struct wanted_uuid {
	const struct nvsim_gpu *gpu;
	const char *uuid;
	nvmlDevice found;
};

static bool match_mig(unsigned int index, unsigned int gi, unsigned int ci, void *arg)
{
	struct wanted_uuid *wanted = arg;
	char uuid[48];

	(void)index;
	mig_uuid(wanted->gpu, gi, ci, uuid);
	if (strcasecmp(uuid, wanted->uuid))
		return false;
	wanted->found = mig_handle(wanted->gpu->minor, gi, ci);
	return true;
}

API nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *device)
{
	nvmlReturn rc = enter();
	struct view v;

	if (rc)
		return rc;
	if (!uuid || !device)
		return leave(NVML_INVALID_ARGUMENT);
	for (unsigned int i = 0; i < gpu_count(); i++) {
		struct wanted_uuid wanted = { .gpu = &v.gpu, .uuid = uuid };

		if (view_device(gpu_at(i), &v))
			continue;
		if (!strcasecmp(v.gpu.uuid, uuid))
			wanted.found = gpu_at(i);
		else
			visit_mig(&v.gpu, match_mig, &wanted);
		if (wanted.found) {
			*device = wanted.found;
			return leave(NVML_SUCCESS);
		}
	}
	return leave(NVML_NOT_FOUND);
}

API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice *device)
{
	unsigned int domain = 0, bus, slot;
	nvmlReturn rc = enter();
	struct view v;

	if (rc)
		return rc;
	if (!address || !device)
		return leave(NVML_INVALID_ARGUMENT);
	if (sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(address, "%x:%x", &bus, &slot) != 2)
			return leave(NVML_INVALID_ARGUMENT);
	}
	for (unsigned int i = 0; i < gpu_count(); i++) {
		rc = driver_get_gpu(gpu_at(i)->minor, &v.gpu);
		if (rc || v.gpu.pci_domain != domain || v.gpu.pci_bus != bus ||
		    v.gpu.pci_device != slot)
			continue;
		rc = view_device(gpu_at(i), &v);
		if (!rc)
			*device = gpu_at(i);
		return leave(rc);
	}
	return leave(NVML_NOT_FOUND);
}

API nvmlReturn nvmlDeviceGetCount(unsigned int *n)
{
	return nvmlDeviceGetCount_v2(n);
}

API nvmlReturn nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(address, device);
}

/* ---- what a device is ---- */

/* Starts a getter: v is filled and the library locked, or the error returned. */
#define GETTER(device, out)                          \
	struct view v;                               \
	nvmlReturn rc = enter();                     \
	if (rc)                                      \
		return rc;                           \
	if (!(out))                                  \
		return leave(NVML_INVALID_ARGUMENT); \
	rc = view_device(device, &v);                \
	if (rc)                                      \
	return leave(rc)

#define SET(out, value)                     \
	do {                                \
		*(out) = (value);           \
		return leave(NVML_SUCCESS); \
	} while (0)

API nvmlReturn nvmlDeviceGetName(nvmlDevice device, char *name, unsigned int length)
{
	char text[128];

	GETTER(device, name);
	if (v.ci)
		snprintf(text, sizeof(text), "%s MIG %s", v.gpu.name, v.profile->name);
	else
		snprintf(text, sizeof(text), "%s", v.gpu.name);
	return leave(copy_text(name, length, text));
}

API nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned int length)
{
	char text[48];

	GETTER(device, uuid);
	if (device->mig)
		mig_uuid(&v.gpu, device->gi, device->ci, text);
	else
		snprintf(text, sizeof(text), "%s", v.gpu.uuid);
	return leave(copy_text(uuid, length, text));
}

struct wanted_index {
	unsigned int gi, ci, index;
};

static bool match_instance(unsigned int index, unsigned int gi, unsigned int ci, void *arg)
{
	struct wanted_index *wanted = arg;

	wanted->index = index;
	return gi == wanted->gi && ci == wanted->ci;
}

API nvmlReturn nvmlDeviceGetIndex(nvmlDevice device, unsigned int *index)
{
	GETTER(device, index);
	if (device->mig) {
		struct wanted_index wanted = { .gi = device->gi, .ci = device->ci };

		if (!visit_mig(&v.gpu, match_instance, &wanted))
			return leave(NVML_NOT_FOUND);
		SET(index, wanted.index);
	}
	SET(index, (unsigned int)gpu_index(device->minor));
}

API nvmlReturn nvmlDeviceGetMinorNumber(nvmlDevice device, unsigned int *minor)
{
	GETTER(device, minor);
	if (device->mig)
		return leave(NVML_INVALID_ARGUMENT);
	SET(minor, device->minor);
}

API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice device, struct nvml_pci_info *pci)
{
	GETTER(device, pci);
	memset(pci, 0, sizeof(*pci));
	pci->domain = v.gpu.pci_domain;
	pci->bus = v.gpu.pci_bus;
	pci->device = v.gpu.pci_device;
	pci->pci_device_id = v.gpu.pci_id;
	pci->pci_subsystem_id = v.gpu.pci_subsystem_id;
	snprintf(pci->bus_id, sizeof(pci->bus_id), "%08X:%02X:%02X.0", pci->domain, pci->bus,
		 pci->device);
	snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "%04X:%02X:%02X.0",
		 pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetPciInfo_v2(nvmlDevice device, struct nvml_pci_info *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlReturn nvmlDeviceGetPciInfo(nvmlDevice device, struct nvml_pci_info *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlReturn nvmlDeviceGetPciInfoExt(nvmlDevice device, struct nvml_pci_info_ext *pci)
{
	struct nvml_pci_info info;
	nvmlReturn rc;

	if (!pci)
		return NVML_INVALID_ARGUMENT;
	rc = nvmlDeviceGetPciInfo_v3(device, &info);
	if (rc)
		return rc;
	pci->domain = info.domain;
	pci->bus = info.bus;
	pci->device = info.device;
	pci->pci_device_id = info.pci_device_id;
	pci->pci_subsystem_id = info.pci_subsystem_id;
	pci->base_class = 3;
	pci->sub_class = 2;
	memcpy(pci->bus_id, info.bus_id, sizeof(pci->bus_id));
	return NVML_SUCCESS;
}

static unsigned long long total_bytes(const struct view *v)
{
	return (v->ci ? v->profile->memory_mb : v->model->memory_mb) << 20;
}

API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, struct nvml_memory *memory)
{
	GETTER(device, memory);
	*memory = (struct nvml_memory){ .total = total_bytes(&v), .free = total_bytes(&v) };
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, struct nvml_memory_v2 *memory)
{
	GETTER(device, memory);
	if (memory->version >> 24 != 2)
		return leave(NVML_ARGUMENT_VERSION_MISMATCH);
	memory->total = memory->free = total_bytes(&v);
	memory->used = memory->reserved = 0;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetBAR1MemoryInfo(nvmlDevice device, struct nvml_bar1 *bar1)
{
	GETTER(device, bar1);
	*bar1 = (struct nvml_bar1){ .total = 64ull << 30, .free = 64ull << 30 };
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetArchitecture(nvmlDevice device, unsigned int *arch)
{
	GETTER(device, arch);
	SET(arch, v.model->arch);
}

API nvmlReturn nvmlDeviceGetBrand(nvmlDevice device, unsigned int *brand)
{
	GETTER(device, brand);
	SET(brand, BRAND_NVIDIA);
}

API nvmlReturn nvmlDeviceGetCudaComputeCapability(nvmlDevice device, int *major, int *minor)
{
	GETTER(device, major && minor);
	*major = v.model->compute_major;
	*minor = v.model->compute_minor;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetNumaNodeId(nvmlDevice device, unsigned int *node)
{
	GETTER(device, node);
	if (v.gpu.numa_node == ~0u)
		return leave(NVML_NOT_SUPPORTED);
	SET(node, v.gpu.numa_node);
}

API nvmlReturn nvmlDeviceGetPersistenceMode(nvmlDevice device, unsigned int *mode)
{
	GETTER(device, mode);
	SET(mode, v.gpu.persistence);
}

API nvmlReturn nvmlDeviceSetPersistenceMode(nvmlDevice device, unsigned int mode)
{
	GETTER(device, true);
	if (mode > 1 || device->mig)
		return leave(NVML_INVALID_ARGUMENT);
	return leave(driver_change(NVSIM_SET_PERSISTENCE,
				   &(struct nvsim_request){ .minor = device->minor, .value = mode },
				   NULL));
}

/* ---- PCI Express: as the simulated bus has it ---- */

static nvmlReturn pcie_link(nvmlDevice device, const char *attribute, unsigned int *value)
{
	/* GT/s by generation; the attribute reads "16.0 GT/s PCIe", "16" or "Unknown". */
	static const double speeds[] = { 2.5, 5, 8, 16, 32, 64 };
	char path[96];
	double number;
	FILE *file;
	int found;

	GETTER(device, value);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/%s", v.gpu.pci_domain,
		 v.gpu.pci_bus, v.gpu.pci_device, attribute);
	file = fopen(path, "re");
	if (!file)
		return leave(NVML_NOT_SUPPORTED);
	found = fscanf(file, "%lf", &number);
	fclose(file);
	if (found != 1)
		return leave(NVML_NOT_SUPPORTED);
	if (strstr(attribute, "width"))
		SET(value, (unsigned int)number);
	for (unsigned int i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i] == number)
			SET(value, i + 1);
	return leave(NVML_NOT_SUPPORTED);
}

API nvmlReturn nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice device, unsigned int *generation)
{
	return pcie_link(device, "current_link_speed", generation);
}

API nvmlReturn nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice device, unsigned int *generation)
{
	return pcie_link(device, "max_link_speed", generation);
}

API nvmlReturn nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice device, unsigned int *width)
{
	return pcie_link(device, "current_link_width", width);
}

API nvmlReturn nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice device, unsigned int *width)
{
	return pcie_link(device, "max_link_width", width);
}

/* Readings of an idle board. */
API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice device, unsigned int sensor,
					unsigned int *celsius)
{
	GETTER(device, celsius);
	(void)sensor;
	SET(celsius, 34);
}

API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned int *milliwatts)
{
	GETTER(device, milliwatts);
	SET(milliwatts, 72000);
}

API nvmlReturn nvmlDeviceGetEnforcedPowerLimit(nvmlDevice device, unsigned int *milliwatts)
{
	GETTER(device, milliwatts);
	SET(milliwatts, v.model->power_watts * 1000);
}

API nvmlReturn nvmlDeviceGetPerformanceState(nvmlDevice device, unsigned int *state)
{
	GETTER(device, state);
	SET(state, 0);
}

API nvmlReturn nvmlDeviceGetEccMode(nvmlDevice device, unsigned int *current, unsigned int *pending)
{
	GETTER(device, current && pending);
	*current = *pending = 1;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice device, struct nvml_utilization *rates)
{
	GETTER(device, rates);
	if (v.gpu.mig_current)
		return leave(NVML_NOT_SUPPORTED);
	rates->gpu = rates->memory = 0;
	return leave(NVML_SUCCESS);
}

API nvmlReturn nvmlDeviceGetComputeMode(nvmlDevice device, unsigned int *mode)
{
	GETTER(device, mode);
	SET(mode, 0);
}

API nvmlReturn nvmlDeviceGetDisplayActive(nvmlDevice device, unsigned int *active)
{
	GETTER(device, active);
	SET(active, 0);
}

API nvmlReturn nvmlDeviceGetVirtualizationMode(nvmlDevice device, unsigned int *mode)
{
	GETTER(device, mode);
	SET(mode, 0);
}

/* Nothing computes here, ever. */
static nvmlReturn no_processes(nvmlDevice device, unsigned int *n)
{
	GETTER(device, n);
	SET(n, 0);
}

API nvmlReturn nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned int *n,
						       void *processes)
{
	(void)processes;
	return no_processes(device, n);
}

API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice device, unsigned int *n,
							void *processes)
{
	(void)processes;
	return no_processes(device, n);
}

API nvmlReturn nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice device, unsigned int *n,
							  void *processes)
{
	(void)processes;
	return no_processes(device, n);
}

static nvmlReturn not_supported(nvmlDevice device)
{
	GETTER(device, true);
	return leave(NVML_NOT_SUPPORTED);
}

API nvmlReturn nvmlDeviceGetGpuFabricInfo(nvmlDevice device, void *info)
{
	(void)info;
	return not_supported(device);
}

API nvmlReturn nvmlDeviceGetGpuFabricInfoV(nvmlDevice device, void *info)
{
	(void)info;
	return not_supported(device);
}

API nvmlReturn nvmlDeviceGetAddressingMode(nvmlDevice device, void *mode)
{
	(void)mode;
	return not_supported(device);
}

API nvmlReturn nvmlDeviceGetNvLinkState(nvmlDevice device, unsigned int link, unsigned int *active)
{
	(void)link;
	(void)active;
	return not_supported(device);
}

API nvmlReturn nvmlDeviceGetTopologyCommonAncestor(nvmlDevice a, nvmlDevice b, unsigned int *level)
{
	struct view w;

	GETTER(a, level);
	rc = view_device(b, &w);
	if (rc)
		return leave(rc);
	if (a->minor == b->minor)
		SET(level, TOPOLOGY_INTERNAL);
	SET(level, v.gpu.numa_node == w.gpu.numa_node ? TOPOLOGY_NODE : TOPOLOGY_SYSTEM);
}
