"""Files of the guests' Debian, for images: a library in a container must suit what is mounted in.

The guests' NVIDIA tools are linked against the guests' C library; an image with an older one could
not run them.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lab.command import run
from lab.errors import LabError
from lab.guest.image import SUITE, debian_mirror
from lab.mirror.locking import locked
from lab.paths import BUILD
from lab.registry.oci import File, Folder, Link

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def packages(*names: str) -> dict[str, Path]:
    """The package files, downloaded once; delete the folder to get newer ones."""
    folder = BUILD / "debian" / SUITE
    with locked(folder / "lock"):
        have = {name: find(folder, name) for name in names}
        missing = [name for name, path in have.items() if path is None]
        if missing:
            download(folder, missing)
            have |= {name: find(folder, name) for name in missing}
    found = {name: path for name, path in have.items() if path is not None}
    if len(found) < len(names):
        raise LabError(
            f"debian: want {', '.join(names)} of {SUITE}, have only {', '.join(found) or 'none'}; "
            f"delete {folder}"
        )
    return found


def find(folder: Path, name: str) -> Path | None:
    return max(folder.glob(f"{name}_*.deb"), default=None)


def download(folder: Path, names: list[str]) -> None:
    """Let apt fetch and verify, with sources and state of its own."""
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "etc"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    sources, status = apt / "etc/sources.list", apt / "status"
    sources.write_text(f"deb [signed-by={KEYRING}] {debian_mirror()} {SUITE} main\n")
    status.touch()
    options = {
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": status,
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "APT::Architecture": "amd64",
        # Root may write where apt's own user may not.
        "APT::Sandbox::User": "root",
    }
    argv = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items())]
    run([*argv, "update"], timeout_s=600, hint="is the mirror reachable")
    # apt-get downloads into the working directory.
    run(
        ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *argv, "download", *names],
        timeout_s=600,
    )


def files(package: Path) -> Iterator[tuple[str, File | Link | Folder]]:
    """What the package installs, by path."""
    raw = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for member in archive:
            path = "/" + member.name.lstrip("./").rstrip("/")
            if member.isdir():
                yield path, Folder(member.mode)
            elif member.issym():
                yield path, Link(member.linkname)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None  # it is a regular file
                yield path, File(content.read(), member.mode)
            else:
                raise LabError(f"debian: want plain files in {package.name}, have {member.name}")
