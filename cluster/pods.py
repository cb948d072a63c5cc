"""Pods of one node, and which of them are somebody's work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from cluster.api import Api, Json
from cluster.errors import ClusterError, Conflict
from cluster.names import PROBE_LABEL

DEVICE_PREFIXES = ("nvidia.com/", "rdma/")


@dataclass(frozen=True, slots=True)
class PodState:
    namespace: str
    name: str
    uid: str
    owner_kind: str
    """Kind of the controller, as in ``DaemonSet``; ``Node`` for a static pod; empty if none."""
    owner_name: str
    phase: str
    requests: dict[str, str]
    """Sum over its containers, as in ``{"cpu": "2", "nvidia.com/gpu": "1"}``."""
    node: str
    ready: bool
    restart_count: int
    waiting_reason: str
    """Of the first container that waits, as in ``ImagePullBackOff: ...``; empty if none does."""
    deleting: bool
    started_at: str
    """Start of the newest container that runs now, RFC 3339; empty if none runs."""
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def devices(self) -> dict[str, str]:
        """The GPUs, MIG devices and RDMA shares it asks for."""
        return {
            resource: amount
            for resource, amount in self.requests.items()
            if resource.startswith(DEVICE_PREFIXES)
        }

    @property
    def runs(self) -> bool:
        """Whether each of its containers has been made, and one has not ended for good."""
        return self.phase == "Running"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_state(pod: Json) -> PodState:
    """Read a Pod object of the API."""
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    owner: Json = next(
        (ref for ref in meta.get("ownerReferences", []) if ref.get("controller")), {}
    )
    containers = status.get("containerStatuses", [])
    waiting = [
        ": ".join(filter(None, (entry.get("reason", ""), entry.get("message", ""))))
        for container in [*status.get("initContainerStatuses", []), *containers]
        if (entry := container.get("state", {}).get("waiting")) is not None
    ]
    starts = [
        running["startedAt"]
        for container in containers
        if (running := container.get("state", {}).get("running")) and running.get("startedAt")
    ]
    return PodState(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        owner_kind=owner.get("kind", ""),
        owner_name=owner.get("name", ""),
        phase=status.get("phase", "Unknown"),
        requests=_requests(spec),
        node=spec.get("nodeName", ""),
        ready=any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in status.get("conditions", [])
        ),
        restart_count=sum(container.get("restartCount", 0) for container in containers),
        waiting_reason=next(filter(None, waiting), ""),
        deleting="deletionTimestamp" in meta,
        started_at=max(starts, default=""),
        labels=dict(meta.get("labels", {})),
        annotations=dict(meta.get("annotations", {})),
    )


def _requests(spec: Json) -> dict[str, str]:
    total: Counter[str] = Counter()
    for container in spec.get("containers", []):
        asked = container.get("resources", {})
        # A limit without a request is a request: the server fills it in, extended resources always
        # so.
        for resource, amount in {**asked.get("limits", {}), **asked.get("requests", {})}.items():
            total[resource] += parse_quantity(amount)  # type: ignore[no-untyped-call]
    return {resource: _plain(Decimal(amount)) for resource, amount in sorted(total.items())}


def _plain(amount: Decimal) -> str:
    return format(amount.normalize(), "f")


def on_node(api: Api, name: str) -> list[PodState]:
    pods = api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
    return sorted(map(pod_state, pods), key=str)


def in_service(pods: Iterable[PodState]) -> list[PodState]:
    """The pods that somebody would miss: not of a DaemonSet, not static, not ended, no probes.

    Those that hold GPUs or RDMA devices come first.
    """
    return sorted(_workloads(pods), key=lambda pod: (not pod.devices, str(pod)))


def _workloads(pods: Iterable[PodState]) -> Iterator[PodState]:
    for pod in pods:
        if pod.owner_kind in {"DaemonSet", "Node"} or pod.phase in {"Succeeded", "Failed"}:
            continue
        if PROBE_LABEL in pod.labels or "kubernetes.io/config.mirror" in pod.annotations:
            continue
        yield pod


def delete(api: Api, pod: PodState, gone_within_s: float) -> None:
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    try:
        api.delete(path, {"preconditions": {"uid": pod.uid}})
    except Conflict:
        return  # the name belongs to another pod by now, so this one is gone
    deadline = time.monotonic() + gone_within_s
    while (live := api.find(path)) is not None and live["metadata"]["uid"] == pod.uid:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"pod {pod}: want it gone within {gone_within_s:g} s, have it still terminating; "
                f"look at the kubelet and container runtime of {pod.node}"
            )
        time.sleep(0.5)
