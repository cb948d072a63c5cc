"""The fleet under validation: pyinfra's inventory, seen through testinfra."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import testinfra

from claims.pods import Probe, probes
from cluster import Cluster, NodeState, ProbeResult
from facts.snapshot import Readings, Snapshot
from nodespec import InventoryProblems, NodeSpec, read_all
from nodespec.loading import load

# OpenSSH's names for pyinfra's keys.
SSH_OPTIONS = {
    "ssh_hostname": "HostName",
    "ssh_port": "Port",
    "ssh_user": "User",
    "ssh_key": "IdentityFile",
    "ssh_known_hosts_file": "UserKnownHostsFile",
}


@dataclass(frozen=True)
class Node:
    """One host of the inventory."""

    name: str
    # What a failed test shows of a node is no place for what is secret in its data.
    spec: NodeSpec = field(repr=False)
    data: dict[str, Any] = field(repr=False)
    ssh_config: Path

    @cached_property
    def host(self) -> Any:
        """testinfra's host: read-only by habit, so nothing here may change what it is given."""
        return testinfra.get_host(
            f"ssh://{self.name}", ssh_config=str(self.ssh_config), sudo=bool(self.data.get("_sudo"))
        )

    @cached_property
    def readings(self) -> Readings:
        """The same snapshot, by the same parsers, as the deploy's: one remote command."""
        done = self.host.run("sh -c %s", Snapshot().command())
        assert done.rc == 0, (
            f"{self.name}: want a snapshot, have exit code {done.rc} ({done.stderr}); "
            "look at the connection, and whether sudo asks for a password there"
        )
        return Snapshot().process(done.stdout.splitlines())

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.connect(Path(self.spec.kube_kubeconfig).expanduser())

    @cached_property
    def state(self) -> NodeState | None:
        return self.cluster.node(self.spec.kube_node_name)

    def __str__(self) -> str:
        return self.name


@cache
def fleet(inventory: str) -> dict[str, Node]:
    """
    The nodes of *inventory*.

    Raises ``InventoryProblems`` with all that is wrong with it, before any host is contacted.
    """
    loaded = load(inventory)
    specs, problems = read_all(loaded.data)
    if problems or loaded.problems:
        raise InventoryProblems([*loaded.problems, *problems])
    config = Path(tempfile.mkdtemp(prefix="rackwright-")) / "ssh_config"
    config.write_text("".join(ssh_config(name, dict(loaded.data[name])) for name in specs))
    return {name: Node(name, spec, dict(loaded.data[name]), config) for name, spec in specs.items()}


def ssh_config(name: str, data: dict[str, Any]) -> str:
    """OpenSSH's configuration for one host, as strict with its key as pyinfra is."""
    lines = [f"Host {name}"]
    for key, option in SSH_OPTIONS.items():
        if value := data.get(key):
            lines.append(f"  {option} {value}")
    lines += ["  StrictHostKeyChecking yes", "  IdentitiesOnly yes", "  BatchMode yes"]
    if included := data.get("ssh_config_file"):
        lines.append(f"Include {os.path.expanduser(included)}")
    return "\n".join(lines) + "\n"


@cache
def pods(inventory: str) -> dict[tuple[str, str], list[tuple[Probe, ProbeResult]]]:
    """Run the user-side pods of all nodes of a cluster at once; by node and kind."""
    asked: dict[int, tuple[Cluster, list[tuple[str, Probe]]]] = {}
    for node in fleet(inventory).values():
        _, list_ = asked.setdefault(id(node.cluster), (node.cluster, []))
        list_ += [(node.name, probe) for probe in probes(node.spec)]
    found = defaultdict[tuple[str, str], list[tuple[Probe, ProbeResult]]](list)
    for cluster, of_cluster in asked.values():
        results = cluster.probes([probe.manifest for _, probe in of_cluster], timeout_s=300)
        for (name, probe), result in zip(of_cluster, results, strict=True):
            found[name, probe.kind].append((probe, result))
    return found
