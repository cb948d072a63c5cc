"""Who else manages GPUs and RDMA devices in this cluster."""

from __future__ import annotations

from typing import Final

from cluster.api import Api
from cluster.names import MANAGED_BY

# Source: NVIDIA GPU Operator documentation, "Install", ClusterPolicy nvidia.com/v1; NVIDIA Network
# Operator documentation, "Customization Options", NicClusterPolicy mellanox.com/v1alpha1 (read
# 2026-11-30)
POLICIES: Final = {
    "/apis/nvidia.com/v1/clusterpolicies": "ClusterPolicy of the NVIDIA GPU Operator",
    "/apis/mellanox.com/v1alpha1/nicclusterpolicies": "NicClusterPolicy of the Network Operator",
}

# A second plugin for the same devices takes the first one's socket away.
# Source: github.com/Mellanox/k8s-rdma-shared-dev-plugin issue 319
PLUGIN_IMAGES: Final = ("k8s-device-plugin", "k8s-rdma-shared-dev-plugin")


def find(api: Api) -> str | None:
    """The first one found, named, or ``None``."""
    for path, title in POLICIES.items():
        # No such resource in this cluster: the operator was never installed.
        for policy in api.list_if_served(path):
            return f"{title}: {policy['metadata']['name']}"
    for daemonset in api.list("/apis/apps/v1/daemonsets"):
        meta = daemonset["metadata"]
        if MANAGED_BY.items() <= meta.get("labels", {}).items():
            continue
        for container in daemonset["spec"]["template"]["spec"]["containers"]:
            name = container.get("image", "").split("@")[0].rsplit("/", 1)[-1].split(":")[0]
            if name in PLUGIN_IMAGES or meta["namespace"] == "gpu-operator":
                return (
                    f"DaemonSet {meta['namespace']}/{meta['name']} with image {container['image']}"
                )
    return None
