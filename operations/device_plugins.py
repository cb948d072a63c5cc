"""The cluster's side of the device plugins: one object for all nodes, one pod per node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from claims.resources import differences
from cluster import Cluster, ClusterError, NodeState, PodState
from cluster.manifests import plugin_pods
from nodespec import NodeSpec
from operations.failure import calling, tell

TIMEOUT_S = 420
"""For a plugin's image to be pulled, and its devices to be offered."""
REPAIR_AFTER_S = 60
"""How long running plugins may offer something else before they are restarted, once."""
POLL_S = 2.0

_applying = BoundedSemaphore()
"""Nodes arrive together; what they apply is one object."""


def apply(cluster: Cluster, manifests: Sequence[dict[str, Any]]) -> FunctionCommand:
    """Apply what differs, by whichever node arrives first."""

    def function(state: State, host: Host) -> None:
        with _applying:
            for manifest in manifests:
                if cluster.differs(manifest):
                    cluster.apply(manifest)

    return calling(function)


def replace(cluster: Cluster, pods: Sequence[PodState]) -> FunctionCommand:
    """Delete plugin pods of this node: their DaemonSet makes new ones, which read the new file."""

    def function(state: State, host: Host) -> None:
        for pod in pods:
            cluster.delete_pod(pod)

    return calling(function)


def lacking(
    spec: NodeSpec, node: NodeState | None, pods: Sequence[PodState], names: Sequence[str]
) -> list[str]:
    """What is not as it should be with a node's plugins and what they offer, one clause each."""
    if node is None:
        return ["no Node object"]
    clauses = differences(spec, node.allocatable)
    for name in names:
        mine = plugin_pods(list(pods), name, spec.kube_namespace)
        if not mine:
            clauses.append(f"no pod of {name}")
        elif len(mine) > 1:
            # The one that ends takes the socket of the one that starts with it.
            # Source: github.com/Mellanox/k8s-rdma-shared-dev-plugin issue 319
            clauses.append(f"{len(mine)} pods of {name}")
        elif not mine[0].ready or mine[0].deleting:
            # What it has offered before stays in the Node's list for a while.
            clauses.append(f"{mine[0].name} {'ending' if mine[0].deleting else 'not ready'}")
    return clauses


def wait_offered(spec: NodeSpec, cluster: Cluster, names: Sequence[str]) -> FunctionCommand:
    """
    Wait until the node offers exactly what it has; fail it with the plugins' own reasons.

    Plugins that run and offer something else are restarted once: they look at the devices and at
    the kubelet when they start, and some never again.

    + names: of the plugins that must run here
    """
    return calling(_wait_offered, spec, cluster, tuple(names))


def _wait_offered(
    state: State, host: Host, spec: NodeSpec, cluster: Cluster, names: tuple[str, ...]
) -> bool:
    started = time.monotonic()
    running_since = started
    restarted = False
    said = ""
    while True:
        pods: list[PodState] = []
        try:
            pods = cluster.pods_on(spec.kube_node_name)
            left = lacking(spec, cluster.node(spec.kube_node_name), pods, names)
            if not left:
                return True
            now = "; ".join(left)
        except ClusterError as error:
            now = str(error)
        if now != said:
            host.log(f"waiting for the device plugins: {now}")
            said = now
        mine = [pod for name in names for pod in plugin_pods(pods, name, spec.kube_namespace)]
        moment = time.monotonic()
        if len(mine) != len(names) or not all(pod.ready and not pod.deleting for pod in mine):
            running_since = moment
        if not restarted and moment - running_since > REPAIR_AFTER_S:
            host.log("restarting the device plugins of this node: they offer something else")
            restarted = True
            for pod in mine:
                cluster.delete_pod(pod)
        if moment - started > TIMEOUT_S:
            break
        gevent.sleep(POLL_S)
    tell(
        host,
        f"device plugins: want what the hardware has within {TIMEOUT_S} s, have {said}; "
        + "; ".join(reasons(spec, cluster, names)),
    )
    return False


def reasons(spec: NodeSpec, cluster: Cluster, names: tuple[str, ...]) -> list[str]:
    """What the plugins' pods on the node say of themselves."""
    try:
        pods = cluster.pods_on(spec.kube_node_name)
    except ClusterError as error:
        return [str(error)]
    found = []
    for name in names:
        mine = plugin_pods(pods, name, spec.kube_namespace)
        if not mine:
            found.append(f"{name} has no pod here: look at its DaemonSet's events")
        for pod in mine:
            if pod.waiting_reason or not pod.ready:
                why = pod.waiting_reason or pod.phase
                if said := cluster.warning(pod):
                    why = f"{why}, {said}"
                found.append(f"{pod.name}: {why}; read its log and events")
    return found or ["the plugins run: read their logs"]
