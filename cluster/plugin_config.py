"""What the device plugins read on a node, and what they would say to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import yaml

from cluster.api import Json

MigStrategy = Literal["none", "single", "mixed"]

HEADER: Final = "# Written by rackwright, cluster/plugin_config.py. Local changes are lost.\n"

# Netlink's names. "ethernet" is the one everybody writes, and matches nothing.
# Source: github.com/Mellanox/k8s-rdma-shared-dev-plugin, README.md and issue 113
LINK_TYPES: Final = ("ether", "infiniband")

# The plugin looks for devices again that often. At boot it may start before the HCA's driver has
# made its devices, and then has none until the next look.
UPDATE_INTERVAL_S: Final = 60


class RdmaPort(NamedTuple):
    """One port that pods may use."""

    vendor: str
    """PCI vendor id in lower-case hexadecimal, as in ``15b3``."""
    device_id: str
    """PCI device id in the same form, as in ``1021``."""
    ifname: str
    """Network device of the PCI function; empty if it has none (InfiniBand without IPoIB)."""
    link_type: str
    """``ether`` or ``infiniband``."""


def nvidia_plugin_config(mig_strategy: MigStrategy) -> str:
    """The NVIDIA device plugin's configuration file.

    # Source: NVIDIA/k8s-device-plugin v0.20.0, README.md, "Configuration File" (read 2026-11-30)
    """
    config = {
        "version": "v1",
        "flags": {
            "migStrategy": mig_strategy,
            # A plugin that cannot reach the driver ends and is started again: the other choice is a
            # pod that runs and offers nothing, for ever.
            "failOnInitError": True,
        },
    }
    return HEADER + yaml.safe_dump(config, sort_keys=False)


def rdma_plugin_config(
    resource_name: str, prefix: str, max_shares: int, ports: Sequence[tuple[str, str, str, str]]
) -> str:
    """
    The RDMA shared device plugin's configuration file, for exactly these ports of one node.

    + resource_name: as in ``hca_shared_devices_a``; pods ask for ``rdma/hca_shared_devices_a``
    + prefix: as in ``rdma``
    + max_shares: how many pods may use the ports at once; not the number of HCAs
    + ports: see :class:`RdmaPort`; at least one
    """
    wanted = [RdmaPort(*port) for port in ports]
    selectors: dict[str, list[str]] = {
        "vendors": _sorted(port.vendor for port in wanted),
        "deviceIDs": _sorted(port.device_id for port in wanted),
    }
    # A function without a network device has neither name nor link type in the plugin's eyes: to
    # select by them would leave it out.
    if all(port.ifname for port in wanted):
        selectors["ifNames"] = _sorted(port.ifname for port in wanted)
        selectors["linkTypes"] = _sorted(port.link_type for port in wanted)
    config = {
        "periodicUpdateInterval": UPDATE_INTERVAL_S,
        "configList": [
            {
                "resourceName": resource_name,
                "resourcePrefix": prefix,
                "rdmaHcaMax": max_shares,
                "selectors": selectors,
            }
        ],
    }
    if problems := rdma_config_problems(config):
        raise ValueError(f"rdma device plugin: {'; '.join(problems)}")
    return json.dumps(config, indent=2) + "\n"


def _sorted(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


def rdma_config_problems(config: Json) -> list[str]:
    """Why the plugin would not start with *config*, or would start and offer nothing.

    # Source: Mellanox/k8s-rdma-shared-dev-plugin v1.5.3, pkg/resources/resources_manager.go,
    # ValidateConfigs; pkg/types/types.go (read 2026-11-30)
    """
    problems: list[str] = []
    interval = config.get("periodicUpdateInterval", UPDATE_INTERVAL_S)
    if not _natural(interval):
        problems.append(f"periodicUpdateInterval: want seconds >= 0, have {interval!r}")
    entries = config.get("configList") or []
    if not entries:
        problems.append("configList: want at least one resource, have none")
    seen: set[str] = set()
    for entry in entries:
        problems += _entry_problems(entry)
        name = entry.get("resourceName", "")
        if name in seen:
            problems.append(f"resourceName: want each once, have {name!r} twice")
        seen.add(name)
    return problems


def _entry_problems(entry: Json) -> list[str]:
    problems = []
    name = entry.get("resourceName", "")
    if not re.fullmatch(r"[a-zA-Z0-9_]+", name):
        problems.append(f"resourceName: want letters, digits and underscores, have {name!r}")
    if not _natural(shares := entry.get("rdmaHcaMax", 0)):
        problems.append(f"rdmaHcaMax: want a number >= 0, have {shares!r}")
    elif shares == 0:
        problems.append("rdmaHcaMax: want at least 1 share, have 0: nothing would be offered")
    selectors = {key: values for key, values in (entry.get("selectors") or {}).items() if values}
    devices = entry.get("devices") or []
    if selectors and devices:
        problems.append("selectors, devices: want one of the two, have both")
    if not selectors and not devices:
        problems.append("selectors: want at least one, have none")
    for key in ("vendors", "deviceIDs"):
        for value in selectors.get(key, []):
            if not re.fullmatch(r"[0-9a-f]{4}", value):
                problems.append(f"{key}: want four lower-case hexadecimal digits, have {value!r}")
    for value in selectors.get("linkTypes", []):
        if value not in LINK_TYPES:
            hint = "; did you mean ether" if "eth" in value.lower() else ""
            problems.append(f"linkTypes: want {' or '.join(LINK_TYPES)}, have {value!r}{hint}")
    return problems


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def rdma_config_matches(config: Json, ports: Iterable[tuple[str, str, str, str]]) -> list[RdmaPort]:
    """Which of a node's ports the plugin would offer: what it does itself, before it runs.

    # Source: Mellanox/k8s-rdma-shared-dev-plugin v1.5.3, pkg/resources/resources_manager.go,
    # GetFilteredDevices: "or" within a list, "and" between lists, compared as strings
    """
    return [
        port
        for port in map(RdmaPort._make, ports)
        if any(_selects(entry.get("selectors") or {}, port) for entry in config["configList"])
    ]


def _selects(selectors: Json, port: RdmaPort) -> bool:
    values = {
        "vendors": port.vendor,
        "deviceIDs": port.device_id,
        "ifNames": port.ifname,
        "linkTypes": port.link_type if port.ifname else "",
    }
    return all(not selectors.get(key) or value in selectors[key] for key, value in values.items())
