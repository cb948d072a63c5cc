"""Whether a client accepts the mirror: signatures, indexes, and every dependency satisfied."""

from __future__ import annotations

from lab.mirror import signing
from lab.mirror.apt import EmptySystem
from lab.mirror.repositories import REPOSITORIES, packages
from lab.paths import BUILD, MIRROR


def installable() -> int:
    """
    Let apt plan the installation of each vendor package alone, on a system that has nothing.

    Alone, because some exclude each other, and with its version pinned: apt follows an exact
    dependency on an older version of another package only if it is told to. Returns how many; the
    first that cannot be had is an error with apt's own words.
    """
    sources = [r.source(f"file:{MIRROR}", str(signing.key())) for r in REPOSITORIES.values()]
    apt = EmptySystem(BUILD / "check-apt", sources)
    apt.get("update", "--error-on=any")
    versions: dict[str, list[str]] = {}
    for name, repository in REPOSITORIES.items():
        if name != "debian":
            for package in packages(repository):
                versions.setdefault(package.split("=")[1], []).append(package.split("=")[0])
    for version, names in versions.items():
        apt.pin(names, version)
        for name in names:
            apt.get("install", "--simulate", "--no-install-recommends", f"{name}={version}")
    return sum(map(len, versions.values()))
