// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * MIG mode and instances. They live in the driver and die with it. Which profile may go where is
 * the library's affair; here two instances never share a slice, and nothing in use is taken away.
 */
#include <linux/capability.h>
#include <linux/file.h>
#include <linux/fs_struct.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv.h"

/*
 * Source: NVIDIA "Multi-Instance GPU User Guide", "Enable MIG Mode": on Ampere the mode is a bit in
 * the board's InfoROM and survives a reboot. The simulated board keeps it in a file of the machine.
 */
#define INFOROM "/var/lib/rackwright-sim/inforom/"

/* The machine's file, whatever root the caller (a container) has. */
static struct file *inforom_open(const struct nv_gpu *gpu, int flags)
{
	char name[96];
	struct path root;
	struct file *file;

	scnprintf(name, sizeof(name), INFOROM "%s", gpu->state.uuid);
	task_lock(&init_task);
	get_fs_root(init_task.fs, &root);
	task_unlock(&init_task);
	file = file_open_root(&root, name, flags, 0644);
	path_put(&root);
	return file;
}

/* At the first open, not at probe: at boot /var may not be there yet. */
void nv_inforom_read(struct nv_gpu *gpu)
{
	char text[32] = "";
	struct file *file;
	loff_t position = 0;
	ssize_t length;

	lockdep_assert_held(&nv_lock);
	if (gpu->inforom_read || !(gpu->state.flags & NVSIM_FLAG_MIG_RESET))
		return;
	gpu->inforom_read = true;
	file = inforom_open(gpu, O_RDONLY);
	if (file == ERR_PTR(-ENOENT))
		return;
	if (IS_ERR(file)) {
		length = PTR_ERR(file);
	} else {
		length = kernel_read(file, text, sizeof(text) - 1, &position);
		fput(file);
	}
	if (length < 0)
		pr_warn("NVRM: simulated InfoROM of %s: cannot be read (%zd), MIG mode taken as disabled\n",
			pci_name(gpu->pdev), length);
	gpu->state.mig_current = strstarts(text, "mig_mode=1");
	gpu->state.mig_pending = gpu->state.mig_current;
}

static int inforom_write(const struct nv_gpu *gpu, u32 mode)
{
	char text[32];
	struct file *file = inforom_open(gpu, O_WRONLY | O_CREAT | O_TRUNC);
	loff_t position = 0;
	ssize_t written;
	int length, rc;

	if (IS_ERR(file))
		return PTR_ERR(file);
	length = scnprintf(text, sizeof(text), "mig_mode=%u (simulated)\n", mode);
	written = kernel_write(file, text, length, &position);
	rc = written == length ? vfs_fsync(file, 0) : (written < 0 ? (int)written : -EIO);
	fput(file);
	return rc;
}

static bool has_instances(const struct nv_gpu *gpu)
{
	for (int i = 0; i < NVSIM_MAX_GPU_INSTANCES; i++)
		if (gpu->state.gi[i].used)
			return true;
	return false;
}

/* Everything the GPU itself remembers while it has power and a driver. */
void nv_mig_gone(struct nv_gpu *gpu)
{
	for (unsigned int gi = 0; gi < NVSIM_MAX_GPU_INSTANCES; gi++) {
		if (!gpu->state.gi[gi].used)
			continue;
		for (unsigned int ci = 0; ci < NVSIM_MAX_COMPUTE; ci++)
			nv_caps_remove(NVSIM_CAP_CI(gpu->state.minor, gi, ci));
		nv_caps_remove(NVSIM_CAP_GI(gpu->state.minor, gi));
		memset(&gpu->state.gi[gi], 0, sizeof(gpu->state.gi[gi]));
	}
}

