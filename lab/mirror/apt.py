"""apt for a system on which nothing is installed: directories of its own, sources as given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lab.command import run


class EmptySystem:
    """Nothing of the lab host's own packages and sources is read or written."""

    def __init__(self, directory: Path, sources: Iterable[str]) -> None:
        self.directory = directory
        for name in ("state/lists/partial", "cache/archives/partial", "sources"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "status").write_text("")
        (directory / "preferences").write_text("")
        (directory / "sources/lab.list").write_text("".join(f"{line}\n" for line in sources))

    @property
    def archives(self) -> Path:
        return self.directory / "cache/archives"

    def pin(self, packages: Iterable[str], version: str) -> None:
        """Prefer one version of some packages, and of nothing else."""
        names = " ".join(packages)
        (self.directory / "preferences").write_text(
            f"Package: {names}\nPin: version {version}\nPin-Priority: 1001\n"
        )

    def get(self, *arguments: str) -> str:
        """Output of ``apt-get``, which must succeed."""
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": str(self.directory / "sources"),
            "Dir::Etc::Preferences": str(self.directory / "preferences"),
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State": str(self.directory / "state"),
            "Dir::State::status": str(self.directory / "status"),
            "Dir::Cache": str(self.directory / "cache"),
            "APT::Architecture": "amd64",
            "APT::Architectures": "amd64",
            "APT::Sandbox::User": "root",  # the cache may be where the user _apt cannot enter
            "Acquire::Languages": "none",
        }
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return run(
            ["apt-get", *options, *arguments],
            timeout_s=1800,
            env=os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        )
