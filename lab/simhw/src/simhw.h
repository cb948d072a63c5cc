/* SPDX-License-Identifier: GPL-2.0 */
/*
 * simhw - simulated GPUs and HCAs: PCI functions that exist only in memory, and an RDMA driver
 * for the HCAs among them.
 *
 * Each device has a root port of its own on bus 0x40 of PCI domain 1; the device itself is the
 * only function of the bus behind that port.
 */
#ifndef SIMHW_H
#define SIMHW_H

#include <linux/bits.h>
#include <linux/if_ether.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>

#define SIMHW_VERSION	"1"
#define SIMHW_DOMAIN	1
#define SIMHW_ROOT_BUS	0x40
#define SIMHW_MAX_DEVS	31	/* one slot of the root bus each */
#define SIMHW_BUS_OF(slot)	(SIMHW_ROOT_BUS + 1 + (slot))
#define SIMHW_CFG_SIZE	4096
#define SIMHW_MASK_SIZE	512	/* nothing above can be written */

enum simhw_kind { SIMHW_GPU, SIMHW_HCA };

struct simhw_model {
	const char *name;
	enum simhw_kind kind;
	u16 vendor, device, subsystem;
	u8 revision;
	u8 link_speed;		/* PCI_EXP_LNKCAP_SLS_*: 4 is 16 GT/s */
	u8 link_width;
	u8 bar_order[6];	/* log2 of the size of 64-bit BARs at even places; 0: none */
	/* HCAs only */
	const char *hca_type;
	const char *fw_ver;
	u32 max_rate_gbps;
};

enum simhw_condition {
	SIMHW_PRESENT,
	SIMHW_LOST,		/* fell off the bus: configuration reads are all ones */
	SIMHW_REMOVED,		/* lost, and the kernel has noticed */
};

enum simhw_counter {
	SIMHW_SYMBOL_ERROR,
	SIMHW_LINK_ERROR_RECOVERY,
	SIMHW_LINK_DOWNED,
	SIMHW_PORT_RCV_ERRORS,
	SIMHW_LOCAL_LINK_INTEGRITY,
	SIMHW_NCOUNTERS,
};

extern const char * const simhw_counter_names[SIMHW_NCOUNTERS];

/* One PCI function. The mask has a one where the kernel may write. */
struct simhw_fn {
	u8 cfg[SIMHW_CFG_SIZE];
	u8 mask[SIMHW_MASK_SIZE];
};

/* State of an HCA's only port, kept while the PCI device is away. */
struct simhw_port {
	bool ethernet;
	u32 rate_gbps;
	enum ib_port_state state;
	enum ib_port_phys_state phys_state;
	u16 lid;
	__be64 node_guid;
	__be64 port_guid;
	u8 mac[ETH_ALEN];
	u32 counters[SIMHW_NCOUNTERS];
};

struct simhw_ibdev;

struct simhw_dev {
	int slot;
	int index;		/* among its kind */
	int numa;
	const struct simhw_model *model;
	enum simhw_condition condition;
	u8 link_speed, link_width;	/* as negotiated; the model has the maximum */
	struct pci_sysdata sysdata;	/* of the bus behind the root port: carries the NUMA node */
	struct simhw_fn rp, ep;
	struct simhw_port port;
	struct simhw_ibdev *ib;		/* while the driver is bound */
};

/* Serialises commands, which alone change simhw_devs[]. Drivers are probed with it held. */
extern struct mutex simhw_lock;
/* Guards simhw_dev.ib: a driver can be unbound at any time. Taken inside simhw_lock. */
extern struct mutex simhw_port_lock;
extern struct simhw_dev *simhw_devs[SIMHW_MAX_DEVS];
extern char simhw_seed[64];

/* models.c */
const struct simhw_model *simhw_model_find(enum simhw_kind kind, const char *name);

/* pci.c */
int simhw_pci_init(void);
void simhw_pci_exit(void);
struct simhw_dev *simhw_pci_add(const struct simhw_model *model, int numa,
				const struct simhw_port *port);
void simhw_pci_remove_all(void);
void simhw_pci_set_condition(struct simhw_dev *dev, enum simhw_condition condition);
void simhw_pci_set_link(struct simhw_dev *dev, u8 speed, u8 width);
void simhw_pci_set_acs(struct simhw_dev *dev, bool on);
bool simhw_pci_acs(struct simhw_dev *dev);
struct pci_dev *simhw_pci_get(struct simhw_dev *dev);
struct simhw_dev *simhw_pci_to_dev(struct pci_dev *pdev);

/* hca.c */
struct simhw_ibdev {
	struct ib_device ib;	/* first: ib_alloc_device() */
	struct simhw_dev *dev;
	struct pci_dev *pdev;
	struct net_device *netdev;	/* Ethernet link layer only */
};

static inline struct simhw_ibdev *to_simhw(struct ib_device *ib)
{
	return container_of(ib, struct simhw_ibdev, ib);
}

int simhw_hca_init(void);
void simhw_hca_exit(void);
bool simhw_rate_known(bool ethernet, u32 rate_gbps);
enum ib_port_state simhw_port_state(struct simhw_ibdev *sib);
void simhw_port_changed(struct simhw_dev *dev, enum ib_port_state before);
void simhw_port_identity(struct simhw_port *port, int slot);

/* verbs.c */
extern const struct ib_device_ops simhw_verbs_ops;

/* mad.c */
#define SIMHW_SM_LID	1
int simhw_process_mad(struct ib_device *ib, int flags, u32 port, const struct ib_wc *in_wc,
		      const struct ib_grh *in_grh, const struct ib_mad *in, struct ib_mad *out,
		      size_t *out_size, u16 *out_pkey_index);
bool simhw_sa_answer(struct simhw_ibdev *sib, const void *request, void *reply);

/* eth.c */
struct net_device *simhw_eth_create(struct simhw_ibdev *sib);
void simhw_eth_destroy(struct net_device *netdev);
void simhw_eth_carrier(struct simhw_ibdev *sib);

/* control.c */
int simhw_control_init(void);
void simhw_control_exit(void);

#endif
