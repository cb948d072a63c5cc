// SPDX-License-Identifier: GPL-2.0 OR MIT
/* nvidia.ko in one piece: parsing the kernel's headers is most of the work, and an emulated machine
 * does it slowly. */
#include "nv-pci.c"
#include "nv-caps.c"
#include "nv-mig.c"
