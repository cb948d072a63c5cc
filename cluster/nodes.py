"""A Node object: what it says, and the few things we change of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self
from urllib.parse import quote

from cluster.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api, Json
from cluster.errors import ClusterError, Conflict, NotFound

CONFLICT_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @classmethod
    def parse(cls, text: str) -> Self:
        """``key[=value]:Effect``, as kubectl and the inventory write it."""
        pair, _, effect = text.rpartition(":")
        key, _, value = pair.partition("=")
        return cls(key, value, effect)

    def __str__(self) -> str:
        return (
            f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"
        )

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "effect": self.effect} | (
            {"value": self.value} if self.value else {}
        )


CLOSED_TAINT: Final = Taint("rackwright.io/not-validated", "", "NoSchedule")
"""On a node that has not passed validation: nothing is scheduled there but what tolerates it."""

VALIDATED_CONDITION: Final = "RackwrightValidated"
"""Type of the node condition that says whether, why and since when a node is validated."""

PASSED: Final = "rackwright.io/passed"
"""Annotation of a node that has passed, and to which nothing disruptive was done since: the time.
It outlives a closing, which the condition does not."""


@dataclass(frozen=True, slots=True)
class Condition:
    status: str
    """``True``, ``False`` or ``Unknown``."""
    reason: str
    message: str
    since: str
    """When the status last changed, RFC 3339."""


@dataclass(frozen=True, slots=True)
class NodeState:
    name: str
    uid: str
    ready: bool
    ready_reason: str
    ready_message: str
    unschedulable: bool
    taints: tuple[Taint, ...]
    labels: dict[str, str]
    annotations: dict[str, str]
    allocatable: dict[str, str]
    """What pods may ask for, as in ``{"nvidia.com/gpu": "8"}``."""
    capacity: dict[str, str]
    conditions: dict[str, Condition]
    kubelet_version: str
    container_runtime_version: str
    kernel_version: str
    machine_id: str
    system_uuid: str
    boot_id: str
    pod_cidr: str
    """Empty if the controller manager has given the node none (yet)."""
    addresses: tuple[tuple[str, str], ...]
    """Type and address, as in ``("InternalIP", "10.88.0.11")``."""

    @property
    def closed(self) -> bool:
        return any(
            taint.key == CLOSED_TAINT.key and taint.effect == CLOSED_TAINT.effect
            for taint in self.taints
        )

    def of_machine(self, machine_id: str | None, system_uuid: str | None) -> bool | None:
        """
        Whether this is the Node of the machine with that identity; ``None`` if nobody can tell.

        One that was installed anew has another machine-id and its old UUID, and nothing reports as
        its Node any more; firmware that gives several machines one UUID is told by that.
        """
        if _identity(machine_id) and _identity(machine_id) == _identity(self.machine_id):
            return True
        differing_id = bool(_identity(machine_id) and _identity(self.machine_id))
        if not (_identity(system_uuid) and _identity(self.system_uuid)):
            return False if differing_id and self.ready else None
        if _identity(system_uuid) == _identity(self.system_uuid):
            return not (differing_id and self.ready)
        return False if differing_id else None


def node_state(node: Json) -> NodeState:
    """Read a Node object of the API."""
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    conditions = {
        condition["type"]: Condition(
            status=condition["status"],
            reason=condition.get("reason", ""),
            message=condition.get("message", ""),
            since=condition.get("lastTransitionTime") or "",
        )
        for condition in status.get("conditions", [])
    }
    # A Node object without the condition was created by somebody else, or its kubelet never
    # reported.
    ready = conditions.get(
        "Ready", Condition("Unknown", "NeverReported", "the kubelet has not reported yet", "")
    )
    info = status.get("nodeInfo", {})
    return NodeState(
        name=meta["name"],
        uid=meta.get("uid", ""),
        ready=ready.status == "True",
        ready_reason=ready.reason,
        ready_message=ready.message,
        unschedulable=bool(spec.get("unschedulable", False)),
        taints=tuple(
            Taint(taint["key"], taint.get("value", ""), taint["effect"])
            for taint in spec.get("taints", [])
        ),
        labels=dict(meta.get("labels", {})),
        annotations=dict(meta.get("annotations", {})),
        allocatable=dict(status.get("allocatable", {})),
        capacity=dict(status.get("capacity", {})),
        conditions=conditions,
        kubelet_version=info.get("kubeletVersion", ""),
        container_runtime_version=info.get("containerRuntimeVersion", ""),
        kernel_version=info.get("kernelVersion", ""),
        machine_id=info.get("machineID", ""),
        system_uuid=info.get("systemUUID", ""),
        boot_id=info.get("bootID", ""),
        pod_cidr=spec.get("podCIDR", ""),
        addresses=tuple(
            (address["type"], address["address"]) for address in status.get("addresses", [])
        ),
    )


def find(api: Api, name: str) -> NodeState | None:
    node = api.find(_path(name))
    return None if node is None else node_state(node)


def twin(api: Api, name: str, machine_id: str, system_uuid: str) -> str | None:
    """The name of another Node with this machine-id or system UUID; ``None`` if there is none."""
    # systemd writes machine-ids without dashes, firmware tells UUIDs in either case.
    ours = {_identity(machine_id), _identity(system_uuid)} - {""}
    for node in api.list("/api/v1/nodes"):
        info = node.get("status", {}).get("nodeInfo", {})
        theirs = {_identity(info.get("machineID", "")), _identity(info.get("systemUUID", ""))}
        if node["metadata"]["name"] != name and ours & theirs:
            return str(node["metadata"]["name"])
    return None


def _identity(text: str | None) -> str:
    return (text or "").strip().lower().replace("-", "")


def taint(api: Api, name: str, wanted: Taint) -> bool:
    def change(taints: list[Json]) -> list[Json] | None:
        others = [entry for entry in taints if not _same(entry, wanted.key, wanted.effect)]
        mine = [entry for entry in taints if _same(entry, wanted.key, wanted.effect)]
        if len(mine) == 1 and mine[0].get("value", "") == wanted.value:
            return None
        return [*others, dict(wanted.to_json())]

    return _change_taints(api, name, change)


def untaint(api: Api, name: str, key: str, effect: str) -> bool:
    def change(taints: list[Json]) -> list[Json] | None:
        others = [entry for entry in taints if not _same(entry, key, effect)]
        return None if len(others) == len(taints) else others

    return _change_taints(api, name, change)


def _same(entry: Json, key: str, effect: str) -> bool:
    # Key and effect are a taint's identity, the value is not.
    # Source: Kubernetes 1.36, pkg/apis/core/validation: validateNodeTaints refuses a second taint
    # of the same key and effect (read 2026-11-30)
    return (entry["key"], entry["effect"]) == (key, effect)


def _change_taints(api: Api, name: str, change: Callable[[list[Json]], list[Json] | None]) -> bool:
    """Read, change, write back under the version that was read.

    The list of taints is replaced as a whole by any kind of patch, and the control plane's own
    controllers write to it as well: without the version one of the two would undo the other.
    """
    for _ in range(CONFLICT_TRIES):
        node = _existing(api, name)
        taints = change(list(node.get("spec", {}).get("taints", [])))
        if taints is None:
            return False
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints},
        }
        try:
            api.patch(_path(name), patch, MERGE_PATCH)
        except Conflict:
            continue
        return True
    raise ClusterError(
        f"node {name}: want its taints changed, have {CONFLICT_TRIES} conflicts in a row; "
        "look for a controller that keeps writing to the Node object"
    )


def label(api: Api, name: str, labels: Mapping[str, str | None]) -> bool:
    return _patch_metadata(api, name, "labels", labels)


def annotate(api: Api, name: str, annotations: Mapping[str, str | None]) -> bool:
    return _patch_metadata(api, name, "annotations", annotations)


def _patch_metadata(api: Api, name: str, field: str, wanted: Mapping[str, str | None]) -> bool:
    """Set the given keys. A merge patch touches no other key, so it needs no version."""
    have = _existing(api, name)["metadata"].get(field, {})
    different = {key: value for key, value in wanted.items() if have.get(key) != value}
    if not different:
        return False
    api.patch(_path(name), {"metadata": {field: different}}, MERGE_PATCH)
    return True


def set_condition(
    api: Api, name: str, kind: str, *, status: str, reason: str, message: str
) -> bool:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    have = node_state(_existing(api, name)).conditions.get(kind)
    turned = have is None or have.status != status
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now if turned or have is None else have.since,
    }
    # The strategic merge key of conditions is their type: the kubelet's own ones are left alone.
    api.patch(
        f"{_path(name)}/status", {"status": {"conditions": [condition]}}, STRATEGIC_MERGE_PATCH
    )
    return have is None or (have.status, have.reason, have.message) != (status, reason, message)


def _existing(api: Api, name: str) -> Json:
    try:
        return api.get(_path(name))
    except NotFound:
        raise NotFound(
            f"node {name}: want a Node object, have none; the node has to join first"
        ) from None


def _path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"
