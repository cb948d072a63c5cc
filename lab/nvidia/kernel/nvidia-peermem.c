// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Loads only where the real nvidia-peermem would: built when OFED's headers were there (see
 * Kbuild), and with an ib_core that offers peer memory. Otherwise "Invalid argument". Source:
 * github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem/nvidia-peermem.c and
 * nvidia-peermem.Kbuild.
 */
#include <linux/module.h>

#include "nv-version.h"
#include "nvidia-exports.h"

static int peerdirect_support;
static int persistent_api_support = 1;
module_param(peerdirect_support, int, 0444);
module_param(persistent_api_support, int, 0444);

static bool registered;

static int __init peermem_init(void)
{
	if (strcmp(nvidia_sim_version(), NV_VERSION_STRING))
		return -EINVAL;
#ifdef NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT
	/* Held, never called: there is no GPU memory to register. */
	if (!__symbol_get("ib_register_peer_memory_client"))
		return -EINVAL;
	registered = true;
	return 0;
#else
	return -EINVAL;
#endif
}

static void __exit peermem_exit(void)
{
	if (registered)
		__symbol_put("ib_register_peer_memory_client");
}

module_init(peermem_init);
module_exit(peermem_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION(
	"Simulated NVIDIA GPU memory plug-in for peer-to-peer RDMA, of the Rackwright lab");
MODULE_VERSION(NV_VERSION_STRING);
