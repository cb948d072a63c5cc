"""What a user's pod sees. The pods of all nodes run at once; then each is judged."""

from __future__ import annotations

import pytest

from claims import Finding
from claims.pods import NotTested, judge
from claims.resources import expected
from facts.mig import Gpus
from tests.validation.fleet import Node, pods


def judged(node: Node, kind: str, request: pytest.FixtureRequest) -> None:
    gpus = node.readings.of(Gpus)
    findings: list[Finding] = []
    untested: list[str] = []
    for probe, result in pods(request.config.getoption("--inventory"))[node.name, kind]:
        try:
            findings += judge(node.spec, probe, result, gpus)
        except NotTested as error:
            untested.append(f"{probe.title} on {node.name}: want {error.want}, have {error}")
    assert not findings, "\n".join(map(str, findings))
    if untested:
        # A claim that needs a free device and finds none is neither pass nor fail.
        pytest.skip(f"not tested: {'; '.join(untested)}")


def test_pod_with_one_gpu_sees_exactly_that_one(node: Node, request) -> None:
    if any(name.startswith("nvidia.com/") for name in expected(node.spec)):
        judged(node, "gpu", request)


def test_pod_with_rdma_sees_the_verbs_devices(node: Node, request) -> None:
    if any(name.startswith(f"{node.spec.rdma_resource_prefix}/") for name in expected(node.spec)):
        judged(node, "rdma", request)


def test_pod_without_either_sees_none(node: Node, request) -> None:
    judged(node, "bare", request)
