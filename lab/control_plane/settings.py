"""Where the control plane listens, what it is made of, and what kubeadm is told of it."""

from __future__ import annotations

from pathlib import Path

import jinja2

from lab.description import load
from lab.errors import LabError
from lab.mirror import go
from lab.paths import KUBECONFIG_ADMIN, STATE, TREE
from lab.registry.images import CNI

PORT = 6443
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
NAME = "rackwright-lab"
CERTIFIED = ("127.0.0.1", "localhost", "fd88::1")
"""What the API server's certificate is for, beside its address: a test of IPv6 leads there."""

FOLDER = STATE / "control-plane"
PKI = FOLDER / "pki"
ETCD_DATA = FOLDER / "etcd"
PRODUCT_RIGHTS = TREE.parent / "docs/rbac.yaml"
# Nodes pull from public registries' names by way of the lab's registry, as in a hall without a way
# out: its own address is one that containerd would speak TLS to.
IMAGE_REGISTRY = "registry.k8s.io"
TEMPLATES = Path(__file__).resolve().parent

# What a node finds its cluster's certificate authority under. It goes into the ConfigMap from which
# every kubelet gets its configuration: a kubelet told of any other folder dies.
NODE_CERTIFICATES = "/etc/kubernetes/pki"


def host() -> str:
    return str(load().network.host)


def endpoint() -> str:
    return f"https://{host()}:{PORT}"


def kubernetes(report: go.Report) -> dict[str, Path]:
    return go.build("kubernetes", report)


def kubeadm_configuration(certificates: str) -> str:
    return render(
        "kubeadm.yaml.j2",
        host=host(),
        port=PORT,
        name=NAME,
        version=go.SETS["kubernetes"].version,
        certificates=certificates,
        certified=CERTIFIED,
        pods=PODS,
        services=SERVICES,
    )


def cluster_manifest() -> str:
    return render("cluster.yaml.j2", host=host(), port=PORT, image=f"{IMAGE_REGISTRY}/{CNI}")


def render(template: str, **values: object) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string((TEMPLATES / template).read_text()).render(values)


def kubeconfig(name: str) -> Path:
    """The lab's own clients of the API."""
    if name == "admin":
        return KUBECONFIG_ADMIN
    if name not in ("super-admin", "controller-manager", "scheduler"):
        raise LabError(f"control plane: want one of kubeadm's clients, have {name!r}")
    return FOLDER / f"{name}.kubeconfig"
