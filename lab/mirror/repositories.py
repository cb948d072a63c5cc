"""Where each vendor's packages lie below the web root, and the signed indexes over them."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.mirror import signing
from lab.paths import BUILD, MIRROR, MIRROR_FOR_CLIENT

NOTE = "Rackwright lab, in place of the vendor; signed by the lab"


@dataclass(frozen=True, slots=True)
class Repository:
    """
    One apt repository. Flat if it has no ``suite``: its indexes then lie at ``path`` itself.

    ``release`` are the fields that pins match; they are the vendor's own.
    """

    path: str
    pool: str
    """Where packages lie, relative to ``path``."""
    key_paths: tuple[str, ...]
    """Where the vendor publishes its key, from the web root."""
    release: dict[str, str]
    suite: str = ""
    component: str = ""
    immutable: bool = False
    """A package of one name always has the same content; the lab's own are made anew at times."""

    @property
    def root(self) -> Path:
        return MIRROR / self.path

    @property
    def release_dir(self) -> Path:
        return self.root / "dists" / self.suite if self.suite else self.root

    @property
    def packages_dir(self) -> Path:
        return self.release_dir / self.component / "binary-amd64" if self.suite else self.root

    def source(self, base_url: str, signed_by: str) -> str:
        """One line of sources.list for it."""
        where = f"{self.suite} {self.component}" if self.suite else "./"
        return f"deb [signed-by={signed_by} arch=amd64] {base_url}/{self.path} {where}"


REPOSITORIES: dict[str, Repository] = {
    "debian": Repository(
        path="debian",
        pool="pool",
        key_paths=(),
        suite="trixie",
        component="main",
        immutable=True,
        release={
            "Origin": "Debian",
            "Label": "Debian",
            "Suite": "stable",
            "Codename": "trixie",
            "Version": "13",
            "Components": "main",
        },
    ),
    # Source: NVIDIA Driver Installation Guide r620, "Network Repository Installation" (layout);
    # its Release file has the origin and label below (observed in `apt-cache policy` listings).
    "cuda": Repository(
        path="cuda/repos/debian13/x86_64",
        pool=".",
        # The second is what NVIDIA signs its repository for Debian 13 with.
        key_paths=(
            "cuda/repos/debian13/x86_64/3bf863cc.pub",
            "cuda/repos/debian13/x86_64/8793F200.pub",
        ),
        release={"Origin": "NVIDIA", "Label": "NVIDIA CUDA"},
    ),
    # Source: NVIDIA cloud-native-docs, container-toolkit/install-guide (read 2026-11-30) for layout
    # and key; release fields as for cuda.
    "libnvidia-container": Repository(
        path="libnvidia-container/stable/deb/amd64",
        pool=".",
        key_paths=("libnvidia-container/gpgkey",),
        release={
            "Origin": "https://nvidia.github.io/libnvidia-container",
            "Label": "NVIDIA CORPORATION <cudatools@nvidia.com>",
            "Suite": "bionic",
            "Codename": "bionic",
        },
    ),
    # Source: Docker documentation, "Install Docker Engine on Debian" (read 2026-11-30).
    "docker": Repository(
        path="docker/linux/debian",
        pool="dists/trixie/pool/stable/amd64",
        key_paths=("docker/linux/debian/gpg",),
        suite="trixie",
        component="stable",
        release={
            "Origin": "Docker",
            "Label": "Docker CE",
            "Suite": "trixie",
            "Codename": "trixie",
            "Components": "stable",
        },
    ),
    # Source: Kubernetes documentation, "Installing kubeadm" (read 2026-11-30); release fields as
    # for cuda.
    "kubernetes": Repository(
        path="kubernetes/core:/stable:/v1.36/deb",
        pool="amd64",
        key_paths=("kubernetes/core:/stable:/v1.36/deb/Release.key",),
        release={
            "Origin": "obs://build.opensuse.org/isv:kubernetes:core:stable:v1.36/deb",
            "Label": "isv:kubernetes:core:stable:v1.36",
            "Codename": "deb",
        },
    ),
}


