"""What differs between the systems that are supported: names of packages."""

from __future__ import annotations

from dataclasses import dataclass

from facts.os import OsReleaseState


@dataclass(frozen=True, slots=True)
class System:
    """One release of a distribution."""

    id: str
    version: str
    rdma_packages: tuple[str, ...]
    headers: str
    """Package with the headers of one kernel; ``{kernel}`` is its version."""
    headers_meta: dict[str, str]
    """Package that brings the headers of every later kernel, by the one that brings the kernels."""
    driver_packages: tuple[str, ...]
    """The driver for computing, all of one version."""
    driver_pinning: str
    """Package that keeps apt at one driver; ``{version}`` is the driver's."""


# Source: packages.debian.org and packages.ubuntu.com, rdma-core source package (read 2026-11-30).
RDMA = ("rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags")

# Source: NVIDIA Driver Installation Guide 620, "Debian", "Compute-only installation", and the
# dependencies of NVIDIA's debian12 and debian13 repositories (read 2026-11-30).
DEBIAN_DRIVER = (
    "nvidia-kernel-open-dkms",
    "nvidia-kernel-support",
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver-cuda",
    "nvidia-persistenced",
    "nvidia-modprobe",
)
# Source: NVIDIA Driver Installation Guide 620, "Ubuntu" (read 2026-11-30). The packages below the
# metapackage were renamed with branch 590; the metapackage and the pinning package were not.
UBUNTU_DRIVER = ("nvidia-open",)
PINNING = "nvidia-driver-pinning-{version}"

DEBIAN_META = {
    "linux-image-amd64": "linux-headers-amd64",
    "linux-image-cloud-amd64": "linux-headers-cloud-amd64",
}


def _debian(version: str) -> System:
    return System(
        "debian", version, RDMA, "linux-headers-{kernel}", DEBIAN_META, DEBIAN_DRIVER, PINNING
    )


def _ubuntu(version: str) -> System:
    meta = {
        "linux-image-generic": "linux-headers-generic",
        f"linux-image-generic-hwe-{version}": f"linux-headers-generic-hwe-{version}",
    }
    return System("ubuntu", version, RDMA, "linux-headers-{kernel}", meta, UBUNTU_DRIVER, PINNING)


SYSTEMS = {
    (system.id, system.version): system
    for system in (_debian("12"), _debian("13"), _ubuntu("22.04"), _ubuntu("24.04"))
}
"""By id and version of os-release."""


def system(release: OsReleaseState) -> System | None:
    """The system of a host, ``None`` if it is not supported."""
    return SYSTEMS.get((release.id, release.version))
