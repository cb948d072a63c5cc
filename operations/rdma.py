"""Which ports of a host pods may use."""

from __future__ import annotations

from claims.hardware import hcas
from cluster.plugin_config import RdmaPort
from facts.infiniband import Infiniband
from facts.pci import PciDevices
from nodespec import NodeSpec
from operations.have import Have

LINK_TYPES = {"infiniband": "infiniband", "ethernet": "ether"}


def selected_ports(spec: NodeSpec, have: Have) -> list[RdmaPort]:
    """
    A row per HCA that passes: of the declared model and link layer, with an active port.

    Adapters of another model (storage, management) are never among them.
    """
    state = have[Infiniband]
    found = []
    for pci in hcas(have[PciDevices], spec):
        device = state.at(pci.address)
        if device is None or not any(
            port.state == "ACTIVE" and port.link_layer == spec.hca_link_layer
            for port in device.ports
        ):
            continue
        found.append(
            RdmaPort(
                vendor=pci.vendor,
                device_id=pci.device,
                ifname=device.netdevs[0] if device.netdevs else "",
                link_type=LINK_TYPES[spec.hca_link_layer],
            )
        )
    return found
