/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVML's documented interface that the simulated library has: layouts as callers know
 * them, declarations our own. Source: NVIDIA "NVML API Reference Guide" R580; smi/abi_test.go
 * checks the layouts.
 */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#define API __attribute__((visibility("default")))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_FUNCTION_NOT_FOUND = 13,
	NVML_GPU_IS_LOST = 15,
	NVML_VERSION_MISMATCH = 18,
	NVML_IN_USE = 19,
	NVML_MEMORY = 20,
	NVML_INSUFFICIENT_RESOURCES = 23,
	NVML_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_UNKNOWN = 999,
} nvmlReturn;

enum { ARCH_TURING = 6, ARCH_AMPERE = 7, ARCH_HOPPER = 9 };
enum { BRAND_NVIDIA = 14 };
enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40, TOPOLOGY_SYSTEM = 50 };
enum { EVENT_SINGLE_BIT_ECC = 1, EVENT_DOUBLE_BIT_ECC = 2, EVENT_XID = 8 };

/* Indexes of GPU and compute instance profiles; the id of a GPU instance profile is another number
 * (models.c). */
enum { GI_PROFILE_COUNT = 0x12, CI_PROFILE_COUNT = 0x9 };

typedef struct device *nvmlDevice;
typedef struct gpu_instance *nvmlGpuInstance;
typedef struct compute_instance *nvmlComputeInstance;
typedef struct event_set *nvmlEventSet;

struct nvml_pci_info {
	char bus_id_legacy[16];
	unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

struct nvml_pci_info_ext {
	unsigned int version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class,
		sub_class;
	char bus_id[32];
};

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct nvml_bar1 {
	unsigned long long total, free, used;
};

struct nvml_utilization {
	unsigned int gpu, memory;
};

struct nvml_attributes {
	unsigned int multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices,
		compute_slices;
	unsigned long long memory_mb;
};

struct nvml_event {
	nvmlDevice device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct nvml_gi_profile {
	unsigned int id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders,
		jpegs, ofas;
	unsigned long long memory_mb;
};

struct nvml_gi_profile_v2 {
	unsigned int version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders,
		encoders, jpegs, ofas;
	unsigned long long memory_mb;
	char name[96];
};

struct nvml_gi_profile_v3 {
	unsigned int version, id, slices, instances, multiprocessors, copy_engines, decoders,
		encoders, jpegs, ofas;
	unsigned long long memory_mb;
	char name[96];
	unsigned int capabilities;
};

struct nvml_placement {
	unsigned int start, size;
};

struct nvml_gi_info {
	nvmlDevice device;
	unsigned int id, profile;
	struct nvml_placement placement;
};

struct nvml_ci_profile {
	unsigned int id, slices, instances, multiprocessors, copy_engines, decoders, encoders,
		jpegs, ofas;
};

struct nvml_ci_profile_v2 {
	unsigned int version;
	struct nvml_ci_profile profile;
	char name[96];
};

struct nvml_ci_profile_v3 {
	struct nvml_ci_profile_v2 v2;
	unsigned int capabilities;
};

struct nvml_ci_info {
	nvmlDevice device;
	nvmlGpuInstance gpu_instance;
	unsigned int id, profile;
	struct nvml_placement placement;
};

#endif
