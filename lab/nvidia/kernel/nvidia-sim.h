/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the simulated libnvidia-ml.so.1 asks of the simulated nvidia.ko. The two are built from this
 * one header and check each other's version first, as the real ones do. It has nothing in common
 * with NVIDIA's own interface.
 */
#ifndef NVIDIA_SIM_H
#define NVIDIA_SIM_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NVSIM_MAX_GPUS		32
#define NVSIM_MAX_GPU_INSTANCES 15 /* ids 0..14: what mig-minors has room for */
#define NVSIM_MAX_COMPUTE	8

/* Source: the mig-minors file of a real driver: 1 config, 2 monitor, then 9 minors (the GPU
 * instance, 8 compute instances) for each of 15 GPU instances of each GPU.
 */
#define NVSIM_CAP_CONFIG  1
#define NVSIM_CAP_MONITOR 2
#define NVSIM_CAP_GI(gpu, gi) \
	(3 + ((gpu) * NVSIM_MAX_GPU_INSTANCES + (gi)) * (NVSIM_MAX_COMPUTE + 1))
#define NVSIM_CAP_CI(gpu, gi, ci) (NVSIM_CAP_GI(gpu, gi) + 1 + (ci))
#define NVSIM_CAP_COUNT		  NVSIM_CAP_GI(NVSIM_MAX_GPUS, 0)

#define NVSIM_FLAG_MIG_CAPABLE (1u << 0)
/* A mode change takes a GPU reset, and the mode survives a reboot. */
#define NVSIM_FLAG_MIG_RESET   (1u << 1)
/* The PCI device is gone. */
#define NVSIM_FLAG_LOST	       (1u << 2)

struct nvsim_compute_instance {
	__u8 used;
	__u8 profile;
	__u8 start;
	__u8 size;
};

struct nvsim_gpu_instance {
	__u8 used;
	__u8 profile;
	__u8 start;
	__u8 size;
	struct nvsim_compute_instance ci[NVSIM_MAX_COMPUTE];
};

struct nvsim_gpu {
	__u32 minor; /* in: which */
	__u32 flags;
	__u32 pci_domain;
	__u32 pci_bus;
	__u32 pci_device;
	__u32 pci_id; /* device << 16 | vendor, as NVML has it */
	__u32 pci_subsystem_id;
	__u32 mig_current;
	__u32 mig_pending;
	__u32 persistence;
	__u32 other_clients; /* processes other than the asking one that hold the GPU */
	__u32 numa_node;     /* ~0: none */
	char name[64];
	char uuid[48];
	struct nvsim_gpu_instance gi[NVSIM_MAX_GPU_INSTANCES];
};

struct nvsim_request {
	__u32 minor;
	__u32 gi;
	__u32 ci;
	__u32 profile;
	__u32 start;
	__u32 size;
	__u32 value;
};

struct nvsim_version {
	char client[32]; /* in */
	char module[32]; /* out */
};

/* -ENOENT: no such GPU; -EBUSY: in use; -ENOSPC: no room; -EPERM: not root; -ENODEV: the GPU is
 * lost; -EOPNOTSUPP: no MIG. */
#define NVSIM_CHECK_VERSION _IOWR('N', 0x80, struct nvsim_version) /* -EPROTO: they differ */
#define NVSIM_GET_GPU	    _IOWR('N', 0x81, struct nvsim_gpu)
#define NVSIM_SET_MIG_MODE \
	_IOW('N', 0x82, struct nvsim_request) /* value: mode; 1: pending until a reset */
#define NVSIM_CREATE_GI	      _IOW('N', 0x83, struct nvsim_request)
#define NVSIM_DESTROY_GI      _IOW('N', 0x84, struct nvsim_request)
#define NVSIM_CREATE_CI	      _IOW('N', 0x85, struct nvsim_request)
#define NVSIM_DESTROY_CI      _IOW('N', 0x86, struct nvsim_request)
#define NVSIM_SET_PERSISTENCE _IOW('N', 0x87, struct nvsim_request) /* value: 0, 1 */
#define NVSIM_RESET	      _IOW('N', 0x88, struct nvsim_request)

#endif
