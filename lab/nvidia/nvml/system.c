/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nv-version.h"
#include "state.h"

API const char *nvmlErrorString(nvmlReturn rc)
{
	switch (rc) {
	case NVML_SUCCESS: return "Success";
	case NVML_UNINITIALIZED: return "Uninitialized";
	case NVML_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_NOT_SUPPORTED: return "Not Supported";
	case NVML_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_NOT_FOUND: return "Not Found";
	case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_TIMEOUT: return "Timeout";
	case NVML_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_GPU_IS_LOST: return "GPU is lost";
	case NVML_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_IN_USE: return "In use by another client";
	case NVML_MEMORY: return "Insufficient Memory";
	case NVML_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_UNKNOWN: break;
	}
	return "Unknown Error";
}

API nvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn rc = enter();

	return rc ? rc : leave(copy_text(version, length, driver_version()));
}

/* Source: CUDA Toolkit release notes, "CUDA driver versions": R580 came with CUDA 13.0, R595
 * with 13.2. */
static int cuda_version(void)
{
	return atoi(NV_VERSION_STRING) >= 595 ? 13020 : 13000;
}

/* Known without the driver too: nvidia-smi prints it when the versions differ. */
API nvmlReturn nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[64];

	snprintf(text, sizeof(text), "%d.%s", cuda_version() / 1000, NV_VERSION_STRING);
	return copy_text(version, length, text);
}

API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return NVML_INVALID_ARGUMENT;
	*version = cuda_version();
	return NVML_SUCCESS;
}

API nvmlReturn nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlReturn nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[32], text[256] = "";
	size_t n;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	file = fopen(path, "re");
	if (!file)
		return NVML_NOT_FOUND;
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = '\0';
	return copy_text(name, length, text);
}
