/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef NV_H
#define NV_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>

#include "nvidia-sim.h"
#include "nv-version.h" /* generated: NV_VERSION_STRING */

#define NV_MAJOR	 195
#define NV_MINOR_MODESET 254
#define NV_MINOR_CTL	 255

/* One open file of /dev/nvidiaN, /dev/nvidiactl or /dev/nvidia-caps/nvidia-capN. */
struct nv_client {
	struct list_head node;
	pid_t tgid;
	unsigned int minor;
};

struct nv_gpu {
	struct pci_dev *pdev;
	struct nvsim_gpu state;
	struct proc_dir_entry *proc;
	bool inforom_read;
};

/* Guards everything below: gpus, their instances, the lists of clients. */
extern struct mutex nv_lock;
extern struct nv_gpu *nv_gpus[NVSIM_MAX_GPUS];
extern struct list_head nv_gpu_clients;
extern struct list_head nv_cap_clients;
extern int nv_kernel_clients;
extern struct proc_dir_entry *nv_proc;

/* nv-pci.c */
bool nv_gpu_has_other_clients(unsigned int minor);
int nv_client_add(struct file *file, struct list_head *list, unsigned int minor);
void nv_client_remove(struct file *file);

/* nv-mig.c */
long nv_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
void nv_mig_gone(struct nv_gpu *gpu);
void nv_inforom_read(struct nv_gpu *gpu);

/* nv-caps.c */
int nv_caps_init(void);
void nv_caps_exit(void);
int nv_caps_add(unsigned int cap);
void nv_caps_remove(unsigned int cap);
bool nv_caps_in_use(unsigned int cap);

#endif
