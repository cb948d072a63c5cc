/* SPDX-License-Identifier: Apache-2.0 */
/* The way to the simulated nvidia.ko. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "driver.h"
#include "nv-version.h"

static int ctl = -1;
static char module_version[32];

static nvmlReturn from_errno(int error)
{
	switch (error) {
	case EPERM:
	case EACCES: return NVML_NO_PERMISSION;
	case ENOENT: return NVML_NOT_FOUND;
	case ENODEV: return NVML_GPU_IS_LOST;
	case EBUSY: return NVML_IN_USE;
	case ENOSPC: return NVML_INSUFFICIENT_RESOURCES;
	case EOPNOTSUPP: return NVML_NOT_SUPPORTED;
	case EINVAL: return NVML_INVALID_ARGUMENT;
	case ENOMEM: return NVML_MEMORY;
	default: return NVML_UNKNOWN;
	}
}

nvmlReturn driver_open(void)
{
	struct nvsim_version version = { .client = NV_VERSION_STRING };
	int rc;

	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		return errno == EACCES || errno == EPERM ? NVML_NO_PERMISSION
							 : NVML_DRIVER_NOT_LOADED;
	rc = ioctl(ctl, NVSIM_CHECK_VERSION, &version);
	snprintf(module_version, sizeof(module_version), "%s", version.module);
	if (!rc)
		return NVML_SUCCESS;
	/* EPROTO: it says so itself. Anything else: another nvidia.ko, which does not know the
	 * question. */
	driver_close();
	return NVML_VERSION_MISMATCH;
}

void driver_close(void)
{
	if (ctl >= 0)
		close(ctl);
	ctl = -1;
}

nvmlReturn driver_get_gpu(unsigned int minor, struct nvsim_gpu *gpu)
{
	memset(gpu, 0, sizeof(*gpu));
	gpu->minor = minor;
	return ioctl(ctl, NVSIM_GET_GPU, gpu) ? from_errno(errno) : NVML_SUCCESS;
}

nvmlReturn driver_change(unsigned long what, const struct nvsim_request *request, bool *pending)
{
	int rc = ioctl(ctl, what, request);

	if (rc < 0)
		return from_errno(errno);
	if (pending)
		*pending = rc == 1;
	return NVML_SUCCESS;
}

int driver_hold_gpu(unsigned int minor)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	return open(path, O_RDWR | O_CLOEXEC);
}

bool driver_may_use_cap(unsigned int cap)
{
	char path[48];
	int fd;

	snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%u", cap);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

const char *driver_version(void)
{
	return module_version;
}
