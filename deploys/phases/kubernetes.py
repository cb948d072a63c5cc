"""Kubernetes: the host is a Ready node of its cluster, closed until it has passed validation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import ip_interface, ip_network

from pyinfra.api import StringCommand, deploy
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import Taint
from deploys.phases import preflight
from facts.cni import BRIDGE, PodBridge
from facts.files import Files
from facts.kubernetes import BOOTSTRAP_CONF, CNI_FOLDER, Kubelet
from facts.os import Machine
from facts.packages import Packages
from nodespec import NodeSpec
from operations import kubeadm, node, packages, repositories
from operations.failure import calling
from operations.files import set_aside
from operations.have import Have
from operations.step import Commands, Refusal, Step


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (kubeadm.JOIN_FILE, *repositories.files("kubernetes"))


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
            disrupts=True,  # it ends every pod, if its kubelet's credentials were lost later on
            remedy="run `kubeadm reset -f` on the host, read what it says, then run again",
        )  # fmt: skip

    clean = "a clean start" if kubelet.half_joined else None
    yield from without_old_bridge(have, waits_for=clean)
    there = have.node
    if kubelet.cni_configs:
        # Nothing of this life can have written them, and the first by name is what pods get.
        left = [f"{CNI_FOLDER}/{name}" for name in kubelet.cni_configs]
        yield Step(
            "set the pod network of an earlier cluster aside",
            f"no configuration in {CNI_FOLDER} before the join", ", ".join(left),
            lambda: map(set_aside, left), waits_for=clean, disrupts=there is not None,
            remedy=f"look what writes to {CNI_FOLDER} on a host of no cluster",
        )  # fmt: skip

    def join() -> Commands:
        yield StringCommand("systemctl enable kubelet.service")
        yield kubeadm.join(spec, have.cluster)

    yield Step(
        "join the cluster", f"a node of {spec.kube_api_server}",
        "not joined" + (", though a Node object of the name is there" if there else ""), join,
        waits_for="kubeadm" if install else "a clean start" if kubelet.half_joined else None,
        disrupts=there is not None,  # nothing is left of what the Node object was validated as
        remedy="read what kubeadm said, in run.log",
    )  # fmt: skip
    yield Step(
        "wait for the node to be Ready", "Ready", "no kubelet", lambda: iter(()),
        waits_for="the join",
    )  # fmt: skip
    yield from as_asked(spec, have, waits_for="the node to be Ready")


def without_old_bridge(have: Have, waits_for: str | None = None) -> Iterator[Step | Refusal]:
    """
    The pod network's bridge is of this membership, not of an earlier one (failures KAD-11).

    ``kubeadm reset`` leaves it with its address. In a cluster that gives the node other addresses
    no pod starts: "cni0" already has an IP address different from ...
    """
    bridge = have[PodBridge]
    if not bridge.present:
        return
    if have[Kubelet].joined:
        given = have.node.pod_cidr if have.node else ""
        if not given or not bridge.addresses:
            return  # not known yet what the node is given, or nothing in the way
        if any(ip_interface(address) in ip_network(given) for address in bridge.addresses):
            return
        if bridge.ports:
            return  # pods are on it: this cluster's network plugin has addresses of its own
    elif bridge.ports:
        yield Refusal(
            "kubernetes", "a host on which no pod of an earlier cluster runs",
            f"{bridge.ports} attached to {BRIDGE}",
            "run `kubeadm reset -f` on the host, and look what runs there with `crictl pods`",
        )  # fmt: skip
        return
    yield Step(
        "remove the pod bridge of an earlier cluster",
        f"no {BRIDGE}, or one with an address of this node's pod network",
        ", ".join(bridge.addresses) or "one without an address",
        lambda: iter([StringCommand("ip", "link", "delete", BRIDGE)]),
        waits_for=waits_for, remedy=f"look what makes {BRIDGE} with `ip -d link show {BRIDGE}`",
    )  # fmt: skip


def joined(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    """What a host that has joined may still lack."""
    yield from without_old_bridge(have)
    kubelet, there, boot_id = have[Kubelet], have.node, have[Machine].boot_id
    if have[Files][kubeadm.JOIN_FILE] is not None or kubelet.bootstrapping:
        yield Step(
            "remove what the join has left", "no file with a token", "one",
            lambda: iter([kubeadm.forget_credentials()]),
            remedy=f"remove {kubeadm.JOIN_FILE} and {BOOTSTRAP_CONF}, and look what puts them back",
        )  # fmt: skip

    stopped = not kubelet.active or not kubelet.enabled
    if there is None or stopped or (now := kubeadm.lacks(spec, there, boot_id)):
        # It makes its Node object soon after its start, and never again.
        age_s = kubelet.running_s
        deleted = there is None and age_s is not None and age_s > kubeadm.REGISTERS_S

        def ready() -> Commands:
            # Without a word to systemd to read all units anew (failures RTM-13).
            yield StringCommand("systemctl enable --no-reload --now kubelet.service")
            yield kubeadm.wait_ready(spec, have.cluster, boot_id=boot_id, restart=deleted)

        yield Step(
            "wait for the node to be Ready", "Ready",
            "no Node object" if there is None
            else "a kubelet that is stopped or not enabled" if stopped else now,
            ready, remedy="read `journalctl -u kubelet`",
        )  # fmt: skip
        yield from as_asked(spec, have, waits_for="the node to be Ready")
        return
    if old := kubeadm.outdated(spec, there):
        yield Step(
            "restart the kubelet into its version", f"kubelet {spec.kube_version} running", old,
            lambda: iter([kubeadm.wait_ready(spec, have.cluster, restart=True)]),
            # Pods stay; but device plugins register anew, and for that while offer nothing.
            disrupts=True, remedy="read `journalctl -u kubelet`",
        )  # fmt: skip
    yield from as_asked(spec, have)


def as_asked(spec: NodeSpec, have: Have, *, waits_for: str | None = None) -> Iterator[Step]:
    """
    Labels and taints of the Node object.

    + waits_for: why they are only shown yet, if so
    """
    if step := kubeadm.labelled("label the node", spec.kube_labels, have, waits_for=waits_for):
        yield step
    there = have.node
    if there is None:
        return  # a kubelet that makes its Node object puts its taints on it
    # Only what is asked for is put there; taints of others are theirs, and stay.
    lacking = [taint for taint in map(Taint.parse, spec.kube_taints) if taint not in there.taints]
    if lacking:

        def taint(state: State, host: Host) -> None:
            for entry in lacking:
                have.cluster.taint(spec.kube_node_name, entry)

        yield Step(
            "taint the node as asked", ", ".join(map(str, lacking)),
            ", ".join(map(str, there.taints)) or "none",
            lambda: iter([calling(taint)]),
            disrupts=any(entry.effect == "NoExecute" for entry in lacking),  # it evicts
            waits_for=waits_for, remedy="look for a controller that takes taints off nodes",
        )  # fmt: skip


@deploy("Kubernetes")
def kubernetes() -> None:
    node.converge(name="Converge Kubernetes", phases=[preflight, sys.modules[__name__]])
