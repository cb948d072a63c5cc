"""Is every node as asked, and fit for users?

``pytest tests/validation --inventory inventories/prod.py``
"""

from __future__ import annotations

import pytest

from nodespec import InventoryProblems
from tests.validation.fleet import Node, fleet


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test once per node, or not at all without an inventory."""
    if "node" not in metafunc.fixturenames:
        return
    inventory = metafunc.config.getoption("--inventory")
    if not inventory:
        metafunc.parametrize(
            "node", [pytest.param(None, marks=pytest.mark.skip(reason="no --inventory given"))]
        )
        return
    try:
        nodes = fleet(inventory)
    except InventoryProblems as problems:
        raise pytest.UsageError(str(problems)) from None
    metafunc.parametrize("node", nodes.values(), ids=str, scope="session")


@pytest.fixture
def state(node: Node):
    """The Node object; a host without one is no node."""
    assert node.state is not None, (
        f"{node.name}: want a Node object, have none; run deploys/gpu_node.py"
    )
    return node.state
