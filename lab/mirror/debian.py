"""
A part of Debian 13: what the guests consist of, what the product installs there, and all it needs.

What that is, apt's own resolver says, asked as if nothing were installed: more than a guest will
fetch, never less.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lab.errors import LabError
from lab.guest import image
from lab.mirror.apt import EmptySystem
from lab.mirror.locking import locked
from lab.mirror.repositories import REPOSITORIES, link
from lab.paths import BUILD

SUITE = image.SUITE
COMPONENT = "main"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

PACKAGES = (
    # RDMA user space and its tools
    *("rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags", "perftest"),
    *("libibumad3", "librdmacm1", "rdmacm-utils", "opensm", "mstflint", "numactl", "hwloc-nox"),
    # what kubeadm and kube-proxy look for
    *("conntrack", "socat", "ethtool", "iptables", "ebtables", "ipset", "nftables", "iproute2"),
    *("mount", "util-linux", "apparmor", "libseccomp2", "libc6"),
    # kernel, its headers, and out-of-tree modules
    *("linux-image-amd64", "linux-headers-amd64", "dkms", "gcc", "make", "kmod", "pciutils"),
    *("initramfs-tools", "mokutil", "libc6-dev"),
    # the base that a host is expected to have
    *("chrony", "ca-certificates", "gpgv", "gpg", "curl", "jq", "procps", "udev", "systemd"),
    *("lsof", "python3-minimal"),
)


APT = BUILD / "debian-apt"


@dataclass(frozen=True, slots=True)
class Package:
    """A file that apt would fetch."""

    pool_path: str
    """From the archive's root, as ``pool/main/r/rdma-core/...``."""
    file_name: str
    """As apt keeps it, with the version's epoch."""
    size: int


def build(report: Callable[[str], None], *, refresh: bool = False) -> None:
    """Fetch the packages into the mirror's pool; no network is used if they are there already."""
    wanted = sorted({*PACKAGES, *image.PACKAGES})
    stamp = APT / "done"
    made_from = hashlib.sha256(repr((SUITE, wanted)).encode()).hexdigest()
    pool = REPOSITORIES["debian"].root / "pool"
    if not refresh and pool.is_dir() and stamp.is_file() and stamp.read_text() == made_from:
        return
    start = time.monotonic()
    with locked(APT / "lock"):
        stamp.unlink(missing_ok=True)
        base = image.debian_mirror().rstrip("/") + "/"
        source = f"deb [signed-by={KEYRING}] {base} {SUITE} {COMPONENT}"
        apt = EmptySystem(APT, [source])
        report(f"debian: asking apt what {len(wanted)} packages of {SUITE} need")
        apt.get("update")
        install = ["install", "--yes", "--install-recommends", *wanted]
        # apt does not name what it has fetched before: it is shown an empty archive.
        nothing = f"Dir::Cache::Archives={APT / 'nothing'}/"
        (APT / "nothing/partial").mkdir(parents=True, exist_ok=True)
        packages = closure(apt.get("-o", nothing, *install, "--print-uris"), base)
        total = sum(package.size for package in packages) / 2**20
        report(f"debian: fetching {len(packages)} packages, {total:.0f} MiB")
        apt.get(*install, "--download-only")
        _publish(packages, apt.archives, pool)
        stamp.write_text(made_from)
    report(f"debian: done in {time.monotonic() - start:.0f} s")


def closure(uris: str, base: str) -> list[Package]:
    """Parse what ``apt-get --print-uris`` says; files of other archives are refused."""
    packages = []
    for line in uris.splitlines():
        if not line.startswith("'"):
            continue  # "Reading package lists..." and the like
        uri, file_name, size, *_ = shlex.split(line)
        if not uri.startswith(base):
            raise LabError(f"debian: want packages from {base}, have {uri}")
        packages.append(Package(unquote(uri.removeprefix(base)), file_name, int(size)))
    if not packages:
        raise LabError(f"debian: want packages to fetch, have none in {uris[:200]!r}")
    return packages


def _publish(packages: Iterable[Package], archives: Path, pool: Path) -> None:
    wanted = set()
    for package in packages:
        target = pool.parent / package.pool_path
        link(archives / package.file_name, target)
        wanted.add(target)
    for old in set(pool.rglob("*.deb")) - wanted:
        old.unlink()
