"""Killed runs and faults, from the snapshot of two open nodes."""

from __future__ import annotations

import pytest

from tests.guest.lab import Lab

pytestmark = pytest.mark.guest


@pytest.fixture
def open_nodes(lab: Lab) -> None:
    lab.to_open()


def test_a_missing_gpu_closes_its_node_and_no_other(lab: Lab, open_nodes) -> None:
    lab.fault("gpu02", "gpu-missing", "on")
    done = lab.run()
    assert done.code != 0
    assert done.nodes["gpu02"]["state"] == "failed"
    assert any("GPU" in problem for problem in done.nodes["gpu02"]["problems"])
    assert done.nodes["gpu02"]["changes"] == []
    assert done.nodes["gpu01"]["state"] == "open"
    assert done.nodes["gpu01"]["changes"] == []
    node = lab.kubernetes().read_node("gpu02")
    assert "rackwright.io/not-validated" in [taint.key for taint in node.spec.taints]
    (condition,) = [c for c in node.status.conditions if c.type == "RackwrightValidated"]
    assert condition.status == "False"
    assert "GPU" in condition.message


def test_a_run_killed_between_join_and_admission_is_taken_up(lab: Lab, open_nodes) -> None:
    """Nobody is left open without having passed, and the next run does only what is missing."""
    lab.ssh("gpu02", "kubeadm reset -f >/dev/null 2>&1")
    lab.kubernetes().delete_node("gpu02")
    lab.killed(r"gpu02.*kubernetes \| join the cluster: done")
    lab.wait_registered("gpu02")
    assert lab.verdict("gpu02").closed  # from its first second: nobody of ours is alive
    done = lab.run()
    assert done.code == 0, done.output[-4000:]
    assert done.nodes["gpu02"]["state"] == "open"
    assert not any("install" in change for change in done.nodes["gpu02"]["changes"])
    assert done.nodes["gpu01"]["changes"] == []
    assert "rackwright-join" not in lab.ssh("gpu02", "ls /etc/kubernetes")
