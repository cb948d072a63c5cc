"""Opening a node, or keeping it closed with the reason written on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from claims import Finding, check
from claims.pods import NotTested, judge, probes
from cluster import (
    CLOSED_TAINT,
    PASSED,
    PROBE_LABEL,
    RUN_LABEL,
    VALIDATED_CONDITION,
    Cluster,
    ClusterError,
    NodeState,
    in_service,
)
from cluster.probes import new_run
from facts.mig import Gpus
from facts.os import Machine
from facts.snapshot import UnknownReading
from nodespec import NodeSpec
from operations import lock
from operations.failure import calling, tell
from operations.have import Have, look
from operations.reading import forget
from operations.redaction import redact
from operations.report import RUN

TIMEOUT_S = 300
"""For the user-side pods: the image is pulled, three pods run side by side."""

OURS = "adm-"
"""How the runs of pods begin that admission has started, and nobody else."""


def is_open(node: NodeState) -> bool:
    """Whether the node has passed, and nothing has been done to it since."""
    validated = node.conditions.get(VALIDATED_CONDITION)
    return validated is not None and validated.status == "True" and not node.closed


def excused(have: Have, resource: str, error: NotTested) -> bool:
    """
    Whether it is nothing against a node that had passed that a pod with *resource* tested nothing:
    users leave it no room, or it ran and the API could not bring its log.

    No room for a pod without devices is not explained by users, nor a scheduler that is silent.
    """
    node = have.node
    if node is None or PASSED not in node.annotations:
        return False
    return error.ran or any(
        # One whose containers cannot be made holds devices too, and shows the contrary.
        resource in pod.requests and pod.runs
        for pod in in_service(have.pods)
    )


def keep_closed(have: Have, reasons: Sequence[str]) -> FunctionCommand:
    """Close the node, or leave it so, say why on it, and fail the host."""
    return calling(_keep_closed, have, tuple(reasons), "ValidationFailed")


def _keep_closed(state: State, host: Host, have: Have, reasons: Sequence[str], reason: str) -> bool:
    for text in reasons:
        tell(host, text)
    name = have.spec.kube_node_name
    there = have.cluster.node(name)  # pods take minutes: it may have been made anew
    ours = there is not None and not have.of_another(there)
    if ours:
        have.cluster.taint(name, CLOSED_TAINT)
        have.cluster.set_condition(
            name, VALIDATED_CONDITION, "False", reason, redact("; ".join(reasons))[:1024]
        )
        have.cluster.sweep_tokens(name)
    if row := RUN.rows.get(host.name):
        row.phases["admission"] = "failed"
        row.finish("closed" if ours else "failed")
    return False


def validate_and_open(have: Have) -> FunctionCommand:
    """
    Run pods as a user would, one per kind at once; open the node if all is well, the taint last.

    The node is closed meanwhile, so that a run that dies leaves it closed. A pod for which there
    was no room has tested nothing: the node stays closed, unless it had passed before, nothing
    disruptive was done to it since, and users hold such devices. What the host and the Node object
    are is looked at once more before the first word that opens it.
    """
    return calling(_validate_and_open, have)


def _validate_and_open(state: State, host: Host, have: Have) -> bool:
    spec: NodeSpec = have.spec
    cluster: Cluster = have.cluster
    name = spec.kube_node_name
    cluster.taint(name, CLOSED_TAINT)
    _sweep(spec, cluster)
    asked = probes(spec, OURS + new_run()[:4])
    host.log(f"running {', '.join(probe.title for probe in asked)}")
    results = cluster.probes([probe.manifest for probe in asked], TIMEOUT_S)
    failed: list[str] = []
    untested: list[tuple[str, NotTested]] = []
    told: list[str] = []
    for probe, result in zip(asked, results, strict=True):
        try:
            failed += map(str, judge(spec, probe, result, have[Gpus]))
        except NotTested as error:
            untested.append((probe.resource, error))
            remedy = error.remedy or _make_room(spec, cluster)
            told.append(str(Finding(probe.title, error.want, str(error), remedy)))
    if failed:
        return _keep_closed(state, host, have, (*failed, *told), "ValidationFailed")

    # Pods take minutes, in which anything may happen to the host, the Node object and our lock.
    now = _look_again(host, have)
    if now is None:
        return False
    if reasons := (*meanwhile(have, now), *map(str, check(now.readings, now.node, spec))):
        return _keep_closed(state, host, now, reasons, "ValidationFailed")
    if not all(excused(now, resource, error) for resource, error in untested):
        return _keep_closed(state, host, now, told, "NotTested")
    for text in told:
        host.log(f"not tested: {text}")
    passed = f"{len(asked) - len(told)} pods and all claims passed"
    cluster.set_condition(
        name, VALIDATED_CONDITION, "True", "Validated",
        f"{passed}; not tested: {'; '.join(told)}"[:1024] if told else passed,
    )  # fmt: skip
    cluster.annotate(name, {PASSED: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")})
    cluster.untaint(name, CLOSED_TAINT.key, CLOSED_TAINT.effect)
    return True


def _look_again(host: Host, have: Have) -> Have | None:
    """
    The host and the Node object as they are now, under a lock that was ours all the time.

    ``None``, with the reason told: another run may have the host, and the last word on the node.
    """
    if lock.held(host):
        forget(host)
        try:
            now = look(have.spec, have.cluster)
        except UnknownReading as error:
            if lock.held(host):
                tell(host, str(error))
                return None
        else:
            if lock.held(host):
                return now
    tell(
        host,
        f"lock: want {lock.PATH} held while the pods ran, have it lost; the connection was cut: "
        "see that no other run has the host, then run again",
    )
    if row := RUN.rows.get(host.name):
        row.phases["admission"] = "failed"
        row.finish("failed")  # nothing more is written on the node
    return None


def meanwhile(before: Have, now: Have) -> Iterator[str]:
    """What was exchanged while the pods ran: then they have tested something else."""
    tested, there = before.node, now.node
    want, remedy = "the one that the pods have run on", "run again"
    if there is None or tested is None or there.uid != tested.uid:
        yield str(Finding("node object", want, "another" if there else "none", remedy))
    machine, known = now.known(Machine), before.known(Machine)
    if machine is not None and known is not None:  # else a claim says so
        if machine.boot_id != known.boot_id:
            yield str(Finding("boot", want, "a later one", "look why the host rebooted; " + remedy))
        if machine.machine_id != known.machine_id:
            yield str(Finding("machine", want, f"machine-id {machine.machine_id}", remedy))


def _sweep(spec: NodeSpec, cluster: Cluster) -> None:
    """Delete what killed runs have left; what a validation runs at the same time stays."""
    name = spec.kube_node_name
    cluster.sweep_tokens(name)
    cluster.sweep_probes(name, spec.kube_namespace)
    for pod in cluster.pods_on(name):
        # We hold the host's lock: another admission of this node is dead, and its pod may hold
        # the only GPU.
        if PROBE_LABEL in pod.labels and pod.labels.get(RUN_LABEL, "").startswith(OURS):
            cluster.delete_pod(pod)


def _make_room(spec: NodeSpec, cluster: Cluster) -> str:
    """Who is in the way, if that can be seen."""
    try:
        holders = [str(pod) for pod in in_service(cluster.pods_on(spec.kube_node_name))]
    except ClusterError:
        holders = []
    here = f" (here: {', '.join(holders[:5])}{', ...' if holders[5:] else ''})" if holders else ""
    return f"end what is in its way{here}, then run again"
