/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 of a machine without GPUs: there to be found, mounted and asked for its version. It
 * runs nothing. Source: NVIDIA "CUDA Driver API", "Initialization", "Version Management", "Device
 * Management".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nv-version.h"

#define API __attribute__((visibility("default")))

enum {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101
};

static int count = -1;

/* The GPUs whose device file this process has. */
static int find(void)
{
	char path[32];
	int n = 0;

	for (int minor = 0; minor < 32; minor++) {
		snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
		n += !access(path, R_OK | W_OK);
	}
	return n;
}

API int cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_INVALID_VALUE;
	count = access("/dev/nvidiactl", R_OK | W_OK) ? 0 : find();
	return count ? CUDA_SUCCESS : CUDA_NO_DEVICE;
}

/* Source: CUDA Toolkit release notes: R580 came with CUDA 13.0, R595 with 13.2. */
API int cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_INVALID_VALUE;
	*version = atoi(NV_VERSION_STRING) >= 595 ? 13020 : 13000;
	return CUDA_SUCCESS;
}

API int cuDeviceGetCount(int *n)
{
	if (count < 0)
		return CUDA_NOT_INITIALIZED;
	if (!n)
		return CUDA_INVALID_VALUE;
	*n = count;
	return CUDA_SUCCESS;
}

API int cuDeviceGet(int *device, int ordinal)
{
	if (count < 0)
		return CUDA_NOT_INITIALIZED;
	if (!device)
		return CUDA_INVALID_VALUE;
	if (ordinal < 0 || ordinal >= count)
		return CUDA_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

API int cuDeviceGetName(char *name, int length, int device)
{
	if (count < 0)
		return CUDA_NOT_INITIALIZED;
	if (!name || length < 1)
		return CUDA_INVALID_VALUE;
	if (device < 0 || device >= count)
		return CUDA_INVALID_DEVICE;
	snprintf(name, (size_t)length, "NVIDIA GPU (simulated)");
	return CUDA_SUCCESS;
}

API int cuGetErrorString(int error, const char **text)
{
	if (!text)
		return CUDA_INVALID_VALUE;
	switch (error) {
	case CUDA_SUCCESS: *text = "no error"; break;
	case CUDA_INVALID_VALUE: *text = "invalid argument"; break;
	case CUDA_NOT_INITIALIZED: *text = "initialization error"; break;
	case CUDA_NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
	case CUDA_INVALID_DEVICE: *text = "invalid device ordinal"; break;
	default: *text = NULL; return CUDA_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}
