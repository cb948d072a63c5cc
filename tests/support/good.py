"""A host's inventory data that has no problem."""

from __future__ import annotations

from typing import Any

GOOD: dict[str, Any] = {
    "ssh_strict_host_key_checking": "yes",
    "gpu_model": "A100-SXM4-40GB",
    "gpu_count": 2,
    "hca_model": "ConnectX-6",
    "hca_count": 2,
    "nvidia_driver_version": "580.178.04",
    "kube_version": "1.36.3",
    "kube_api_server": "10.0.0.1:6443",
    "kube_kubeconfig": "~/.kube/config",
}
