"""From two bare guests to two validated nodes, and what must hold from then on. In order."""

from __future__ import annotations

import sys

import pytest

from tests.guest.lab import NODES, ROOT, Lab, say, stream

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


@pytest.mark.long
def test_bad_input_is_refused_before_any_contact(lab: Lab, opened, tmp_path) -> None:
    bad = ROOT / "inventories" / "lab.py"
    text = bad.read_text()
    for old, new in (
        ('"gpu_count": 2,', '"gpu_count": "two",'),
        ('"hca_rate_gbps": 200,', '"hca_rate_gbps": 201,'),
        ('"mig_config": "all-1g.5gb",', '"mig_config": "all-1g.10gbx",'),
        ('"nvidia_driver_version"', '"nvdia_driver_version"'),
        ('"kube_api_server": "10.88.0.1:6443"', '"kube_api_server": "https://10.88.0.1"'),
    ):
        assert old in text
        text = text.replace(old, new)
    inventory = tmp_path / "bad.py"
    inventory.write_text(text)
    (tmp_path / "group_data").symlink_to(ROOT / "inventories/group_data")
    before = lab.remote_commands("gpu01")
    code, output = stream(
        [sys.executable, "-m", "pyinfra", "-y", str(inventory), "deploys/gpu_node.py"],
        lab.folder / "bad.log",
    )
    assert code != 0
    for key in (
        "gpu_count", "hca_rate_gbps", "mig_config", "nvdia_driver_version", "kube_api_server",
    ):  # fmt: skip
        assert key in output, output
    assert "nvidia_driver_version" in output
    assert lab.remote_commands("gpu01") == before + 1  # this test's own
