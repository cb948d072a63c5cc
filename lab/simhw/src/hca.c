// SPDX-License-Identifier: GPL-2.0
/* The driver of the simulated HCAs: one RDMA device with one port per PCI function. */
#include <linux/crc32.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>
#include "simhw.h"

struct rate {
	u32 gbps;
	u16 speed;
	u8 width;
};

/* Source: InfiniBand speeds as named by the IBTA roadmap; lanes as a 4X port negotiates them. */
static const struct rate ib_rates[] = {
	{ 10, IB_SPEED_SDR, IB_WIDTH_4X },
	{ 20, IB_SPEED_DDR, IB_WIDTH_4X },
	{ 40, IB_SPEED_QDR, IB_WIDTH_4X },
	{ 56, IB_SPEED_FDR, IB_WIDTH_4X },
	{ 100, IB_SPEED_EDR, IB_WIDTH_4X },
	{ 200, IB_SPEED_HDR, IB_WIDTH_4X },
	{ 400, IB_SPEED_NDR, IB_WIDTH_4X },
};

/* Source: Linux, drivers/infiniband/hw/mlx5/main.c, translate_eth_ext_proto_oper(). */
static const struct rate eth_rates[] = {
	{ 10, IB_SPEED_QDR, IB_WIDTH_1X },
	{ 25, IB_SPEED_EDR, IB_WIDTH_1X },
	{ 40, IB_SPEED_QDR, IB_WIDTH_4X },
	{ 50, IB_SPEED_EDR, IB_WIDTH_2X },
	{ 100, IB_SPEED_EDR, IB_WIDTH_4X },
	{ 200, IB_SPEED_HDR, IB_WIDTH_4X },
	{ 400, IB_SPEED_NDR, IB_WIDTH_4X },
};

static const struct rate *find_rate(bool ethernet, u32 gbps)
{
	const struct rate *rates = ethernet ? eth_rates : ib_rates;
	int n = ethernet ? ARRAY_SIZE(eth_rates) : ARRAY_SIZE(ib_rates);
	int i;

	for (i = 0; i < n; i++)
		if (rates[i].gbps == gbps)
			return &rates[i];
	return NULL;
}

bool simhw_rate_known(bool ethernet, u32 rate_gbps)
{
	return find_rate(ethernet, rate_gbps);
}

/* GUIDs, MAC and LID, unique per device and, through the seed, per machine. */
void simhw_port_identity(struct simhw_port *port, int slot)
{
	u32 hash = crc32(~0, simhw_seed, strlen(simhw_seed));
	u32 low = (hash << 5 & 0xffffe0) | slot;
	/* Source: IEEE OUI list: 08:C0:EB is Mellanox Technologies. */
	u64 guid = 0x08c0eb0300000000ULL | low;

	port->node_guid = cpu_to_be64(guid);
	port->mac[0] = 0x08;
	port->mac[1] = 0xc0;
	port->mac[2] = 0xeb;
	port->mac[3] = low >> 16;
	port->mac[4] = low >> 8;
	port->mac[5] = low;
	port->port_guid = port->node_guid;
	if (port->ethernet)
		port->port_guid = cpu_to_be64(0x0ac0ebfffe000000ULL | low);
	else
		port->lid = 32 + hash % 128 * 32 + slot;
}

/* As a port is seen: an Ethernet port needs its network interface up as well. */
enum ib_port_state simhw_port_state(struct simhw_ibdev *sib)
{
	enum ib_port_state state = READ_ONCE(sib->dev->port.state);

	if (sib->netdev && !(netif_running(sib->netdev) && netif_carrier_ok(sib->netdev)))
		return IB_PORT_DOWN;
	return state;
}

/* Tell those who listen: the stack's caches, IPoIB, programs waiting for asynchronous events. */
void simhw_port_changed(struct simhw_dev *dev, enum ib_port_state before)
{
	struct simhw_ibdev *sib = dev->ib;
	struct ib_event event = { .element.port_num = 1 };
	enum ib_port_state now;

	if (!sib)
		return;
	event.device = &sib->ib;
	now = simhw_port_state(sib);
	if (now == IB_PORT_ACTIVE)
		event.event = before == IB_PORT_ACTIVE ? IB_EVENT_LID_CHANGE : IB_EVENT_PORT_ACTIVE;
	else if (before == IB_PORT_ACTIVE)
		event.event = IB_EVENT_PORT_ERR;
	else
		return;
	ib_dispatch_event(&event);
}

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	struct simhw_ibdev *sib = to_simhw(ib);
	unsigned int major, minor, patch;

	memset(attr, 0, sizeof(*attr));
	if (sscanf(sib->dev->model->fw_ver, "%u.%u.%u", &major, &minor, &patch) == 3)
		attr->fw_ver = (u64)major << 32 | minor << 16 | patch;
	attr->sys_image_guid = sib->dev->port.node_guid;
	attr->vendor_id = 0x02c9;
	attr->vendor_part_id = sib->dev->model->device;
	attr->hw_ver = 0;
	attr->max_mr_size = ~0ULL;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_qp = 1024;
	attr->max_qp_wr = 8192;
	attr->max_send_sge = 30;
	attr->max_recv_sge = 30;
	attr->max_cq = 1024;
	attr->max_cqe = 65535;
	attr->max_mr = 1024;
	attr->max_pd = 1024;
	attr->max_ah = 65535;
	attr->max_mcast_grp = 1024;
	attr->max_mcast_qp_attach = 64;
	attr->max_total_mcast_qp_attach = 65536;
	attr->max_pkeys = 1;
	attr->atomic_cap = IB_ATOMIC_NONE;
	return 0;
}

