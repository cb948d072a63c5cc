"""What is asked of one host: every inventory key of ours, with its form, unit and default."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urljoin

from pydantic import BaseModel, ConfigDict, Field
from pyinfra.api.host import Host

from nodespec.catalogue import GPUS, HCAS, names
from nodespec.drivers import DRIVER_MIN_BY_CUDA
from nodespec.mig import MigLayoutEntry
from nodespec.problems import HostProblem, InventoryProblems
from nodespec.reading import merged, read
from nodespec.values import (
    PLACEHOLDERS,
    CudaVersion,
    DriverVersion,
    Endpoint,
    Fingerprint,
    Flag,
    GpuModelName,
    HcaModelName,
    Image,
    Int,
    KubeVersion,
    Labels,
    LayoutName,
    List,
    LocalPath,
    Mirrors,
    Namespace,
    NodeIp,
    NodeName,
    NoProxy,
    ProxyUrl,
    RepositoryUrl,
    ResourceName,
    ResourcePrefix,
    Taints,
    Version,
    exactly,
)

REQUIRED: Any = ...

CLUSTER_WIDE = ("kube_namespace", "nvidia_device_plugin_image", "rdma_device_plugin_image")
"""Keys that one object in the cluster carries for all nodes: hosts may not differ in them."""

FINGERPRINT = "40 hexadecimal digits of an OpenPGP key; blanks do not matter"
REPOSITORY = f"http(s) URL; may hold {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
PINNED = "registry/repository:tag or @digest, in full and pinned"


# Source: NVIDIA/cuda-repo-management README, "GPG Public Keys", and its issues 34 and 39 (read
# 2026-11-30): apt of Debian 13 refuses the older key's SHA-1 self-signature, so that NVIDIA signs
# the Debian 13 repository, and that one only, with a newer key.
CUDA_KEY = ("EB693B3035CD5710E231E123A4B469963BF863CC", "3bf863cc.pub")
CUDA_KEY_DEBIAN13 = ("02182E60104FCDC26EAE1B8597A5D4CB8793F200", "8793F200.pub")


def key(
    default: Any,
    meaning: str,
    *,
    form: str,
    example: Any,
    unit: str | None = None,
    section: str | None = None,
    default_is: str | None = None,
    **constraints: Any,
) -> Any:
    """
    Declare a key. The words go into error messages and into ``docs/inventory.md``.

    + section: heading of this key and those after it
    + default_is: the default in words, where it is not one value
    """
    if callable(default):
        constraints["default_factory"] = default
    else:
        constraints["default"] = default
    return Field(
        description=meaning,
        examples=[example],
        json_schema_extra={
            "form": form,
            "unit": unit,
            "section": section,
            "default_is": default_is,
        },
        **constraints,
    )


def _beside(repository: str, reference: str) -> Any:
    """Default for a key's URL: where the vendor has it, seen from the repository."""

    return lambda data: _join(data.get(repository, ""), reference)


def _join(base: str, reference: str) -> str:
    return urljoin(base if base.endswith("/") else f"{base}/", reference)


