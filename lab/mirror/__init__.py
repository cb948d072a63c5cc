"""
The vendors' apt repositories as the lab needs them: real components, one signing key.

``build`` makes the packages and the signed repositories, ``up`` serves them to the guests. What has
been made is kept, so that both are quick the second time.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lab import description
from lab.command import run
from lab.mirror import check, deb, debian, debs, signing
from lab.mirror.repositories import REPOSITORIES, fill, index, packages
from lab.nvidia import packages as nvidia
from lab.paths import BUILD, MIRROR, MIRROR_FOR_CLIENT
from lab.service import Service

PORT = 8080

__all__ = ["build", "down", "key", "status", "up", "url"]


def key() -> Path:
    """The archive key that every repository is signed with, armoured; made on the first call."""
    return signing.key()


def url() -> str:
    """Where guests find the mirror."""
    return f"http://{description.load().network.host}:{PORT}"


def build(console: Console, *, refresh: bool = False) -> None:
    """Make all packages and repositories; ``refresh`` asks Debian for newer ones."""
    start = time.monotonic()

    def report(line: str) -> None:
        console.print(f"mirror: {line}", highlight=False, markup=False)

    key()
    debian.build(report, refresh=refresh)
    for vendor, make in debs.VENDORS.items():
        fill(REPOSITORIES[vendor], [deb.pack(package) for package in make(report)])
    fill(REPOSITORIES["cuda"], _simulated_driver(report))
    changed = [name for name, repository in REPOSITORIES.items() if index(repository)]
    for name in changed:
        report(f"{name}: indexed and signed, {len(packages(REPOSITORIES[name]))} packages")
    if changed:
        report(f"apt installs all {check.installable()} packages of the vendors from it")
    report(f"built in {time.monotonic() - start:.0f} s")


def up(console: Console) -> None:
    """Bring it up to date and serve it to the guests."""
    build(console)
    _service().start()
    console.print(f"mirror: serving {MIRROR} at {url()}", highlight=False, markup=False)


def down() -> None:
    _service().stop()


def status() -> dict[str, Any]:
    """What runs and what it offers; a repository that has not been built is ``None``."""
    return {
        "running": _service().running(),
        "answers": _answers(),
        "url": url(),
        "fingerprint": _fingerprint(),
        "repositories": {
            name: len(packages(repository))
            if (repository.release_dir / "InRelease").is_file()
            else None
            for name, repository in REPOSITORIES.items()
        },
    }


def _simulated_driver(report: Callable[[str], None]) -> list[Path]:
    """NVIDIA's driver packages, simulated; what is compiled for them must fit the guests' libc."""
    pool = REPOSITORIES["debian"].root / "pool"
    [libc] = pool.rglob("libc6_*.deb")
    root = BUILD / "guest-libc" / libc.stem
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        run(["dpkg-deb", "--extract", libc, root])
    return nvidia.build(BUILD / "nvidia-debs", root, report)


def _service() -> Service:
    script = Path(__file__).with_name("server.py")
    address = str(description.load().network.host)
    argv = [
        sys.executable, str(script), str(MIRROR), "--address", address, "--port", str(PORT),
        "--for-client", str(MIRROR_FOR_CLIENT),
    ]  # fmt: skip
    return Service("mirror", argv, _answers)


def _answers() -> bool:
    """Whether our own mirror answers there, not some other server."""
    try:
        with urllib.request.urlopen(f"{url()}/fingerprint", timeout=2) as response:
            return bool(response.read().decode().strip() == _fingerprint())
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _fingerprint() -> str | None:
    try:
        return signing.FINGERPRINT.read_text().strip()
    except FileNotFoundError:
        return None
