"""The lab of `python -m lab up`: two nodes with simulated hardware, and everything they need."""

import os
from pathlib import Path

from pyinfra.api.exceptions import InventoryError

CACHE = Path(os.environ.get("RACKWRIGHT_CACHE") or Path.home() / ".cache/rackwright")
MIRROR = "http://10.88.0.1:8080"
REGISTRY = "http://10.88.0.1:5000"

try:
    KEY = (CACHE / "mirror/fingerprint").read_text().strip()
except OSError:
    raise InventoryError(
        f"lab: want the fingerprint of its mirror's key, have no {CACHE / 'mirror/fingerprint'}; "
        "run `python -m lab up`"
    ) from None

gpu_nodes = (
    [
        (
            "gpu01",
            {
                "ssh_hostname": "10.88.0.11",
                "gpu_model": "A100-SXM4-40GB",
                "hca_model": "ConnectX-6",
                "hca_rate_gbps": 200,
                "mig_config": "all-1g.5gb",
                "mig_strategy": "mixed",
            },
        ),
        (
            "gpu02",
            {
                "ssh_hostname": "10.88.0.12",
                "gpu_model": "H100-SXM5-80GB",
                "hca_model": "ConnectX-7",
                "hca_rate_gbps": 400,
            },
        ),
    ],
    {
        "ssh_user": "lab",
        "ssh_key": str(CACHE / "state/ssh/id_ed25519"),
        "ssh_known_hosts_file": str(CACHE / "state/ssh/known_hosts"),
        "gpu_count": 2,
        "hca_count": 2,
        "hca_link_layer": "infiniband",
        "nvidia_driver_version": "580.178.04",
        "kube_api_server": "10.88.0.1:6443",
        "kube_kubeconfig": str(CACHE / "state/control-plane/rackwright.kubeconfig"),
        "validation_image": "registry.k8s.io/rackwright-lab/probe:1",
        # The vendors' layouts, all signed by one key of the lab.
        "debian_repository_url": f"{MIRROR}/debian",
        "debian_repository_key_url": f"{MIRROR}/cuda/repos/debian13/x86_64/3bf863cc.pub",
        "debian_repository_fingerprint": KEY,
        "cuda_repository_url": f"{MIRROR}/cuda/repos/{{distro}}/x86_64/",
        "cuda_repository_key_url": f"{MIRROR}/cuda/repos/{{distro}}/x86_64/3bf863cc.pub",
        "cuda_repository_fingerprint": KEY,
        "container_toolkit_repository_url": f"{MIRROR}/libnvidia-container/stable/deb/amd64/",
        "container_toolkit_repository_fingerprint": KEY,
        "docker_repository_url": f"{MIRROR}/docker/linux/{{id}}",
        "docker_repository_fingerprint": KEY,
        "kubernetes_repository_url": f"{MIRROR}/kubernetes/core:/stable:/v{{minor}}/deb/",
        "kubernetes_repository_fingerprint": KEY,
        "registry_mirrors": {
            registry: REGISTRY
            for registry in ("docker.io", "ghcr.io", "nvcr.io", "registry.k8s.io")
        },
        "reboot_timeout_s": 900,  # emulated
    },
)
