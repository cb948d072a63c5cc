"""Run pods to their end and bring back what they printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cluster.api import Api, Json
from cluster.errors import ClusterError
from cluster.events import warning
from cluster.names import NODE_LABEL, PROBE_LABEL, label_value

POLL_S: Final = 1.0
LOG_LIMIT: Final = 200_000

# A device that another pod has just given back is free again within seconds: only then is "no room"
# an answer.
UNSCHEDULABLE_AFTER_S: Final = 15.0

LOG_TRIES: Final = 5
"""How often the log of a pod that has ended is asked for: it comes from the kubelet, through the
API server, and says nothing of the node if that way is broken."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    name: str
    phase: str
    """``Succeeded`` or ``Failed``; ``Pending`` or ``Running`` if it did not end in time."""
    log: str | None
    """``None``: there may be one, and the API could not bring it."""
    reason: str
    """Why it is not ``Succeeded``, in the words of scheduler, kubelet or runtime; or why there is
    no log, in those of the API."""
    scheduled: bool
    """False if the scheduler found no room: the probe has tested nothing."""
    node: str = ""
    """Where it has been scheduled to, which need not be where it was meant for."""


@dataclass(slots=True)
class _Run:
    path: str
    name: str
    result: ProbeResult | None = None
    log_tries: int = 0


def run(api: Api, manifests: Sequence[Json], timeout_s: float) -> list[ProbeResult]:
    runs: list[_Run] = []
    try:
        for manifest in manifests:
            meta = manifest["metadata"]
            collection = f"/api/v1/namespaces/{meta['namespace']}/pods"
            # Listed before it is created: a create whose answer got lost is deleted as well.
            runs.append(_Run(f"{collection}/{meta['name']}", meta["name"]))
            api.post(collection, manifest)
        started = time.monotonic()
        while True:
            elapsed = time.monotonic() - started
            for entry in runs:
                if entry.result is None:
                    entry.result = _look(api, entry, elapsed, last=elapsed >= timeout_s)
            if all(entry.result is not None for entry in runs):
                break
            time.sleep(POLL_S)
    finally:
        _delete(api, runs)
    return [entry.result for entry in runs if entry.result is not None]


def _look(api: Api, entry: _Run, elapsed: float, *, last: bool) -> ProbeResult | None:
    """The result, if there is one by now; on the last look there is, or its log is waited for."""
    pod = api.find(entry.path)
    if pod is None:
        return ProbeResult(entry.name, "Unknown", "", "somebody deleted the probe pod", True)
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    node = pod.get("spec", {}).get("nodeName", "")
    scheduled = bool(node)
    if phase in {"Succeeded", "Failed"}:
        reason = "" if phase == "Succeeded" else _why(status)
        try:
            log = _log(api, entry.path)
        except ClusterError as error:
            entry.log_tries += 1
            if phase == "Succeeded" and entry.log_tries < LOG_TRIES:
                return None
            log, reason = None, reason or str(error)
        return ProbeResult(entry.name, phase, log, reason, True, node)
    if not scheduled and elapsed >= UNSCHEDULABLE_AFTER_S and (text := _unschedulable(status)):
        return ProbeResult(entry.name, phase, "", text, False)
    if not last:
        return None
    why = _unschedulable(status) or _why(status) or f"still {phase} after {elapsed:.0f} s"
    meta = pod["metadata"]
    if scheduled and phase == "Pending" and (said := warning(api, meta["namespace"], meta["name"])):
        why = f"{why}; {said}"
    return ProbeResult(entry.name, phase, None, why, scheduled, node)


def _unschedulable(status: Json) -> str:
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _why(status: Json) -> str:
    """What tells most first: the kubelet's refusal, a container's end, what one waits for."""
    if status.get("reason") or status.get("message"):
        return ": ".join(filter(None, (status.get("reason", ""), status.get("message", ""))))
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        entry = state.get("terminated") or state.get("waiting") or {}
        code = f"exit code {entry['exitCode']}" if entry.get("exitCode") else ""
        if words := [w for w in (entry.get("reason", ""), code, entry.get("message", "")) if w]:
            return ": ".join(words)
    return ""


def _log(api: Api, path: str) -> str:
    """What the pod printed."""
    reply = api.request("GET", f"{path}/log", query={"limitBytes": str(LOG_LIMIT)})
    return reply.body.decode(errors="replace")


def _delete(api: Api, runs: Sequence[_Run]) -> None:
    """Delete all; one that cannot be deleted ends by its deadline and is swept later."""
    failed: ClusterError | None = None
    for entry in runs:
        try:
            api.delete(entry.path, {"gracePeriodSeconds": 0})
        except ClusterError as error:
            failed = error
    if failed is not None and all(entry.result is not None for entry in runs):
        raise failed


def sweep(
    api: Api,
    node_name: str,
    namespace: str,
    older_than_s: float,
    server_time: Callable[[], datetime],
) -> list[str]:
    selector = f"{PROBE_LABEL},{NODE_LABEL}={label_value(node_name)}"
    collection = f"/api/v1/namespaces/{namespace}/pods"
    swept = []
    if not (pods := list(api.list(collection, labelSelector=selector))):
        return []
    now = server_time()  # the clock that has dated them: ours may be a day ahead
    for pod in pods:
        meta = pod["metadata"]
        age = now - datetime.fromisoformat(meta["creationTimestamp"])
        # A younger one may belong to a run that is alive.
        if age.total_seconds() > older_than_s:
            api.delete(f"{collection}/{meta['name']}", {"gracePeriodSeconds": 0})
            swept.append(str(meta["name"]))
    return swept
