"""What a host's keys, each right by itself, may have wrong together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from nodespec import catalogue, drivers, mig
from nodespec.problems import Problem, show

if TYPE_CHECKING:
    from nodespec.model import NodeSpec

Check = Callable[["NodeSpec"], Iterator[Problem]]

CHECKS: list[tuple[frozenset[str], Check]] = []
"""Each with the keys that it reads: it is left out where one of them is wrong by itself."""

DEFAULT_MISSING = "add it for the host, its group, or all in group_data/all.py"

# Source: kubeadm's JoinConfiguration v1beta4 came with Kubernetes 1.31 (Kubernetes documentation,
# "kubeadm Configuration (v1beta4)", read 2026-11-30).
KUBE_MIN = "1.31"

# The first with nvidia-cdi-refresh.service, and with CDI by default: before, a container got its
# GPUs past systemd, and lost them when systemd read its units anew.
# Source: NVIDIA/nvidia-container-toolkit deployments/systemd, and CHANGELOG.md, which has no word
# of it up to v1.17.8; issue 48.
TOOLKIT_MIN = "1.18.0"

# Source: containerd RELEASES.md, "Kubernetes Support" at 301026e5 (read 2026-11-30).
CONTAINERD_FOR_KUBE = {"1.36": "2.2.0", "1.35": "2.1.5"}


def check(*keys: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS.append((frozenset(keys), function))
        return function

    return add


def problems_of(spec: NodeSpec, wrong: frozenset[str] = frozenset()) -> list[Problem]:
    """Return the contradictions within *spec*, leaving out checks that read a key in *wrong*."""
    return [problem for keys, function in CHECKS if not keys & wrong for problem in function(spec)]


@check("gpu_count", "gpu_model")
def gpus(spec: NodeSpec) -> Iterator[Problem]:
    if spec.gpu_count > 0 and spec.gpu_model is None:
        want = f"one of {catalogue.names(catalogue.GPUS)}"
        yield Problem("gpu_model", want, "nothing", DEFAULT_MISSING)
    if spec.gpu_count == 0 and spec.gpu_model is not None:
        todo = "set gpu_count, or leave out gpu_model"
        yield Problem("gpu_model", "nothing where gpu_count is 0", repr(spec.gpu_model), todo)


@check("gpu_model", "nvidia_kernel_module")
def kernel_module(spec: NodeSpec) -> Iterator[Problem]:
    if spec.gpu_model is not None and not catalogue.gpu(spec.gpu_model).open_module_supported:
        model = catalogue.gpu(spec.gpu_model)
        todo = (
            f"{model.architecture} GPUs need the proprietary modules, which are not supported yet"
        )
        yield Problem("gpu_model", "a GPU that the open kernel modules drive", model.name, todo)


@check("gpu_model", "nvidia_driver_version")
def driver(spec: NodeSpec) -> Iterator[Problem]:
    if spec.gpu_model is None:
        return
    model = catalogue.gpu(spec.gpu_model)
    first = model.open_driver_min
    if model.open_module_supported and Version(spec.nvidia_driver_version) < Version(first):
        yield Problem(
            "nvidia_driver_version",
            f"{first} or later for {model.name}",
            spec.nvidia_driver_version,
            "choose a later driver",
        )


@check("gpu_count", "cuda_required", "nvidia_driver_version")
def cuda(spec: NodeSpec) -> Iterator[Problem]:
    wanted = spec.cuda_required
    if wanted is None:
        return
    if not spec.gpu_count:
        todo = "set gpu_count, or leave out cuda_required"
        yield Problem("cuda_required", "nothing where gpu_count is 0", repr(wanted), todo)
        return
    have, first = spec.nvidia_driver_version, drivers.DRIVER_MIN_BY_CUDA[wanted]
    if Version(have) >= Version(first):
        return
    todo = "choose a later driver"
    least = drivers.first_of_major(wanted)
    if Version(have) >= Version(drivers.DRIVER_MIN_BY_CUDA[least]):
        todo += f", or ask for CUDA {least} if no program compiles PTX at run time"
    yield Problem("nvidia_driver_version", f"{first} or later for CUDA {wanted}", have, todo)


@check("gpu_model", "mig_config", "mig_layouts")
def mig_layout_known(spec: NodeSpec) -> Iterator[Problem]:
    if problem := mig.unknown(spec):
        yield problem


@check(
    "gpu_count", "gpu_model", "mig_config", "mig_layouts", "mig_strategy", "nvidia_driver_version"
)
def mig_layout(spec: NodeSpec) -> Iterator[Problem]:
    if mig.unknown(spec):
        return  # told by the check that needs less to be right
    if spec.gpu_count == 0 or spec.gpu_model is not None:
        yield from mig.problems(spec)


@check("hca_count", "hca_model", "hca_rate_gbps")
def hcas(spec: NodeSpec) -> Iterator[Problem]:
    if spec.hca_count > 0 and spec.hca_model is None:
        want = f"one of {catalogue.names(catalogue.HCAS)}"
        yield Problem("hca_model", want, "nothing", DEFAULT_MISSING)
    if spec.hca_count == 0:
        for key, value in (("hca_model", spec.hca_model), ("hca_rate_gbps", spec.hca_rate_gbps)):
            if value is not None:
                todo = f"set hca_count, or leave out {key}"
                yield Problem(key, "nothing where hca_count is 0", repr(value), todo)
    elif spec.hca_model is not None and spec.hca_rate_gbps is not None:
        model = catalogue.hca(spec.hca_model)
        if spec.hca_rate_gbps > model.rate_gbps_max:
            want = f"at most {model.rate_gbps_max} Gbit/s, which is what a port of {model.name} has"
            todo = "correct hca_rate_gbps or hca_model"
            yield Problem("hca_rate_gbps", want, str(spec.hca_rate_gbps), todo)


@check("hca_count", "rdma_required")
def rdma(spec: NodeSpec) -> Iterator[Problem]:
    if spec.rdma_required and spec.hca_count == 0:
        todo = "set hca_count and hca_model, or leave out rdma_required"
        yield Problem("rdma_required", "False where hca_count is 0", "True", todo)


@check("gpu_count", "hca_count", "gpudirect")
def gpudirect(spec: NodeSpec) -> Iterator[Problem]:
    if spec.gpudirect in ("dmabuf", "peermem") and not (spec.gpu_count and spec.hca_count):
        missing = "GPUs" if not spec.gpu_count else "HCAs"
        todo = "set the counts, or leave out gpudirect"
        yield Problem(
            "gpudirect", f"'auto' or 'none' without {missing}", repr(spec.gpudirect), todo
        )


@check("kube_version")
def kube(spec: NodeSpec) -> Iterator[Problem]:
    if Version(spec.kube_version) < Version(KUBE_MIN):
        todo = "older releases join with another configuration format"
        yield Problem("kube_version", f"{KUBE_MIN} or later", spec.kube_version, todo)


@check("kube_version", "containerd_version")
def containerd(spec: NodeSpec) -> Iterator[Problem]:
    have = Version(spec.containerd_version)
    first = next(
        (
            containerd
            for minor, containerd in CONTAINERD_FOR_KUBE.items()
            if Version(spec.kube_version) >= Version(minor)
        ),
        "2.0.0",  # the first whose configuration (version 3) is written here
    )
    if have < Version(first):
        want = f"{first} or later with Kubernetes {spec.kube_version}"
        yield Problem("containerd_version", want, str(have), "choose a later containerd")


@check("container_toolkit_version")
def container_toolkit(spec: NodeSpec) -> Iterator[Problem]:
    if Version(spec.container_toolkit_version) < Version(TOOLKIT_MIN):
        want = f"{TOOLKIT_MIN} or later"
        todo = "with older ones running containers lose their GPUs when systemd is reloaded"
        yield Problem("container_toolkit_version", want, spec.container_toolkit_version, todo)


@check("debian_repository_url", "debian_repository_fingerprint", "debian_repository_key_url")
def debian_repository(spec: NodeSpec) -> Iterator[Problem]:
    key_url, fingerprint = spec.debian_repository_key_url, spec.debian_repository_fingerprint
    if (key_url is None) != (fingerprint is None):
        have = "only one of them"
        todo = "a key of your own takes both; the distribution's own key takes neither"
        yield Problem(
            "debian_repository_fingerprint", "it and debian_repository_key_url together", have, todo
        )
    if fingerprint is not None and spec.debian_repository_url is None:
        todo = "set it, or leave out its key"
        yield Problem("debian_repository_url", "the mirror that the key is for", "nothing", todo)


@check("ca_certificates")
def certificates(spec: NodeSpec) -> Iterator[Problem]:
    # On the host each file is named after the one here, without its folder.
    paths: dict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys(spec.ca_certificates):
        paths[re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem)].append(str(path))
    for same in paths.values():
        if len(same) > 1:
            todo = "rename one, or put them into one file"
            yield Problem("ca_certificates", "files with names of their own", show(same), todo)
