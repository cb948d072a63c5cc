"""Opening a node, or keeping it closed with the reason written on it."""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra import logger
from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from claims.pods import judge, probes
from cluster import CLOSED_TAINT, VALIDATED_CONDITION, Cluster
from nodespec import NodeSpec
from operations.have import Have

TIMEOUT_S = 300
"""For the user-side pods: the image is pulled, three pods run side by side."""


def keep_closed(have: Have, reasons: Sequence[str]) -> FunctionCommand:
    """Close the node, or leave it so, say why on it, and fail the host."""
    return FunctionCommand(_keep_closed, (have, tuple(reasons)), {})


def _keep_closed(state: State, host: Host, have: Have, reasons: tuple[str, ...]) -> bool:
    name = have.spec.kube_node_name
    have.cluster.taint(name, CLOSED_TAINT)
    have.cluster.set_condition(
        name, VALIDATED_CONDITION, "False", "ValidationFailed", "; ".join(reasons)[:1024]
    )
    for reason in reasons:
        host.log_styled(reason, fg="red", log_func=logger.error)
    return False


def validate_and_open(have: Have) -> FunctionCommand:
    """
    Run pods as a user would, one per kind at once; open the node if all is well, the taint last.

    A probe for which there was no room has tested nothing: the node stays closed, since
    nothing else can run on it and the room should be there.
    """
    return FunctionCommand(_validate_and_open, (have,), {})


def _validate_and_open(state: State, host: Host, have: Have) -> bool:
    spec: NodeSpec = have.spec
    cluster: Cluster = have.cluster
    name = spec.kube_node_name
    cluster.sweep_tokens(name)
    cluster.sweep_probes(name, spec.kube_namespace, older_than_s=0)
    asked = probes(spec)
    host.log(f"running {', '.join(probe.title for probe in asked)}")
    results = cluster.probes([probe.manifest for probe in asked], TIMEOUT_S)
    reasons = [
        str(finding)
        for probe, result in zip(asked, results, strict=True)
        for finding in judge(spec, probe, result)
    ]
    if reasons:
        return _keep_closed(state, host, have, tuple(reasons))
    cluster.set_condition(
        name, VALIDATED_CONDITION, "True", "Validated", f"{len(asked)} pods and all claims passed"
    )
    cluster.untaint(name, CLOSED_TAINT.key, CLOSED_TAINT.effect)
    return True
