"""
A part of Debian 13: what the product installs on a bare guest, and all that it needs.

What that is, apt's own resolver says, asked as if nothing were installed: more than a guest will
fetch, never less.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lab.errors import LabError
from lab.mirror.apt import EmptySystem, get
from lab.mirror.locking import locked
from lab.mirror.repositories import REPOSITORIES, link
from lab.paths import BUILD

SUITE = "trixie"
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
    base = archive()
    stamp = APT / "done"
    wanted = hashlib.sha256(repr((base, SUITE, PACKAGES)).encode()).hexdigest()
    pool = REPOSITORIES["debian"].root / "pool"
    if not refresh and pool.is_dir() and stamp.is_file() and stamp.read_text() == wanted:
        return
    start = time.monotonic()
    with locked(APT / "lock"):
        stamp.unlink(missing_ok=True)
        source = f"deb [signed-by={KEYRING}] {base} {SUITE} {COMPONENT}"
        apt = EmptySystem(APT, [source])
        report(f"debian: asking apt what {len(PACKAGES)} packages of {SUITE} need")
        apt.get("update")
        install = ["install", "--yes", "--install-recommends", *PACKAGES]
        # apt does not name what it has fetched before: it is shown an empty archive.
        nothing = f"Dir::Cache::Archives={APT / 'nothing'}/"
        (APT / "nothing/partial").mkdir(parents=True, exist_ok=True)
        packages = closure(apt.get("-o", nothing, *install, "--print-uris"), base)
        total = sum(package.size for package in packages) / 2**20
        report(f"debian: fetching {len(packages)} packages, {total:.0f} MiB")
        apt.get(*install, "--download-only")
        _publish(packages, apt.archives, pool)
        stamp.write_text(wanted)
    report(f"debian: done in {time.monotonic() - start:.0f} s")


def archive() -> str:
    """
    The Debian archive that this machine itself uses, or the one named by LAB_DEBIAN_ARCHIVE.

    Which suite the machine is on does not matter: an archive has them all.
    """
    named = os.environ.get("LAB_DEBIAN_ARCHIVE")
    if named:
        return named.rstrip("/") + "/"
    targets = get(
        "indextargets", "--format", "$(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"
    )
    for line in targets.splitlines():
        label, component, uri = line.split(" ", 2)
        if (label, component) == ("Debian", COMPONENT):
            return uri.rstrip("/") + "/"
    raise LabError(
        "debian: want an archive of Debian among this machine's apt sources, have none; "
        "name one in LAB_DEBIAN_ARCHIVE"
    )


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
