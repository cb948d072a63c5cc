"""Opening a node, or keeping it closed with the reason written on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from claims import Finding
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
from nodespec import NodeSpec
from operations.failure import calling, tell
from operations.have import Have
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


def full(have: Have, resource: str) -> bool:
    """
    Whether it is users who leave no room for a pod with *resource*, on a node that had passed.

    That of a pod without devices is not explained by it, nor is a scheduler that does not answer.
    """
    node = have.node
    return (
        node is not None
        and PASSED in node.annotations
        and any(resource in pod.requests for pod in in_service(have.pods))
    )


def keep_closed(have: Have, reasons: Sequence[str]) -> FunctionCommand:
    """Close the node, or leave it so, say why on it, and fail the host."""
    return calling(_keep_closed, have, tuple(reasons), "ValidationFailed")


def _keep_closed(
    state: State, host: Host, have: Have, reasons: tuple[str, ...], reason: str
) -> bool:
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
    disruptive was done to it since, and users hold such devices.
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
    untested: list[str] = []
    forgiven = True
    for probe, result in zip(asked, results, strict=True):
        try:
            failed += map(str, judge(spec, probe, result))
        except NotTested as error:
            untested.append(
                str(Finding(probe.title, "room to run it", str(error), _make_room(spec, cluster)))
            )
            forgiven = forgiven and full(have, probe.resource)
    if failed or not forgiven:
        reason = "ValidationFailed" if failed else "NotTested"
        return _keep_closed(state, host, have, (*failed, *untested), reason)
    for text in untested:
        host.log(f"not tested: {text}")
    passed = f"{len(asked) - len(untested)} pods and all claims passed"
    cluster.set_condition(
        name, VALIDATED_CONDITION, "True", "Validated",
        f"{passed}; not tested: {'; '.join(untested)}"[:1024] if untested else passed,
    )  # fmt: skip
    cluster.annotate(name, {PASSED: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")})
    cluster.untaint(name, CLOSED_TAINT.key, CLOSED_TAINT.effect)
    return True


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
