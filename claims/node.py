"""The Node object says what the host is."""

from __future__ import annotations

from collections.abc import Iterator

from claims.finding import Finding
from claims.resources import differences
from cluster import CLOSED_TAINT, NodeState, Taint
from facts.os import Machine
from facts.snapshot import Readings
from nodespec import NodeSpec


def ready(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    if node is None:
        yield Finding("kubernetes", "a Node object", "none", "run deploys/gpu_node.py")
    elif not node.ready:
        yield Finding(
            "kubernetes", "Ready", f"{node.ready_reason}: {node.ready_message}",
            "read `journalctl -u kubelet`",
        )  # fmt: skip


def of_this_host(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """The Node object is this machine's, and of its present boot."""
    machine = have.of(Machine)
    if node is None or not node.ready:
        return
    if machine.machine_id and node.machine_id != machine.machine_id:
        yield Finding(
            "kubernetes", f"Node {node.name} to be this machine",
            f"one with machine-id {node.machine_id}",
            "find the other machine of that name",
        )  # fmt: skip
    elif node.boot_id and node.boot_id != machine.boot_id:
        yield Finding(
            "kubernetes", f"Node {node.name} of the present boot", "one of an earlier boot",
            "read `journalctl -u kubelet`: it has not reported since",
        )  # fmt: skip


def resources(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """Allocatable resources equal what the hardware has."""
    if node is not None and (left := differences(spec, node.allocatable)):
        yield Finding(
            "device plugins", "what the hardware has", "; ".join(left), "read the plugins' logs"
        )


def taints(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """An open node keeps out whom it is asked to keep out."""
    if node is None:
        return
    for taint in map(Taint.parse, spec.kube_taints):
        if taint not in node.taints:
            yield Finding(
                "kubernetes", f"the taint {taint}",
                ", ".join(str(other) for other in node.taints if other != CLOSED_TAINT) or "none",
                "run deploys/gpu_node.py",
            )  # fmt: skip


def version(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    if node is not None and node.kubelet_version.removeprefix("v") != spec.kube_version:
        yield Finding(
            "kubernetes", f"kubelet {spec.kube_version}", node.kubelet_version or "unknown",
            "run deploys/gpu_node.py",
        )  # fmt: skip
