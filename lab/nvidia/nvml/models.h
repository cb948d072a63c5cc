/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MODELS_H
#define SIM_MODELS_H

struct gi_profile {
	unsigned int index; /* NVML's number for the shape */
	unsigned int id;    /* what nvidia-smi shows and -cgi takes */
	const char *name;
	unsigned int slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs,
		ofas;
	unsigned int memory_mb;
	unsigned int size; /* in eighths of the memory */
	unsigned int starts[7], start_count;
};

struct model {
	unsigned int pci_device;
	unsigned int arch;
	int compute_major, compute_minor;
	unsigned long long memory_mb;
	unsigned int power_watts;
	const struct gi_profile *profiles;
	unsigned int profile_count;
};

const struct model *model_for(unsigned int pci_device);
const struct gi_profile *profile_by_id(const struct model *model, unsigned int id);
const struct gi_profile *profile_by_index(const struct model *model, unsigned int index);

/* Compute slices of a compute instance profile, 0: this GPU instance profile cannot have it. */
unsigned int ci_slices(const struct gi_profile *profile, unsigned int ci_profile);

#endif
