// SPDX-License-Identifier: GPL-2.0
/*
 * What the simulated devices say they are.
 *
 * Vendor and device IDs: the PCI ID repository (pci.ids). Subsystem IDs are plausible, not checked.
 * BAR 1 of a GPU is 256 MiB whatever its memory, so that many fit the 40 address bits of an
 * emulated CPU; all BARs are 64-bit prefetchable, so that they need no room below 4 GiB.
 */
#include <linux/string.h>
#include "simhw.h"

#define GPU(_name, _device, _subsystem, _speed)						\
	{ .name = _name, .kind = SIMHW_GPU, .vendor = PCI_VENDOR_ID_NVIDIA,		\
	  .device = _device, .subsystem = _subsystem, .revision = 0xa1,			\
	  .link_speed = _speed, .link_width = 16, .bar_order = { 24, 0, 28, 0, 25 } }

#define HCA(_name, _device, _subsystem, _speed, _type, _fw, _rate)			\
	{ .name = _name, .kind = SIMHW_HCA, .vendor = PCI_VENDOR_ID_MELLANOX,		\
	  .device = _device, .subsystem = _subsystem, .revision = 0,			\
	  .link_speed = _speed, .link_width = 16, .bar_order = { 25 },			\
	  .hca_type = _type, .fw_ver = _fw, .max_rate_gbps = _rate }

static const struct simhw_model models[] = {
	GPU("T4", 0x1eb8, 0x12a2, 3),
	GPU("A100-SXM4-40GB", 0x20b0, 0x134f, 4),
	GPU("A100-SXM4-80GB", 0x20b2, 0x1463, 4),
	GPU("H100-SXM5-80GB", 0x2330, 0x16c1, 5),
	HCA("ConnectX-6", 0x101b, 0x0006, 4, "MT4123", "20.43.1014", 200),
	HCA("ConnectX-7", 0x1021, 0x0041, 5, "MT4129", "28.43.1014", 400),
};

const struct simhw_model *simhw_model_find(enum simhw_kind kind, const char *name)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(models); i++)
		if (models[i].kind == kind && !strcmp(models[i].name, name))
			return &models[i];
	return NULL;
}
