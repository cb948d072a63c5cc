"""The cluster's side of the device plugins: one object for all nodes, one pod per node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from pyinfra import logger
from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from claims.resources import differences
from cluster import Cluster, ClusterError, PodState
from nodespec import NodeSpec

TIMEOUT_S = 420
"""For a plugin's image to be pulled, and its devices to be offered."""

_applying = BoundedSemaphore()
"""Nodes arrive together; what they apply is one object."""


def apply(cluster: Cluster, manifests: Sequence[dict[str, Any]]) -> FunctionCommand:
    """Apply what differs, by whichever node arrives first."""

    def function(state: State, host: Host) -> None:
        with _applying:
            for manifest in manifests:
                if cluster.differs(manifest):
                    cluster.apply(manifest)

    return FunctionCommand(function, (), {})


def replace(cluster: Cluster, pods: Sequence[PodState]) -> FunctionCommand:
    """Delete plugin pods of this node: their DaemonSet makes new ones, which read the new file."""

    def function(state: State, host: Host) -> None:
        for pod in pods:
            cluster.delete_pod(pod)

    return FunctionCommand(function, (), {})


def wait_offered(spec: NodeSpec, cluster: Cluster, names: Sequence[str]) -> FunctionCommand:
    """
    Wait until the node offers exactly what it has; fail it with the plugins' own reasons.

    + names: of the plugins that must run here
    """
    return FunctionCommand(_wait_offered, (spec, cluster, tuple(names)), {})


def _wait_offered(
    state: State, host: Host, spec: NodeSpec, cluster: Cluster, names: tuple[str, ...]
) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    said = ""
    while True:
        try:
            node = cluster.node(spec.kube_node_name)
            left = differences(spec, node.allocatable) if node else ["no Node object"]
            if not left:
                return True
            now = "; ".join(left)
        except ClusterError as error:
            now = str(error)
        if now != said:
            host.log(f"waiting for the device plugins: {now}")
            said = now
        if time.monotonic() > deadline:
            break
        gevent.sleep(2)
    host.log_styled(
        f"device plugins: want what the hardware has within {TIMEOUT_S} s, have {said}; "
        + "; ".join(reasons(spec, cluster, names)),
        fg="red",
        log_func=logger.error,
    )
    return False


def reasons(spec: NodeSpec, cluster: Cluster, names: tuple[str, ...]) -> list[str]:
    """What the plugins' pods on the node say of themselves."""
    from cluster.manifests import plugin_pods

    try:
        pods = cluster.pods_on(spec.kube_node_name)
    except ClusterError as error:
        return [str(error)]
    found = []
    for name in names:
        mine = plugin_pods(pods, name)
        if not mine:
            found.append(f"{name} has no pod here: look at its DaemonSet's events")
        for pod in mine:
            if pod.waiting_reason or not pod.ready:
                found.append(f"{pod.name}: {pod.waiting_reason or pod.phase}, read its log")
    return found or ["read the plugins' logs"]