static int query_port(struct ib_device *ib, u32 port_num, struct ib_port_attr *attr)
{
	struct simhw_ibdev *sib = to_simhw(ib);
	struct simhw_port *port = &sib->dev->port;
	const struct rate *rate;

	attr->state = simhw_port_state(sib);
	attr->phys_state = READ_ONCE(port->phys_state);
	if (port->ethernet)
		attr->phys_state = attr->state == IB_PORT_ACTIVE ? IB_PORT_PHYS_STATE_LINK_UP :
			IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = port->ethernet ? 16 : 8;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = BIT(30);
	attr->max_vl_num = port->ethernet ? 1 : 4;
	if (port->ethernet) {
		attr->active_mtu = iboe_get_mtu(sib->netdev->mtu);
		attr->port_cap_flags = IB_PORT_CM_SUP;
		attr->ip_gids = true;
	} else {
		attr->port_cap_flags = 0x2651e848;	/* as ConnectX ports say; not a subnet manager */
		if (attr->state == IB_PORT_ACTIVE || attr->state == IB_PORT_ARMED) {
			attr->lid = port->lid;
			attr->sm_lid = SIMHW_SM_LID;
			attr->subnet_timeout = 18;
		} else {
			attr->lid = 0xffff;
		}
	}
	/* A port without a link has nothing negotiated, and says the slowest. */
	rate = find_rate(port->ethernet, attr->state == IB_PORT_DOWN ? 10 :
			 READ_ONCE(port->rate_gbps));
	attr->active_speed = rate->speed;
	attr->active_width = rate->width;
	return 0;
}

static int get_port_immutable(struct ib_device *ib, u32 port_num,
			      struct ib_port_immutable *immutable)
{
	struct ib_port_attr attr = {};

	query_port(ib, port_num, &attr);
	immutable->gid_tbl_len = attr.gid_tbl_len;
	immutable->pkey_tbl_len = attr.pkey_tbl_len;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	immutable->core_cap_flags = to_simhw(ib)->dev->port.ethernet ?
		RDMA_CORE_PORT_IBA_ROCE | RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP :
		RDMA_CORE_PORT_IBA_IB;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port_num)
{
	return to_simhw(ib)->dev->port.ethernet ? IB_LINK_LAYER_ETHERNET : IB_LINK_LAYER_INFINIBAND;
}