def fill(repository: Repository, packages: Iterable[Path]) -> None:
    """Put exactly these packages into a repository's pool."""
    pool = repository.root / repository.pool
    pool.mkdir(parents=True, exist_ok=True)
    wanted = {package.name: package for package in packages}
    for old in pool.glob("*.deb"):
        if old.name not in wanted:
            old.unlink()
    for name, package in wanted.items():
        link(package, pool / name)


def index(repository: Repository) -> bool:
    """Write and sign a repository's indexes; false if they were those of its packages already."""
    release_dir, packages_dir = repository.release_dir, repository.packages_dir
    packages_dir.mkdir(parents=True, exist_ok=True)
    for path in repository.key_paths:
        _publish(signing.key().read_bytes(), MIRROR / path)
    # apt-ftparchive's cache knows a file by its name and second: it is for files that never change.
    cache = ["--db", str(BUILD / "ftparchive.db")] if repository.immutable else []
    packages = _ftparchive([*cache, "packages", repository.pool], repository.root)
    # What a release is made from; kept so that an unchanged one is not signed anew.
    made_from = hashlib.sha256(
        repr((packages, repository, signing.FINGERPRINT.read_text())).encode()
    ).hexdigest()
    stamp = BUILD / "indexes" / hashlib.sha256(repository.path.encode()).hexdigest()[:16]
    if (
        stamp.is_file()
        and stamp.read_text() == made_from
        and (release_dir / "InRelease").is_file()
        and (packages_dir / "Packages.gz").is_file()
    ):
        return False
    _publish(packages.encode(), packages_dir / "Packages")
    _publish(gzip.compress(packages.encode(), mtime=0), packages_dir / "Packages.gz")
    _publish(release(repository).encode(), release_dir / "Release")
    signing.sign(release_dir / "Release")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(made_from)
    return True


def let_keys_expire(address: str) -> None:
    """From now on the client of this address finds every vendor's key expired."""
    text = signing.expired().encode()
    for repository in REPOSITORIES.values():
        for path in repository.key_paths:
            _publish(text, MIRROR_FOR_CLIENT / address / path)


def same_for_all(address: str) -> None:
    """The client of this address gets what all others get."""
    shutil.rmtree(MIRROR_FOR_CLIENT / address, ignore_errors=True)


def release(repository: Repository) -> str:
    """Text of the ``Release`` file over the indexes on disk."""
    fields = {**repository.release, "Architectures": "amd64", "Description": NOTE}
    options = [
        part
        for name, value in fields.items()
        for part in ("-o", f"APT::FTPArchive::Release::{name}={value}")
    ]
    # Only the indexes: a flat repository's packages lie beside them and are not to be hashed.
    for pattern in ("Packages", "Packages.gz"):
        options += ["-o", f"APT::FTPArchive::Release::Patterns::={pattern}"]
    return _ftparchive([*options, "release", "."], repository.release_dir)


def packages(repository: Repository) -> list[str]:
    """Names and versions that a repository offers, as ``name=version``; empty if it has none."""
    path = repository.packages_dir / "Packages"
    if not path.is_file():
        return []
    found = []
    for record in path.read_text().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in record.splitlines() if ": " in line and line[0] != " "
        )
        if fields:
            found.append(f"{fields['Package']}={fields['Version']}")
    return sorted(found)


def _ftparchive(arguments: list[str], directory: Path) -> str:
    try:
        run = subprocess.run(
            ["apt-ftparchive", *arguments], cwd=directory, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise LabError(
            "mirror: want apt-ftparchive, have none; install the package apt-utils"
        ) from None
    if run.returncode:
        raise LabError(
            f"mirror: want an index of {directory}, have exit code {run.returncode} from "
            f"apt-ftparchive: {run.stderr.strip()}"
        )
    return run.stdout


def _publish(content: bytes, path: Path) -> None:
    """Replace a file that a client may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def link(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    try:
        new.hardlink_to(source)
    except OSError:  # another file system
        shutil.copyfile(source, new)
    new.replace(target)
