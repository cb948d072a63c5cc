"""Each component once more, by another way than the one that configured it."""

from __future__ import annotations

import re

from claims.resources import expected
from tests.validation.fleet import Node


def test_the_driver_answers_for_every_gpu(node: Node) -> None:
    listed = node.host.check_output("nvidia-smi -L")
    assert len(re.findall(r"^GPU \d+:", listed, re.MULTILINE)) == node.spec.gpu_count


def test_the_kernel_has_the_driver_that_was_asked_for(node: Node) -> None:
    if node.spec.gpu_count:
        version = node.host.check_output("cat /sys/module/nvidia/version")
        assert version == node.spec.nvidia_driver_version


def test_verbs_see_every_hca_port_active(node: Node) -> None:
    if node.spec.hca_count:
        told = node.host.check_output("ibstat")
        assert len(re.findall(r"^\s+State: Active$", told, re.MULTILINE)) >= node.spec.hca_count


def test_containerd_answers_the_kubelet(node: Node) -> None:
    info = node.host.check_output(
        "crictl --runtime-endpoint unix:///run/containerd/containerd.sock info"
    )
    assert '"defaultRuntimeName": "nvidia"' in info


def test_no_swap(node: Node) -> None:
    assert node.host.check_output("cat /proc/swaps").count("\n") == 0


def test_the_node_offers_what_it_has(node: Node, state) -> None:
    for resource, count in expected(node.spec).items():
        assert state.allocatable.get(resource) == str(count), resource
