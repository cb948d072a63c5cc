"""Admission: a node that has passed every claim is open; any other is closed, and says why."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyinfra.api import deploy

from claims import check
from cluster import CLOSED_TAINT, VALIDATED_CONDITION
from deploys.phases import preflight
from facts.kubernetes import Kubelet
from nodespec import NodeSpec
from operations import admission as operations
from operations import node
from operations.have import Have
from operations.step import Refusal, Step


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    there = have.node if have[Kubelet].joined else None
    if there is None or not there.ready:
        yield Step(
            "validate the node and open it", "open", "not a Ready node", lambda: iter(()),
            waits_for="the node to be Ready",
        )  # fmt: skip
        return
    if have.pending:
        yield Step(
            "validate the node and open it", "open", "steps to be done", lambda: iter(()),
            waits_for="the steps before",
        )  # fmt: skip
        return
    findings = check(have.readings, there, spec)
    if findings:
        yield Step(
            "close the node" if not there.closed else "keep the node closed",
            "every claim to hold", "; ".join(map(str, findings)),
            lambda: iter([operations.keep_closed(have, [str(finding) for finding in findings])]),
            remedy="mend that, then run again",
        )  # fmt: skip
    elif not operations.is_open(there):
        validated = there.conditions.get(VALIDATED_CONDITION)
        yield Step(
            "validate the node and open it", "open",
            f"closed by {CLOSED_TAINT}" if there.closed
            else f"{VALIDATED_CONDITION} {validated.status if validated else 'not set'}",
            lambda: iter([operations.validate_and_open(have)]),
            remedy="look what closes it again: `kubectl get node -o yaml --show-managed-fields`",
        )  # fmt: skip


@deploy("Admission")
def admission() -> None:
    node.converge(name="Admit the node", phases=[preflight, sys.modules[__name__]])
