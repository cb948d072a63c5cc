"""The description of the simulated hardware as the guest reads it."""

from __future__ import annotations

from typing import Any

import pytest

from lab import simhw
from lab.description import Node, load


def node(**devices: Any) -> Node:
    machine = {"name": "gpu07", "address": "10.88.0.17", "memory_mib": 2048, "cpus": 1}
    return Node.model_validate(machine | devices)


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_devices_follow_the_seed_in_the_order_of_the_description() -> None:
    text = simhw.config(
        node(
            gpus=[{"model": "T4", "numa": 1}, {"model": "H100-SXM5-80GB"}],
            hcas=[
                {"model": "ConnectX-7", "rate_gbps": 400, "state": "init", "numa": 1},
                {"model": "ConnectX-6", "link_layer": "ethernet", "rate_gbps": 100},
            ],
        )
    )
    assert commands(text) == [
        "seed=gpu07",
        "gpu model=T4 numa=1",
        "gpu model=H100-SXM5-80GB numa=0",
        "hca model=ConnectX-7 link_layer=infiniband rate_gbps=400 state=init numa=1",
        "hca model=ConnectX-6 link_layer=ethernet rate_gbps=100 state=active numa=0",
    ]
    assert text.endswith("\n")


def test_a_node_without_devices_is_a_seed_alone() -> None:
    assert commands(simhw.config(node())) == ["seed=gpu07"]


def test_the_labs_own_nodes_can_be_simulated() -> None:
    for machine in load().nodes:
        assert len(commands(simhw.config(machine))) == 1 + len(machine.gpus) + len(machine.hcas)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"gpus": [{"model": "ConnectX-7"}]}, r"want GPU model ConnectX-7 on gpu07, have T4, A100"),
        ({"hcas": [{"model": "T4", "rate_gbps": 100}]}, r"want HCA model T4 .* have ConnectX-6"),
    ],
)
def test_an_unknown_model_is_refused_before_a_guest_is_started(
    devices: dict[str, Any], message: str
) -> None:
    with pytest.raises(simhw.HardwareError, match=message):
        simhw.config(node(**devices))