class NodeSpec(BaseModel):
    """What is asked of one host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_count: Int = key(
        REQUIRED,
        "GPUs that the host has, as PCI functions. A host with more or fewer is refused.",
        form="whole number",
        example=8,
        section="GPUs and MIG",
        ge=0,
        le=16,
    )
    gpu_model: GpuModelName | None = key(
        None,
        "Model of all GPUs of the host. Needed where `gpu_count` is not 0.",
        form=f"one of {names(GPUS)}",
        example="H100-SXM5-80GB",
    )
    nvidia_driver_version: DriverVersion = key(
        REQUIRED,
        "The driver, exactly: kernel module, libraries and tools.",
        form="full version, as in 580.178.04",
        example="580.178.04",
    )
    cuda_required: CudaVersion | None = key(
        None,
        "Newest CUDA version that containers bring: a driver that is older than it is refused. "
        "Programs that compile nothing at run time also run with the first driver of the same "
        "major version: ask for that one then, as in `13.0`.",
        form=f"one of {', '.join(DRIVER_MIN_BY_CUDA)}",
        example="13.0",
    )
    nvidia_kernel_module: Literal["open"] = key(
        "open",
        "Flavour of the kernel modules. GPUs before Turing need the proprietary one, which is not "
        "supported.",
        form="open",
        example="open",
    )
    mig_config: LayoutName = key(
        "all-disabled",
        "MIG layout: `all-disabled`, `all-<profile>` (as many devices of one profile as fit), "
        "`all-balanced`, or a name in `mig_layouts`. The profiles of each model are listed below.",
        form="name of a layout",
        example="all-1g.10gb",
    )
    mig_layouts: dict[LayoutName, List[MigLayoutEntry]] = key(
        dict,
        "Layouts of your own, in the form of mig-parted's `mig-configs`. Where several entries "
        "match a GPU, the last one decides; each GPU needs one.",
        form="name: list of entries with devices, mig-enabled, mig-devices, device-filter",
        example={
            "half": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
                {"devices": [1], "mig-enabled": False},
            ]
        },
    )
    mig_strategy: Literal["none", "single", "mixed"] = key(
        "none",
        "How the device plugin offers MIG devices: `single` as `nvidia.com/gpu`, which takes one "
        "profile on the whole node; `mixed` as `nvidia.com/mig-<profile>`.",
        form="none, single or mixed",
        example="mixed",
    )

    hca_count: Int = key(
        REQUIRED,
        "HCAs of `hca_model` that the host has, as PCI physical functions: an adapter with two "
        "ports counts as two. A host with more or fewer is refused.",
        form="whole number",
        example=8,
        section="InfiniBand and RDMA",
        ge=0,
        le=64,
    )
    hca_model: HcaModelName | None = key(
        None,
        "Model of the HCAs for user traffic. Needed where `hca_count` is not 0.",
        form=f"one of {names(HCAS)}",
        example="ConnectX-7",
    )
    hca_link_layer: Literal["infiniband", "ethernet"] = key(
        "infiniband",
        "Link layer of the HCAs' ports; `ethernet` is RoCE.",
        form="infiniband or ethernet",
        example="infiniband",
    )
    hca_rate_gbps: (
        Annotated[Literal[10, 25, 40, 50, 56, 100, 200, 400, 800], exactly(int)] | None
    ) = key(
        None,
        "Rate that each port must reach. Not checked if not given.",
        form="10, 25, 40, 50, 56, 100, 200, 400 or 800",
        example=400,
        unit="Gbit/s",
    )
    ofed: Literal["inbox"] = key(
        "inbox",
        "RDMA stack: `inbox` is the distribution's kernel and rdma-core.",
        form="inbox",
        example="inbox",
    )
    ipoib: Flag = key(
        True,
        "Load IP over InfiniBand at boot.",
        form="True or False",
        example=False,
    )
    gpudirect: Literal["auto", "dmabuf", "peermem", "none"] = key(
        "auto",
        "How HCAs reach GPU memory. `auto` takes DMA-BUF where kernel and driver have it; "
        "`peermem` needs a kernel that offers the peer-memory API; `none` asks for neither.",
        form="auto, dmabuf, peermem or none",
        example="dmabuf",
    )
    rdma_required: Flag = key(
        lambda data: data.get("hca_count", 0) > 0,
        "Keep the node closed unless its ports are as declared and it offers the RDMA resource. "
        "By default so on hosts with HCAs; where it is not, a port that is down is told in the "
        "log, and holds nothing up.",
        form="True or False",
        default_is="True where `hca_count` is not 0",
        example=True,
    )
    rdma_resource_name: ResourceName = key(
        "hca_shared",
        "Second half of the resource that pods ask for, as in `rdma/hca_shared`.",
        form="letters, digits and underscores, none at the ends, at most 63",
        example="hca_shared",
    )
    rdma_resource_prefix: ResourcePrefix = key(
        "rdma",
        "First half of the resource.",
        form="lower-case DNS name",
        example="rdma",
    )
    rdma_resource_max: Int = key(
        63,
        "Pods that may share the HCAs of a node. It is not a number of HCAs: each pod sees them "
        "all.",
        form="whole number",
        example=63,
        unit="pods",
        ge=1,
        le=1000,
    )

    container_runtime: Literal["containerd"] = key(
        "containerd",
        "Container runtime.",
        form="containerd",
        example="containerd",
        section="Container runtime",
    )
    containerd_version: Version = key(
        "2.4.2",
        "Version of Docker's package `containerd.io`.",
        form="full version, as in 2.4.2",
        example="2.4.2",
    )
    container_toolkit_version: Version = key(
        "1.20.2",
        "Version of the NVIDIA container toolkit, all its packages alike.",
        form="full version, as in 1.20.2",
        example="1.20.2",
    )
    nvidia_default_runtime: Annotated[Literal[True], exactly(bool)] = key(
        True,
        "The nvidia runtime is the default one, so that pods need no runtime class.",
        form="True",
        example=True,
    )
    registry_mirrors: Mirrors = key(
        dict,
        "Where containerd finds a registry's images instead. Repositories keep their paths.",
        form="registry host: http(s) URL",
        example={"docker.io": "https://mirror.example.com:5000"},
    )

    kube_version: KubeVersion = key(
        REQUIRED,
        "Version of kubelet and kubeadm; its minor is that of the control plane.",
        form="full version, as in 1.36.3",
        example="1.36.3",
        section="Kubernetes",
    )
    kube_api_server: Endpoint = key(
        REQUIRED,
        "API server as the hosts reach it.",
        form="host:port, without a scheme",
        example="10.0.0.1:6443",
    )
    kube_kubeconfig: LocalPath = key(
        REQUIRED,
        "Credentials for the cluster, on the machine that runs pyinfra. Its rights need be no more "
        "than those of `docs/rbac.yaml`; `docs/cluster-access.md` says how to make them.",
        form="path of a file on your machine; ~ is your home",
        example="~/.kube/rackwright.config",
    )
    kube_node_name: NodeName = key(
        REQUIRED,
        "Name of the Node object.",
        form="lower-case DNS name",
        default_is="the host's name in the inventory",
        example="gpu01",
    )
    kube_node_ip: NodeIp | None = key(
        None,
        "Address that the kubelet gives as the node's own. By default the kubelet chooses, which "
        "is a guess on a host with several networks.",
        form="IP address",
        example="10.0.0.11",
    )
    kube_labels: Labels = key(
        dict,
        "Labels of the Node, beside those that it has from elsewhere.",
        form="key: value",
        example={"example.com/rack": "r01"},
    )
    kube_taints: Taints = key(
        ("nvidia.com/gpu=present:NoSchedule",),
        "Taints that an open node keeps. The one that keeps it closed until it is validated is "
        "ours.",
        form="list of key[=value]:NoSchedule, :PreferNoSchedule or :NoExecute",
        example=["nvidia.com/gpu=present:NoSchedule"],
    )
    kube_namespace: Namespace = key(
        "rackwright",
        "Namespace of what we run in the cluster. The same on all nodes of a cluster.",
        form="lower-case DNS label",
        example="rackwright",
    )
    nvidia_device_plugin_image: Image = key(
        "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        "NVIDIA's device plugin. The same on all nodes of a cluster.",
        form=PINNED,
        example="nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
    )
    rdma_device_plugin_image: Image = key(
        "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3",
        "RDMA shared device plugin. The same on all nodes of a cluster.",
        form=PINNED,
        example="ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3",
    )
    pause_image: Image = key(
        "registry.k8s.io/pause:3.10.2",
        "Image of the pods' sandboxes, as kubeadm of `kube_version` expects it.",
        form=PINNED,
        example="registry.k8s.io/pause:3.10.2",
    )
    validation_image: Image = key(
        "registry.k8s.io/build-image/debian-base:bookworm-v1.0.4",
        "Image of the pods that validate a node as its users will see it. It needs `sh`, `ls`, "
        "`cat` and `sleep`.",
        form=PINNED,
        example="registry.k8s.io/build-image/debian-base:bookworm-v1.0.4",
    )

    debian_repository_url: RepositoryUrl | None = key(
        None,
        "Mirror of the distribution's own packages (Debian's or Ubuntu's). By default the host's "
        "own sources stay as they are.",
        form=REPOSITORY,
        example="https://mirror.example.com/{id}",
        section="Package repositories",
    )
    debian_repository_fingerprint: Fingerprint | None = key(
        None,
        "Key of that mirror. By default the distribution's own archive key.",
        form=FINGERPRINT,
        example="EB693B3035CD5710E231E123A4B469963BF863CC",
    )
    debian_repository_key_url: RepositoryUrl | None = key(
        None,
        "Where that key is. Needed with `debian_repository_fingerprint`.",
        form=REPOSITORY,
        example="https://mirror.example.com/archive.asc",
    )
    # Source: NVIDIA Driver Installation Guide release 620, "Network Repository Installation" (read
    # 2026-11-30).
    cuda_repository_url: RepositoryUrl = key(
        "https://developer.download.nvidia.com/compute/cuda/repos/{distro}/x86_64/",
        "NVIDIA's repository of the driver.",
        form=REPOSITORY,
        example="https://mirror.example.com/cuda/repos/{distro}/x86_64/",
    )
    cuda_repository_fingerprint: Fingerprint | None = key(
        None,
        "Key that signs it; any other is refused.",
        form=FINGERPRINT,
        default_is="NVIDIA's for the host's system: "
        f"`{CUDA_KEY_DEBIAN13[0]}` on Debian 13, `{CUDA_KEY[0]}` elsewhere",
        example="EB69 3B30 35CD 5710 E231 E123 A4B4 6996 3BF8 63CC",
    )
    cuda_repository_key_url: RepositoryUrl | None = key(
        None,
        "Where the key is. By default where NVIDIA has it, seen from `cuda_repository_url`.",
        form=REPOSITORY,
        default_is=f"`{CUDA_KEY_DEBIAN13[1]}` (Debian 13) or `{CUDA_KEY[1]}` in the repository",
        example="https://mirror.example.com/keys/cuda.pub",
    )
    # Source: NVIDIA Container Toolkit documentation, "Installing the NVIDIA Container Toolkit"
    # (NVIDIA/cloud-native-docs at 52dcb7b8).
    container_toolkit_repository_url: RepositoryUrl = key(
        "https://nvidia.github.io/libnvidia-container/stable/deb/amd64/",
        "NVIDIA's repository of the container toolkit.",
        form=REPOSITORY,
        example="https://mirror.example.com/libnvidia-container/stable/deb/amd64/",
    )
    container_toolkit_repository_fingerprint: Fingerprint = key(
        "C95B321B61E88C1809C4F759DDCAE044F796ECB0",
        "Key that signs it; any other is refused.",
        form=FINGERPRINT,
        example="C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    )
    container_toolkit_repository_key_url: RepositoryUrl = key(
        _beside("container_toolkit_repository_url", "../../../gpgkey"),
        "Where the key is. By default where NVIDIA has it, seen from the repository.",
        form=REPOSITORY,
        default_is="`../../../gpgkey` of the repository",
        example="https://mirror.example.com/keys/toolkit.asc",
    )
    # Source: Docker documentation, "Install Docker Engine on Debian" (read 2026-11-30).
    docker_repository_url: RepositoryUrl = key(
        "https://download.docker.com/linux/{id}",
        "Docker's repository, of which only `containerd.io` is taken.",
        form=REPOSITORY,
        example="https://mirror.example.com/docker/linux/{id}",
    )
    docker_repository_fingerprint: Fingerprint = key(
        "9DC858229FC7DD38854AE2D88D81803C0EBFCD88",
        "Key that signs it; any other is refused.",
        form=FINGERPRINT,
        example="9DC858229FC7DD38854AE2D88D81803C0EBFCD88",
    )
    docker_repository_key_url: RepositoryUrl = key(
        _beside("docker_repository_url", "gpg"),
        "Where the key is. By default where Docker has it, seen from the repository.",
        form=REPOSITORY,
        default_is="`gpg` in the repository",
        example="https://mirror.example.com/keys/docker.asc",
    )
    # Source: Kubernetes documentation, "Installing kubeadm" (read 2026-11-30): one repository for
    # each minor, all signed by one key.
    kubernetes_repository_url: RepositoryUrl = key(
        "https://pkgs.k8s.io/core:/stable:/v{minor}/deb/",
        "Kubernetes' repository of `kube_version`'s minor.",
        form=REPOSITORY,
        example="https://mirror.example.com/kubernetes/core:/stable:/v{minor}/deb/",
    )
    kubernetes_repository_fingerprint: Fingerprint = key(
        "DE15B14486CD377B9E876E1A234654DA9A296436",
        "Key that signs it; any other is refused.",
        form=FINGERPRINT,
        example="DE15B14486CD377B9E876E1A234654DA9A296436",
    )
    kubernetes_repository_key_url: RepositoryUrl = key(
        _beside("kubernetes_repository_url", "Release.key"),
        "Where the key is. By default where Kubernetes has it, seen from the repository.",
        form=REPOSITORY,
        default_is="`Release.key` in the repository",
        example="https://mirror.example.com/keys/kubernetes.asc",
    )

    http_proxy: ProxyUrl | None = key(
        None,
        "Proxy for http, for the package manager, containerd and our own downloads.",
        form="http(s) URL",
        example="http://proxy.example.com:3128",
        section="Proxy and certificates",
    )
    https_proxy: ProxyUrl | None = key(
        None,
        "Proxy for https.",
        form="http(s) URL",
        example="http://proxy.example.com:3128",
    )
    no_proxy: List[NoProxy] = key(
        (),
        "What is reached directly. The host itself, the API server, `kube_node_ip`, `.svc` and "
        "`.cluster.local` are added; add the networks of nodes, pods and services.",
        form="list of host, .domain, address or network",
        example=["10.0.0.0/24", "10.96.0.0/16", "10.244.0.0/16"],
    )
    ca_certificates: List[LocalPath] = key(
        (),
        "Private certificate authorities that the hosts are to trust.",
        form="list of paths of PEM files on your machine",
        example=["~/pki/example-ca.pem"],
    )

    audit: Flag = key(
        False,
        "Show the plan and change nothing.",
        form="True or False",
        example=True,
        section="The run itself",
    )
    reboot_timeout_s: Int = key(
        1800,
        "How long a host may take to come back. A GPU server's firmware can need more than ten "
        "minutes.",
        form="whole number",
        example=3600,
        unit="seconds",
        ge=30,
        le=14400,
    )
    clock_tolerance_s: Int = key(
        30,
        "How far the host's clock may be off the API server's, which judges certificates.",
        form="whole number",
        example=5,
        unit="seconds",
        ge=1,
        le=300,
    )
    disk_free_min_gib: Int = key(
        10,
        "Free space below which a host is refused, on the file systems of `/` and `/var`.",
        form="whole number",
        example=50,
        unit="GiB",
        ge=1,
        le=100_000,
    )

    @classmethod
    def of(cls, host: Host) -> Self:
        """Read the spec of *host*. Raises ``InventoryProblems`` that names every bad key."""
        spec, problems = read(cls, host.name, merged(host))
        if spec is None or problems:
            raise InventoryProblems(HostProblem((host.name,), problem) for problem in problems)
        return spec

    @property
    def api_host(self) -> str:
        """The host of ``kube_api_server``: a name or an address, without brackets."""
        return self.kube_api_server.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def ipv6(self) -> bool:
        """Whether the host reaches its cluster by IPv6, as far as the inventory tells."""
        return ":" in self.api_host or ":" in (self.kube_node_ip or "")

    @property
    def no_proxy_all(self) -> tuple[str, ...]:
        """``no_proxy`` and what must never go through a proxy, for configuration files."""
        own = (
            "localhost",
            "127.0.0.1",
            "::1",
            self.api_host,
            self.kube_node_ip,
            ".svc",
            ".cluster.local",
        )
        return tuple(dict.fromkeys([*(name for name in own if name), *self.no_proxy]))

    @property
    def rdma_resource(self) -> str:
        """The extended resource that pods ask for."""
        return f"{self.rdma_resource_prefix}/{self.rdma_resource_name}"

    def repository_key(
        self, name: str, *, os_id: str, os_version: str
    ) -> tuple[str | None, str | None]:
        """
        Return fingerprint and URL (with placeholders) of the key that signs a repository.

        Both are None where the distribution's own key does.

        + name: ``cuda``, ``container_toolkit``, ``docker``, ``kubernetes`` or ``debian``
        + os_id, os_version: ``ID`` and ``VERSION_ID`` of the host's os-release
        """
        fingerprint: str | None = getattr(self, f"{name}_repository_fingerprint")
        url: str | None = getattr(self, f"{name}_repository_key_url")
        if name == "cuda":
            default = CUDA_KEY_DEBIAN13 if (os_id, os_version) == ("debian", "13") else CUDA_KEY
            fingerprint = fingerprint or default[0]
            url = url or _join(self.cuda_repository_url, default[1])
        return fingerprint, url
