"""From two bare guests to two validated nodes, and what must hold from then on. In order."""

from __future__ import annotations

import pytest

from tests.guest.lab import NODES, Lab, changed_inventory, say

pytestmark = pytest.mark.guest

MAX_REMOTE_COMMANDS = 3
MAX_SECONDS = 60


@pytest.fixture(scope="module")
def opened(lab: Lab):
    """Both nodes, brought from bare to open by one run."""
    lab.reset()
    done = lab.run()
    assert done.code == 0, done.output[-4000:]
    lab.snapshot("open")
    return done


def test_a_bare_host_becomes_a_validated_node(opened) -> None:
    assert {name: row["state"] for name, row in opened.nodes.items()} == dict.fromkeys(
        NODES, "open"
    )
    offers = {name: row["offers"] for name, row in opened.nodes.items()}
    assert offers["gpu01"]["nvidia.com/mig-1g.5gb"] == "14"
    assert offers["gpu02"]["nvidia.com/gpu"] == "2"
    assert offers["gpu01"]["rdma/hca_shared"] == offers["gpu02"]["rdma/hca_shared"] == "63"


def test_a_second_run_sends_nothing_but_its_reading(lab: Lab, opened) -> None:
    before = {node: (lab.remote_commands(node), lab.processes(node)) for node in NODES}
    done = lab.run()
    after = {node: (lab.remote_commands(node), lab.processes(node)) for node in NODES}
    assert done.code == 0
    for node in NODES:
        assert done.nodes[node]["changes"] == []
        assert done.nodes[node]["state"] == "open"
        # Two of them are this test's own: the second of `before`, the first of `after`.
        sent = after[node][0] - before[node][0] - 2
        say(f"{node}: {sent} remote commands")
        assert sent <= MAX_REMOTE_COMMANDS
        assert after[node][1] == before[node][1]
    assert done.seconds < MAX_SECONDS


def test_the_validation_suite_passes(lab: Lab, opened) -> None:
    lab.validate()


def test_bad_input_is_refused_before_any_contact(lab: Lab, opened, tmp_path) -> None:
    changes = {
        '"hca_count": 2,': '"hca_count": "two",',
        '"hca_rate_gbps": 200,': '"hca_rate_gbps": 201,',
        '"mig_config": "all-1g.5gb",': '"mig_config": "all-1g.10gbx",',
        '"nvidia_driver_version"': '"nvdia_driver_version"',
        '"kube_api_server": "10.88.0.1:6443"': '"kube_api_server": "https://10.88.0.1"',
    }
    before = lab.remote_commands("gpu01")
    done = lab.run(inventory=str(changed_inventory(tmp_path, changes)))
    assert done.code != 0
    for key in (
        "hca_count",
        "hca_rate_gbps",
        "mig_config",
        "nvdia_driver_version",
        "kube_api_server",
    ):
        assert f"{key}: want " in done.output, done.output
    assert "did you mean nvidia_driver_version" in done.output
    assert "Connecting" not in done.output
    assert lab.remote_commands("gpu01") == before + 1  # this test's own
