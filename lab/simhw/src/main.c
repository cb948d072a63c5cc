// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
#include "simhw.h"

DEFINE_MUTEX(simhw_lock);
DEFINE_MUTEX(simhw_port_lock);
struct simhw_dev *simhw_devs[SIMHW_MAX_DEVS];
char simhw_seed[64] = "lab";

static int __init simhw_init(void)
{
	int ret;

	ret = simhw_pci_init();
	if (ret)
		return ret;
	ret = simhw_hca_init();
	if (ret)
		goto err_pci;
	ret = simhw_control_init();
	if (ret)
		goto err_hca;
	pr_info("simhw: simulated GPUs and HCAs in PCI domain %04x; no hardware behind them\n",
		SIMHW_DOMAIN);
	return 0;

err_hca:
	simhw_hca_exit();
err_pci:
	simhw_pci_exit();
	return ret;
}

static void __exit simhw_exit(void)
{
	simhw_control_exit();
	simhw_pci_exit();
	simhw_hca_exit();
}

module_init(simhw_init);
module_exit(simhw_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Simulated GPUs and HCAs (no hardware)");
MODULE_VERSION(SIMHW_VERSION "-simulated");
