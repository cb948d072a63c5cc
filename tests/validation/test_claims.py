"""The claims that opened the node, read again from the host and the cluster."""

from __future__ import annotations

import pytest

from claims import CLAIMS
from tests.validation.fleet import Node


@pytest.mark.parametrize("name", CLAIMS)
def test_claim(node: Node, state, name: str) -> None:
    findings = list(CLAIMS[name](node.readings, state, node.spec))
    assert not findings, "\n".join(map(str, findings))


def test_every_reading_was_made(node: Node) -> None:
    assert not node.readings.unread


def test_node_is_open(node: Node, state) -> None:
    condition = state.conditions.get("RackwrightValidated")
    said = "no such condition" if condition is None else f"{condition.reason}: {condition.message}"
    assert not state.closed, said
    assert condition is not None
    assert condition.status == "True", said
