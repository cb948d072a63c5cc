"""All hosts of an inventory: their specs, and what they have wrong only together."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyinfra.api.inventory import Inventory

from nodespec import files
from nodespec.foreign import over_ssh
from nodespec.model import CLUSTER_WIDE, NodeSpec
from nodespec.problems import HostProblem, InventoryProblems, Problem, natural, short, show
from nodespec.reading import merged, read

HostData = Mapping[str, Mapping[str, Any]]
"""Merged data by the host's name."""


def of_all(inventory: Inventory, *, local_files: bool = True) -> dict[str, NodeSpec]:
    """
    Read the specs of all hosts, by name in natural order; once for each inventory, since every
    host's deploy asks for them.

    Raises ``InventoryProblems`` with all problems of all hosts.

    + local_files: whether the files that keys name on this machine must exist
    """
    if inventory not in _specs:
        specs, problems = read_all(data_of(inventory), local_files=local_files)
        if problems:
            raise InventoryProblems(problems)
        _specs[inventory] = specs
    return _specs[inventory]


_specs: WeakKeyDictionary[Inventory, dict[str, NodeSpec]] = WeakKeyDictionary()


def data_of(inventory: Inventory) -> dict[str, dict[str, Any]]:
    """Merged data of each host, by name."""
    return {host.name: merged(host) for host in inventory}


def read_all(
    data: HostData, *, local_files: bool = True
) -> tuple[dict[str, NodeSpec], list[HostProblem]]:
    """Read the specs of hosts from their merged data, with every problem found."""
    specs: dict[str, NodeSpec] = {}
    problems: list[HostProblem] = []
    if not data:
        nothing = Problem("hosts", "at least one host", "none", "list them in the inventory")
        return specs, [HostProblem(("inventory",), nothing)]
    for host in sorted(data, key=natural):
        spec, found = read(NodeSpec, host, data[host])
        if spec is not None:
            specs[host] = spec
        problems += [HostProblem((host,), problem) for problem in found]
    if local_files:
        problems += files.missing(specs, data)
    problems += _addresses(data)
    problems += _clusters(specs)
    return specs, problems


def _shared(names: Iterable[tuple[str, str]], key: str, want: str, todo: str) -> list[HostProblem]:
    """Return a problem for each value that more than one host has."""
    hosts = defaultdict(list)
    for host, value in names:
        hosts[value].append(host)
    return [
        HostProblem(
            tuple(same), Problem(key, want, f"{value} on {len(same)} hosts: {_few(same)}", todo)
        )
        for value, same in hosts.items()
        if len(same) > 1
    ]


def _few(hosts: list[str]) -> str:
    return ", ".join(map(short, hosts[:4])) + (", ..." if len(hosts) > 4 else "")


def _addresses(data: HostData) -> list[HostProblem]:
    return _shared(
        (
            (
                host,
                f"{_address(str(values.get('ssh_hostname') or host))}:{values.get('ssh_port', 22)}",
            )
            for host, values in data.items()
            if over_ssh(host)
        ),
        "ssh_hostname",
        "an address of its own",
        "two of these are one machine: correct the copied line",
    )


def _address(name: str) -> str:
    """Return *name* so that two ways to write one address are the same."""
    try:
        address = ipaddress.ip_address(name)
        return f"[{address}]" if address.version == 6 else str(address)
    except ValueError:
        return name.lower().removesuffix(".")


def _clusters(specs: Mapping[str, NodeSpec]) -> list[HostProblem]:
    by_cluster: dict[str, dict[str, NodeSpec]] = defaultdict(dict)
    by_kubeconfig: dict[str, dict[str, NodeSpec]] = defaultdict(dict)
    for host, spec in specs.items():
        by_cluster[spec.kube_api_server][host] = spec
        by_kubeconfig[str(spec.kube_kubeconfig)][host] = spec

    problems: list[HostProblem] = []
    for kubeconfig, members in by_kubeconfig.items():
        problems += _differing(
            members,
            "kube_api_server",
            f"one API server for the cluster of {kubeconfig}",
            "give each cluster a kubeconfig of its own",
        )
    for members in by_cluster.values():
        problems += _shared(
            ((host, spec.kube_node_name) for host, spec in members.items()),
            "kube_node_name",
            "a name of its own in the cluster",
            "rename the host or set kube_node_name",
        )
        problems += _shared(
            ((host, spec.kube_node_ip) for host, spec in members.items() if spec.kube_node_ip),
            "kube_node_ip",
            "an address of its own",
            "correct the copied line",
        )
        for key in CLUSTER_WIDE:
            problems += _differing(
                members,
                key,
                "one value for all nodes of a cluster",
                "set it in group_data/all.py only: one object of the cluster carries it",
            )
    return problems


def _differing(
    members: Mapping[str, NodeSpec], key: str, want: str, todo: str
) -> list[HostProblem]:
    values: dict[str, list[str]] = defaultdict(list)
    for host, spec in members.items():
        values[show(getattr(spec, key))].append(host)
    if len(values) == 1:
        return []
    have = "; ".join(f"{value} on {_few(hosts)}" for value, hosts in values.items())
    return [HostProblem(tuple(members), Problem(key, want, have, todo))]