static int set_mode(struct nv_gpu *gpu, u32 mode)
{
	int rc;

	if (mode > 1)
		return -EINVAL;
	if (!mode && has_instances(gpu))
		return -EBUSY;
	if (!(gpu->state.flags & NVSIM_FLAG_MIG_RESET)) {
		gpu->state.mig_current = gpu->state.mig_pending = mode;
		return 0;
	}
	rc = inforom_write(gpu, mode);
	if (rc) {
		pr_err("NVRM: simulated InfoROM of %s: cannot be written (%d)\n",
		       pci_name(gpu->pdev), rc);
		return -EIO;
	}
	gpu->state.mig_pending = mode;
	if (gpu->state.mig_current != mode && nv_gpu_has_other_clients(gpu->state.minor))
		return 1;
	gpu->state.mig_current = mode;
	return 0;
}

static int reset(struct nv_gpu *gpu)
{
	if (nv_gpu_has_other_clients(gpu->state.minor))
		return -EBUSY;
	for (unsigned int gi = 0; gi < NVSIM_MAX_GPU_INSTANCES; gi++)
		if (gpu->state.gi[gi].used && nv_caps_in_use(NVSIM_CAP_GI(gpu->state.minor, gi)))
			return -EBUSY;
	nv_mig_gone(gpu);
	gpu->state.mig_current = gpu->state.mig_pending;
	return 0;
}

static bool overlap(u32 start, u32 size, u32 other_start, u32 other_size)
{
	return start < other_start + other_size && other_start < start + size;
}

static int create_gi(struct nv_gpu *gpu, const struct nvsim_request *r)
{
	struct nvsim_gpu_instance *gi;
	int rc;

	if (!gpu->state.mig_current)
		return -EOPNOTSUPP;
	if (r->gi >= NVSIM_MAX_GPU_INSTANCES || !r->size || r->size > 8 || r->start > 8 - r->size ||
	    r->profile > 0xff)
		return -EINVAL;
	if (gpu->state.gi[r->gi].used)
		return -ENOSPC;
	for (int i = 0; i < NVSIM_MAX_GPU_INSTANCES; i++) {
		gi = &gpu->state.gi[i];
		if (gi->used && overlap(r->start, r->size, gi->start, gi->size))
			return -ENOSPC;
	}
	rc = nv_caps_add(NVSIM_CAP_GI(gpu->state.minor, r->gi));
	if (rc)
		return rc;
	gi = &gpu->state.gi[r->gi];
	*gi = (struct nvsim_gpu_instance){
		.used = 1, .profile = r->profile, .start = r->start, .size = r->size
	};
	return 0;
}

static struct nvsim_gpu_instance *find_gi(struct nv_gpu *gpu, u32 gi)
{
	return gi < NVSIM_MAX_GPU_INSTANCES && gpu->state.gi[gi].used ? &gpu->state.gi[gi] : NULL;
}

static int destroy_gi(struct nv_gpu *gpu, const struct nvsim_request *r)
{
	struct nvsim_gpu_instance *gi = find_gi(gpu, r->gi);

	if (!gi)
		return -ENOENT;
	for (int i = 0; i < NVSIM_MAX_COMPUTE; i++)
		if (gi->ci[i].used)
			return -EBUSY;
	if (nv_caps_in_use(NVSIM_CAP_GI(gpu->state.minor, r->gi)))
		return -EBUSY;
	nv_caps_remove(NVSIM_CAP_GI(gpu->state.minor, r->gi));
	memset(gi, 0, sizeof(*gi));
	return 0;
}

static int create_ci(struct nv_gpu *gpu, const struct nvsim_request *r)
{
	struct nvsim_gpu_instance *gi = find_gi(gpu, r->gi);
	int rc;

	if (!gi)
		return -ENOENT;
	if (r->ci >= NVSIM_MAX_COMPUTE || !r->size || r->size > 8 || r->start > 8 - r->size ||
	    r->profile > 0xff)
		return -EINVAL;
	if (gi->ci[r->ci].used)
		return -ENOSPC;
	for (int i = 0; i < NVSIM_MAX_COMPUTE; i++)
		if (gi->ci[i].used && overlap(r->start, r->size, gi->ci[i].start, gi->ci[i].size))
			return -ENOSPC;
	rc = nv_caps_add(NVSIM_CAP_CI(gpu->state.minor, r->gi, r->ci));
	if (rc)
		return rc;
	gi->ci[r->ci] = (struct nvsim_compute_instance){
		.used = 1, .profile = r->profile, .start = r->start, .size = r->size
	};
	return 0;
}