static int query_gid(struct ib_device *ib, u32 port_num, int index, union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = index ? 0 : to_simhw(ib)->dev->port.port_guid;
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port_num, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static int modify_device(struct ib_device *ib, int mask, struct ib_device_modify *modify)
{
	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	if (mask & IB_DEVICE_MODIFY_NODE_DESC)
		memcpy(ib->node_desc, modify->node_desc, IB_DEVICE_NODE_DESC_MAX);
	return 0;
}

static int modify_port(struct ib_device *ib, u32 port_num, int mask, struct ib_port_modify *modify)
{
	return 0;
}

static void get_dev_fw_str(struct ib_device *ib, char *str)
{
	strscpy(str, to_simhw(ib)->dev->model->fw_ver, IB_FW_VERSION_NAME_MAX);
}

static ssize_t hca_type_show(struct device *device, struct device_attribute *attr, char *buf)
{
	struct simhw_ibdev *sib = rdma_device_to_drv_device(device, struct simhw_ibdev, ib);

	return sysfs_emit(buf, "%s\n", sib->dev->model->hca_type);
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *device, struct device_attribute *attr, char *buf)
{
	struct simhw_ibdev *sib = rdma_device_to_drv_device(device, struct simhw_ibdev, ib);

	return sysfs_emit(buf, "%x\n", sib->dev->model->revision);
}
static DEVICE_ATTR_RO(hw_rev);

/* Thirteen characters as a real one, which would begin with the manufacturer. */
static ssize_t board_id_show(struct device *device, struct device_attribute *attr, char *buf)
{
	struct simhw_ibdev *sib = rdma_device_to_drv_device(device, struct simhw_ibdev, ib);

	return sysfs_emit(buf, "SIM000000%04x\n", sib->dev->model->device);
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *attrs[] = {
	&dev_attr_hca_type.attr, &dev_attr_hw_rev.attr, &dev_attr_board_id.attr, NULL,
};
static const struct attribute_group attr_group = { .attrs = attrs };

static const struct ib_device_ops hca_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_MLX5,
	.uverbs_abi_ver = 1,
	.device_group = &attr_group,
	.get_dev_fw_str = get_dev_fw_str,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.modify_device = modify_device,
	.modify_port = modify_port,
	.process_mad = simhw_process_mad,
	.query_device = query_device,
	.query_gid = query_gid,
	.query_pkey = query_pkey,
	.query_port = query_port,
};

static const struct ib_device_ops roce_ops = {
	.add_gid = add_gid,
	.del_gid = del_gid,
};

static int hca_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct simhw_dev *dev = simhw_pci_to_dev(pdev);
	struct simhw_ibdev *sib;
	char name[16];
	int ret;

	if (!dev)
		return -ENODEV;		/* a real one: not ours */
	ret = pci_enable_device(pdev);
	if (ret)
		return ret;
	sib = ib_alloc_device(simhw_ibdev, ib);
	if (!sib) {
		ret = -ENOMEM;
		goto err_disable;
	}
	sib->dev = dev;
	sib->pdev = pdev;
	sib->ib.node_type = RDMA_NODE_IB_CA;
	sib->ib.phys_port_cnt = 1;
	sib->ib.num_comp_vectors = 1;
	sib->ib.dev.parent = &pdev->dev;
	sib->ib.node_guid = dev->port.node_guid;
	snprintf(sib->ib.node_desc, sizeof(sib->ib.node_desc), "%s %s (simulated)",
		 dev->model->hca_type, dev->model->name);
	ib_set_device_ops(&sib->ib, &hca_ops);
	ib_set_device_ops(&sib->ib, &simhw_verbs_ops);
	if (dev->port.ethernet) {
		ib_set_device_ops(&sib->ib, &roce_ops);
		sib->netdev = simhw_eth_create(sib);
		if (IS_ERR(sib->netdev)) {
			ret = PTR_ERR(sib->netdev);
			goto err_dealloc;
		}
		ret = ib_device_set_netdev(&sib->ib, sib->netdev, 1);
		if (ret)
			goto err_netdev;
	}
	/* By its place, so that a device that is away leaves a gap. */
	snprintf(name, sizeof(name), "mlx5_%d", dev->index);
	ret = ib_register_device(&sib->ib, name, NULL);
	if (ret)
		goto err_netdev;
	pci_set_drvdata(pdev, sib);
	mutex_lock(&simhw_port_lock);
	dev->ib = sib;
	mutex_unlock(&simhw_port_lock);
	return 0;

err_netdev:
	if (sib->netdev)
		simhw_eth_destroy(sib->netdev);
err_dealloc:
	ib_dealloc_device(&sib->ib);
err_disable:
	pci_disable_device(pdev);
	return ret;
}

static void hca_remove(struct pci_dev *pdev)
{
	struct simhw_ibdev *sib = pci_get_drvdata(pdev);

	mutex_lock(&simhw_port_lock);
	sib->dev->ib = NULL;
	mutex_unlock(&simhw_port_lock);
	ib_unregister_device(&sib->ib);
	if (sib->netdev)
		simhw_eth_destroy(sib->netdev);
	ib_dealloc_device(&sib->ib);
	pci_disable_device(pdev);
}

/* No MODULE_DEVICE_TABLE: this module is loaded on purpose only, never because of real hardware. */
static const struct pci_device_id hca_ids[] = {
	{ PCI_VDEVICE(MELLANOX, 0x101b) },
	{ PCI_VDEVICE(MELLANOX, 0x1021) },
	{ }
};

/* The name is what lspci and the RDMA device plugin's selectors see, so it is the real driver's. */
static struct pci_driver hca_driver = {
	.name = "mlx5_core",
	.id_table = hca_ids,
	.probe = hca_probe,
	.remove = hca_remove,
};

int simhw_hca_init(void)
{
	int ret = pci_register_driver(&hca_driver);

	if (ret == -EBUSY)
		pr_err("simhw: the real mlx5_core is loaded; unload it first\n");
	return ret;
}

void simhw_hca_exit(void)
{
	pci_unregister_driver(&hca_driver);
}
