"""Kubernetes: the host is a Ready node of its cluster, closed until it has passed validation."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyinfra.api import FunctionCommand, StringCommand, deploy
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import NodeState
from cluster.manifests import NVIDIA_NODE_LABEL, RDMA_NODE_LABEL
from deploys.phases import preflight
from facts.files import Files
from facts.kubernetes import Kubelet
from facts.packages import Packages
from nodespec import NodeSpec
from operations import kubeadm, node, packages, repositories
from operations.have import Have
from operations.step import Commands, Refusal, Step


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (kubeadm.JOIN_FILE, *repositories.files("kubernetes"))


def labels(spec: NodeSpec) -> dict[str, str]:
    """Labels that the node is to have: those asked for, and those that place the device plugins."""
    ours = {}
    if spec.gpu_count:
        ours[NVIDIA_NODE_LABEL] = "true"
    if spec.hca_count and spec.rdma_required:
        ours[RDMA_NODE_LABEL] = "true"
    return {**spec.kube_labels, **ours}


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    yield from repositories.present("kubernetes", spec, have)
    install = packages.installed(
        "install kubelet and kubeadm",
        {
            "kubelet": spec.kube_version,
            "kubeadm": spec.kube_version,
            "cri-tools": None,
            "kubernetes-cni": None,
            # The kubelet's package no longer asks for them, its join checks do.
            "conntrack": None,
            "ethtool": None,
            "iptables": None,
            "socat": None,
        },
        have,
        hold=True,
        disrupts=have[Packages].version("kubelet") is not None,
    )
    if install:
        yield install

    kubelet = have[Kubelet]
    if kubelet.joined:
        yield from joined(spec, have)
        return
    if kubelet.half_joined:

        def undo() -> Commands:
            yield kubeadm.reset()

        yield Step(
            "undo the join that was cut off", "either joined or not", "half of a join", undo,
            waits_for="kubeadm" if install else None,
        )  # fmt: skip

    there = have.node

    def join() -> Commands:
        yield StringCommand("systemctl enable kubelet.service")
        yield kubeadm.join(spec, have.cluster)

    yield Step(
        "join the cluster", f"a node of {spec.kube_api_server}",
        "not joined" + (", though a Node object of the name is there" if there else ""), join,
        waits_for="kubeadm" if install else "a clean start" if kubelet.half_joined else None,
        remedy="read what kubeadm said",
    )  # fmt: skip
    yield Step(
        "wait for the node to be Ready", "Ready", "no kubelet", lambda: iter(()),
        waits_for="the join",
    )  # fmt: skip


def joined(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    """What a host that has joined may still lack."""
    if have[Files][kubeadm.JOIN_FILE] is not None:

        def remove() -> Commands:
            yield StringCommand("rm", "-f", kubeadm.JOIN_FILE)

        yield Step("remove the used join file", "no such file", "one with a token", remove)

    kubelet, there = have[Kubelet], have.node
    if there is None or not there.ready or not kubelet.active or not kubelet.enabled:

        def ready() -> Commands:
            yield StringCommand("systemctl enable --now kubelet.service")
            yield kubeadm.wait_ready(spec, have.cluster)

        yield Step(
            "wait for the node to be Ready", "Ready",
            "no Node object" if there is None
            else f"{there.ready_reason}: {there.ready_message}" if not there.ready
            else "Ready, with a kubelet that is stopped or not enabled",
            ready,
        )  # fmt: skip
        return
    yield from as_asked(spec, have, there)


def as_asked(spec: NodeSpec, have: Have, there: NodeState) -> Iterator[Step]:
    """Labels and taints of the Node object."""
    wanted = labels(spec)
    missing = {key: value for key, value in wanted.items() if there.labels.get(key) != value}
    if missing:

        def label(state: State, host: Host) -> None:
            have.cluster.label(spec.kube_node_name, missing)

        yield Step(
            "label the node", ", ".join(sorted(missing)), "another value or none",
            lambda: iter([FunctionCommand(label, (), {})]),
        )  # fmt: skip
    lacking = [
        taint for taint in map(kubeadm.parse_taint, spec.kube_taints) if taint not in there.taints
    ]
    if lacking:

        def taint(state: State, host: Host) -> None:
            for entry in lacking:
                have.cluster.taint(spec.kube_node_name, entry)

        yield Step(
            "taint the node as asked", ", ".join(map(str, lacking)), "no such taint",
            lambda: iter([FunctionCommand(taint, (), {})]),
        )  # fmt: skip


@deploy("Kubernetes")
def kubernetes() -> None:
    node.converge(name="Converge Kubernetes", phases=[preflight, sys.modules[__name__]])
