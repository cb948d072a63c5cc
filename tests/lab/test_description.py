"""The description of the lab: what it gives and what it refuses."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import description
from lab.description import DescriptionError

TWO_NODES: dict[str, Any] = {
    "network": {"name": "rackwright", "host": "10.88.0.1", "prefix": 24},
    "nodes": [
        {"name": "gpu01", "address": "10.88.0.11", "memory_mib": 3072, "cpus": 2},
        {"name": "gpu02", "address": "10.88.0.12", "memory_mib": 3072, "cpus": 2},
    ],
}


def read(tmp_path: Path, content: Any) -> description.Description:
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump(content))
    return description.read(path)


def test_the_labs_own_description_is_valid() -> None:
    lab = description.load()
    assert [node.name for node in lab.nodes] == ["gpu01", "gpu02"]
    assert all(node.gpus and node.hcas for node in lab.nodes)


def test_hardware_addresses_follow_from_addresses(tmp_path: Path) -> None:
    lab = read(tmp_path, TWO_NODES)
    assert [node.mac for node in lab.nodes] == ["52:54:00:58:00:0b", "52:54:00:58:00:0c"]


def test_no_names_select_all_nodes(tmp_path: Path) -> None:
    lab = read(tmp_path, TWO_NODES)
    assert lab.select([]) == lab.nodes
    assert [node.name for node in lab.select(["gpu02"])] == ["gpu02"]
    with pytest.raises(DescriptionError, match=r"gpu03.*gpu01, gpu02"):
        lab.select(["gpu03"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": "10.88.0.11"}, "that of gpu01"),
        ({"address": "10.88.0.1"}, "that of the lab host"),
        ({"address": "10.88.1.12"}, "10.88.0.0/24"),
        ({"name": "gpu01"}, "one twice"),
        ({"name": "gpu 02"}, "name"),
        ({"cpus": 0}, "cpus"),
        ({"colour": "blue"}, "colour"),
        (
            {"hcas": [{"model": "ConnectX-7", "rate_gbps": 400, "link_layer": "token"}]},
            "link_layer",
        ),
        ({"hcas": [{"model": "ConnectX-7"}]}, "rate_gbps"),
        ({"gpus": [{"numa": 0}]}, "model"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = deepcopy(TWO_NODES)
    content["nodes"][1].update(change)
    with pytest.raises(DescriptionError, match=message):
        read(tmp_path, content)


def test_broken_yaml_is_an_error_of_the_description(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text("nodes: [")
    with pytest.raises(DescriptionError, match=r"nodes\.yaml"):
        description.read(path)
