/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated boards are.
 * Source: NVIDIA "Multi-Instance GPU User Guide", "Supported MIG Profiles" (A100-SXM4-40GB,
 * A100-SXM4-80GB, H100, H200), and "nvidia-smi mig -lgip" and "-lgipp" of such boards. Memory
 * varies by driver: match on the profile's name.
 */
#include <stddef.h>

#include "models.h"
#include "nvml.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The seven-slice boards have one set of placements. */
#define PLACE_1G	1, { 0, 1, 2, 3, 4, 5, 6 }, 7
#define PLACE_1G_DOUBLE 2, { 0, 2, 4, 6 }, 4
#define PLACE_2G	2, { 0, 2, 4 }, 3
#define PLACE_3G	4, { 0, 4 }, 2
#define PLACE_4G	4, { 0 }, 1
#define PLACE_7G	8, { 0 }, 1

static const struct gi_profile a100_40gb[] = {
	{ 0, 19, "1g.5gb", 1, 7, 14, 1, 0, 0, 0, 0, 4864, PLACE_1G },
	{ 7, 20, "1g.5gb+me", 1, 1, 14, 1, 1, 0, 1, 1, 4864, PLACE_1G },
	{ 9, 15, "1g.10gb", 1, 4, 14, 1, 1, 0, 0, 0, 9856, PLACE_1G_DOUBLE },
	{ 1, 14, "2g.10gb", 2, 3, 28, 2, 1, 0, 0, 0, 9856, PLACE_2G },
	{ 2, 9, "3g.20gb", 3, 2, 42, 3, 2, 0, 0, 0, 19968, PLACE_3G },
	{ 3, 5, "4g.20gb", 4, 1, 56, 4, 2, 0, 0, 0, 19968, PLACE_4G },
	{ 4, 0, "7g.40gb", 7, 1, 98, 7, 5, 0, 1, 1, 40192, PLACE_7G },
};

static const struct gi_profile a100_80gb[] = {
	{ 0, 19, "1g.10gb", 1, 7, 14, 1, 0, 0, 0, 0, 9728, PLACE_1G },
	{ 7, 20, "1g.10gb+me", 1, 1, 14, 1, 1, 0, 1, 1, 9728, PLACE_1G },
	{ 9, 15, "1g.20gb", 1, 4, 14, 1, 1, 0, 0, 0, 19968, PLACE_1G_DOUBLE },
	{ 1, 14, "2g.20gb", 2, 3, 28, 2, 1, 0, 0, 0, 19968, PLACE_2G },
	{ 2, 9, "3g.40gb", 3, 2, 42, 3, 2, 0, 0, 0, 40192, PLACE_3G },
	{ 3, 5, "4g.40gb", 4, 1, 56, 4, 2, 0, 0, 0, 40192, PLACE_4G },
	{ 4, 0, "7g.80gb", 7, 1, 98, 7, 5, 0, 1, 1, 80384, PLACE_7G },
};

static const struct gi_profile h100_80gb[] = {
	{ 0, 19, "1g.10gb", 1, 7, 16, 1, 1, 0, 1, 0, 9984, PLACE_1G },
	{ 7, 20, "1g.10gb+me", 1, 1, 16, 1, 1, 0, 1, 1, 9984, PLACE_1G },
	{ 9, 15, "1g.20gb", 1, 4, 26, 1, 1, 0, 1, 0, 20096, PLACE_1G_DOUBLE },
	{ 1, 14, "2g.20gb", 2, 3, 32, 2, 2, 0, 2, 0, 20096, PLACE_2G },
	{ 2, 9, "3g.40gb", 3, 2, 60, 3, 3, 0, 3, 0, 40448, PLACE_3G },
	{ 3, 5, "4g.40gb", 4, 1, 64, 4, 4, 0, 4, 0, 40448, PLACE_4G },
	{ 4, 0, "7g.80gb", 7, 1, 132, 8, 7, 0, 7, 1, 81152, PLACE_7G },
};

static const struct gi_profile h200[] = {
	{ 0, 19, "1g.18gb", 1, 7, 16, 1, 1, 0, 1, 0, 16384, PLACE_1G },
	{ 7, 20, "1g.18gb+me", 1, 1, 16, 1, 1, 0, 1, 1, 16384, PLACE_1G },
	{ 9, 15, "1g.35gb", 1, 4, 26, 1, 1, 0, 1, 0, 33024, PLACE_1G_DOUBLE },
	{ 1, 14, "2g.35gb", 2, 3, 32, 2, 2, 0, 2, 0, 33280, PLACE_2G },
	{ 2, 9, "3g.71gb", 3, 2, 60, 3, 3, 0, 3, 0, 71168, PLACE_3G },
	{ 3, 5, "4g.71gb", 4, 1, 64, 4, 4, 0, 4, 0, 71168, PLACE_4G },
	{ 4, 0, "7g.141gb", 7, 1, 132, 8, 7, 0, 7, 1, 143360, PLACE_7G },
};

static const struct model models[] = {
	{ 0x1eb8, ARCH_TURING, 7, 5, 15360, 70, NULL, 0 },
	{ 0x20b0, ARCH_AMPERE, 8, 0, 40960, 400, a100_40gb, COUNT(a100_40gb) },
	{ 0x20b2, ARCH_AMPERE, 8, 0, 81920, 400, a100_80gb, COUNT(a100_80gb) },
	{ 0x2330, ARCH_HOPPER, 9, 0, 81559, 700, h100_80gb, COUNT(h100_80gb) },
	{ 0x2335, ARCH_HOPPER, 9, 0, 143771, 700, h200, COUNT(h200) },
};

/* A board that nobody described is still a GPU, of which nothing is known. */
static const struct model unknown = { 0, ~0u, 0, 0, 0, 0, NULL, 0 };

const struct model *model_for(unsigned int pci_device)
{
	for (size_t i = 0; i < COUNT(models); i++)
		if (models[i].pci_device == pci_device)
			return &models[i];
	return &unknown;
}

const struct gi_profile *profile_by_id(const struct model *model, unsigned int id)
{
	for (unsigned int i = 0; i < model->profile_count; i++)
		if (model->profiles[i].id == id)
			return &model->profiles[i];
	return NULL;
}

const struct gi_profile *profile_by_index(const struct model *model, unsigned int index)
{
	for (unsigned int i = 0; i < model->profile_count; i++)
		if (model->profiles[i].index == index)
			return &model->profiles[i];
	return NULL;
}

unsigned int ci_slices(const struct gi_profile *profile, unsigned int ci_profile)
{
	/* The others, of 8 and 6 slices, REV1 and NVL, are not on these boards. */
	static const unsigned int slices[] = { 1, 2, 3, 4, 7 };
	unsigned int n = ci_profile < COUNT(slices) ? slices[ci_profile] : 0;

	if (n > profile->slices || (n < profile->slices && 2 * n > profile->slices + 1))
		return 0;
	return n;
}