static int destroy_ci(struct nv_gpu *gpu, const struct nvsim_request *r)
{
	struct nvsim_gpu_instance *gi = find_gi(gpu, r->gi);

	if (!gi || r->ci >= NVSIM_MAX_COMPUTE || !gi->ci[r->ci].used)
		return -ENOENT;
	if (nv_caps_in_use(NVSIM_CAP_CI(gpu->state.minor, r->gi, r->ci)))
		return -EBUSY;
	nv_caps_remove(NVSIM_CAP_CI(gpu->state.minor, r->gi, r->ci));
	memset(&gi->ci[r->ci], 0, sizeof(gi->ci[r->ci]));
	return 0;
}

static long change(unsigned int cmd, const struct nvsim_request *r)
{
	struct nv_gpu *gpu;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	gpu = r->minor < NVSIM_MAX_GPUS ? nv_gpus[r->minor] : NULL;
	if (!gpu)
		return -ENOENT;
	nv_inforom_read(gpu);
	if (!pci_device_is_present(gpu->pdev))
		return -ENODEV;
	if (cmd == NVSIM_SET_PERSISTENCE) {
		gpu->state.persistence = !!r->value;
		return 0;
	}
	if (cmd == NVSIM_RESET)
		return reset(gpu);
	if (!(gpu->state.flags & NVSIM_FLAG_MIG_CAPABLE))
		return -EOPNOTSUPP;
	switch (cmd) {
	case NVSIM_SET_MIG_MODE: return set_mode(gpu, r->value);
	case NVSIM_CREATE_GI: return create_gi(gpu, r);
	case NVSIM_DESTROY_GI: return destroy_gi(gpu, r);
	case NVSIM_CREATE_CI: return create_ci(gpu, r);
	case NVSIM_DESTROY_CI: return destroy_ci(gpu, r);
	}
	return -ENOTTY;
}

static long get_gpu(struct nvsim_gpu *out)
{
	struct nv_gpu *gpu = out->minor < NVSIM_MAX_GPUS ? nv_gpus[out->minor] : NULL;

	if (!gpu)
		return -ENOENT;
	nv_inforom_read(gpu);
	*out = gpu->state;
	out->other_clients = nv_gpu_has_other_clients(out->minor);
	if (!pci_device_is_present(gpu->pdev))
		out->flags |= NVSIM_FLAG_LOST;
	return 0;
}

static long check_version(struct nvsim_version *v)
{
	v->client[sizeof(v->client) - 1] = '\0';
	strscpy_pad(v->module, NV_VERSION_STRING, sizeof(v->module));
	if (!strcmp(v->client, v->module))
		return 0;
	pr_err("NVRM: API mismatch: the client '%s' (pid %d) has the version %s, but this kernel module has the version %s.\n",
	       current->comm, task_tgid_nr(current), v->client, v->module);
	return -EPROTO;
}

long nv_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	struct nvsim_version version;
	struct nvsim_request request;
	struct nvsim_gpu *gpu;
	long rc;

	switch (cmd) {
	case NVSIM_CHECK_VERSION:
		if (copy_from_user(&version, user, sizeof(version)))
			return -EFAULT;
		rc = check_version(&version);
		return copy_to_user(user, &version, sizeof(version)) ? -EFAULT : rc;
	case NVSIM_GET_GPU:
		gpu = memdup_user(user, sizeof(*gpu));
		if (IS_ERR(gpu))
			return PTR_ERR(gpu);
		mutex_lock(&nv_lock);
		rc = get_gpu(gpu);
		mutex_unlock(&nv_lock);
		if (!rc && copy_to_user(user, gpu, sizeof(*gpu)))
			rc = -EFAULT;
		kfree(gpu);
		return rc;
	default:
		if (copy_from_user(&request, user, sizeof(request)))
			return -EFAULT;
		mutex_lock(&nv_lock);
		rc = change(cmd, &request);
		mutex_unlock(&nv_lock);
		return rc;
	}
}
