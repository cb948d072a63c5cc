// SPDX-License-Identifier: GPL-2.0
/* The network interface of an HCA with Ethernet link layer: what is sent is dropped. */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include "simhw.h"

struct eth_priv {
	struct simhw_ibdev *sib;
};

static struct simhw_ibdev *netdev_to_simhw(struct net_device *netdev)
{
	struct eth_priv *priv = netdev_priv(netdev);

	return priv->sib;
}

/* The RDMA port follows the interface; the stack asks again when told. */
static void announce(struct simhw_ibdev *sib, enum ib_event_type type)
{
	struct ib_event event = { .device = &sib->ib, .element.port_num = 1, .event = type };

	/* Neither before the RDMA device is there, nor after. */
	mutex_lock(&simhw_port_lock);
	if (sib->dev->ib == sib)
		ib_dispatch_event(&event);
	mutex_unlock(&simhw_port_lock);
}

static int eth_open(struct net_device *netdev)
{
	netif_start_queue(netdev);
	if (netif_carrier_ok(netdev))
		announce(netdev_to_simhw(netdev), IB_EVENT_PORT_ACTIVE);
	return 0;
}

static int eth_stop(struct net_device *netdev)
{
	netif_stop_queue(netdev);
	if (netif_carrier_ok(netdev))
		announce(netdev_to_simhw(netdev), IB_EVENT_PORT_ERR);
	return 0;
}

static netdev_tx_t eth_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	netdev->stats.tx_packets++;
	netdev->stats.tx_bytes += skb->len;
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static int eth_phys_port_name(struct net_device *netdev, char *name, size_t len)
{
	strscpy(name, "p0", len);
	return 0;
}

static const struct net_device_ops eth_netdev_ops = {
	.ndo_open = eth_open,
	.ndo_stop = eth_stop,
	.ndo_start_xmit = eth_xmit,
	.ndo_get_phys_port_name = eth_phys_port_name,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static void eth_drvinfo(struct net_device *netdev, struct ethtool_drvinfo *info)
{
	struct simhw_ibdev *sib = netdev_to_simhw(netdev);

	strscpy(info->driver, "mlx5_core", sizeof(info->driver));
	strscpy(info->version, SIMHW_VERSION "-simulated", sizeof(info->version));
	strscpy(info->fw_version, sib->dev->model->fw_ver, sizeof(info->fw_version));
	strscpy(info->bus_info, pci_name(sib->pdev), sizeof(info->bus_info));
}

static int eth_link_settings(struct net_device *netdev, struct ethtool_link_ksettings *settings)
{
	bool up = netif_carrier_ok(netdev);

	settings->base.port = PORT_DA;
	settings->base.autoneg = AUTONEG_ENABLE;
	settings->base.duplex = up ? DUPLEX_FULL : DUPLEX_UNKNOWN;
	settings->base.speed = up ? READ_ONCE(netdev_to_simhw(netdev)->dev->port.rate_gbps) * 1000 :
		SPEED_UNKNOWN;
	return 0;
}

static const struct ethtool_ops eth_ethtool_ops = {
	.get_drvinfo = eth_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = eth_link_settings,
};

void simhw_eth_carrier(struct simhw_ibdev *sib)
{
	if (READ_ONCE(sib->dev->port.state) == IB_PORT_ACTIVE)
		netif_carrier_on(sib->netdev);
	else
		netif_carrier_off(sib->netdev);
}

struct net_device *simhw_eth_create(struct simhw_ibdev *sib)
{
	struct net_device *netdev = alloc_etherdev(sizeof(struct eth_priv));
	struct eth_priv *priv;
	int ret;

	if (!netdev)
		return ERR_PTR(-ENOMEM);
	priv = netdev_priv(netdev);
	priv->sib = sib;
	SET_NETDEV_DEV(netdev, &sib->pdev->dev);
	netdev->netdev_ops = &eth_netdev_ops;
	netdev->ethtool_ops = &eth_ethtool_ops;
	netdev->max_mtu = 9978;
	eth_hw_addr_set(netdev, sib->dev->port.mac);
	sib->netdev = netdev;
	simhw_eth_carrier(sib);
	ret = register_netdev(netdev);
	if (ret) {
		free_netdev(netdev);
		return ERR_PTR(ret);
	}
	return netdev;
}

void simhw_eth_destroy(struct net_device *netdev)
{
	unregister_netdev(netdev);
	free_netdev(netdev);
}
