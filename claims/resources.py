"""What a node has to offer, from its spec."""

from __future__ import annotations

from collections import Counter

from kubernetes.utils.quantity import parse_quantity

from nodespec import NodeSpec, mig_layout


def plugins_name(profile: str) -> str:
    """A MIG profile in a resource's name, where no ``+`` may be."""
    return profile.replace("+", ".")


def expected(spec: NodeSpec) -> dict[str, int]:
    """
    Allocatable resources of a node that is as asked, as in ``{"nvidia.com/mig-1g.5gb": 14}``.

    Source: NVIDIA/k8s-device-plugin README.md and internal/lm/mig-strategy.go, commit 1b826ac
    (read 2026-11-30).
    """
    offered: Counter[str] = Counter()
    layout = mig_layout(spec)
    divided = [gpu for gpu in layout if gpu.enabled]
    if spec.gpu_count:
        if spec.mig_strategy == "none" or not divided:
            offered["nvidia.com/gpu"] = spec.gpu_count
        elif spec.mig_strategy == "single":
            offered["nvidia.com/gpu"] = sum(len(gpu.profiles) for gpu in divided)
        else:
            if whole := spec.gpu_count - len(divided):
                offered["nvidia.com/gpu"] = whole
            for gpu in divided:
                for profile in gpu.profiles:
                    offered[f"nvidia.com/mig-{plugins_name(profile)}"] += 1
    if spec.hca_count and spec.rdma_required:
        offered[f"{spec.rdma_resource_prefix}/{spec.rdma_resource_name}"] = spec.rdma_resource_max
    return dict(offered)


def differences(spec: NodeSpec, allocatable: dict[str, str]) -> list[str]:
    """How what a node offers differs from what it has to, one clause each."""
    wanted = expected(spec)
    prefixes = ("nvidia.com/", f"{spec.rdma_resource_prefix}/")
    # A thousand shares are "1k" in the API's words.
    offered = {
        name: int(parse_quantity(count))  # type: ignore[no-untyped-call]
        for name, count in allocatable.items()
        if name.startswith(prefixes)
    }
    clauses = [
        f"{name} {offered.get(name, 'none')} instead of {count}"
        for name, count in sorted(wanted.items())
        if offered.get(name) != count
    ]
    # A name of an older layout stays on the Node with 0 until the kubelet forgets it.
    clauses += [
        f"{name} {count} instead of none"
        for name, count in sorted(offered.items())
        if name not in wanted and count
    ]
    return clauses
