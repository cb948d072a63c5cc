"""dpkg's packages: versions, holds, what an interrupted run left behind, who is at work now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, each, sections

# Source: dpkg-query(1) 1.21, "--show": the states of a package.
WHOLE = "installed"
GONE = ("not-installed", "config-files")

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)


@dataclass(frozen=True, slots=True)
class PackageState(FactValue):
    version: str
    held: bool
    status: str
    """``installed``, or where dpkg stopped: ``half-configured``, ``unpacked`` and so on."""
    reinstall: bool
    """Whether dpkg itself says that the package has to be installed again."""

    @property
    def whole(self) -> bool:
        return self.status == WHOLE and not self.reinstall


@dataclass(frozen=True, slots=True)
class LockHolder(FactValue):
    pid: int
    path: str
    command: str

    def __str__(self) -> str:
        return f"{self.command or 'unknown'} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class PackagesState(FactValue):
    architecture: str | None
    """dpkg's name for the machine, ``None`` where there is no dpkg."""
    packages: dict[str, PackageState]
    """Of this architecture, by name. Removed packages are not in it."""
    interrupted: bool
    """Whether dpkg's journal holds changes that it has not taken in: a run was cut off."""
    at_work: tuple[LockHolder, ...]
    """Processes that hold a lock of dpkg or apt."""

    def version(self, name: str) -> str | None:
        """Version of *name*, ``None`` if it is not installed or only by half."""
        package = self.packages.get(name)
        return package.version if package is not None and package.whole else None

    @property
    def broken(self) -> dict[str, PackageState]:
        return {name: package for name, package in self.packages.items() if not package.whole}

    def to_json(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "packages": {name: package.to_json() for name, package in self.packages.items()},
            "interrupted": self.interrupted,
            "at_work": [holder.to_json() for holder in self.at_work],
        }


class Packages(FactBase[PackagesState]):
    """
    All packages of the host's own architecture, and the state of dpkg.

    Locks are read from ``/proc/locks``: apt and dpkg lock with fcntl(2), which
    flock(1) does not see, and fuser(1) is not everywhere.

    .. code:: python

        PackagesState(architecture="amd64", packages={"bash": PackageState(...)}, ...)
    """

    def command(self) -> str:
        fields = "${Package}\\t${Architecture}\\t${db:Status-Want}\\t${db:Status-Status}\\t"
        return (
            f"command -v dpkg-query >/dev/null || {{ echo {ABSENT}; exit 0; }}; "
            "echo '## architecture' && dpkg --print-architecture && echo '## packages' && "
            f"dpkg-query -W -f '{fields}${{db:Status-Eflag}}\\t${{Version}}\\n' && "
            "echo '## updates' && ls -A /var/lib/dpkg/updates && echo '## locks' && "
            f"{{ stat -c '%i %n' {' '.join(LOCKS)} || true; }} | "
            'awk \'NR == FNR { name[$1] = $2; next } { split($6, file, ":") } '
            '$2 == "POSIX" && file[3] in name { print $5, name[file[3]] }\' - /proc/locks | '
            "while read -r pid path; do "
            "echo \"$pid $path $(tr '\\0' ' ' </proc/$pid/cmdline)\"; done && echo '## end'"
        )

    def process(self, output: list[str]) -> PackagesState:
        return parse_packages(output)


NAME = re.compile(r"[a-z0-9-]+")


def parse_packages(output: list[str]) -> PackagesState:
    """Read what ``Packages.command`` printed."""
    if output == [ABSENT]:
        return PackagesState(None, {}, False, ())
    parts = sections(output)
    if "end" not in parts or not parts["architecture"]:
        raise FactProcessError("the list of packages ended early")
    (architecture,) = (match[0] for match in each(parts["architecture"], NAME, "architecture"))
    packages: dict[str, PackageState] = {}
    for line in parts["packages"]:
        try:
            name, of, want, status, flag, version = line.split("\t")
        except ValueError:
            raise FactProcessError(f"no package in {line!r}") from None
        if of not in (architecture, "all") or status in GONE:
            continue
        packages[name] = PackageState(version, want == "hold", status, flag == "reinstreq")
    holders: dict[int, LockHolder] = {}
    for line in parts["locks"]:
        pid, path, *command = line.split()
        if not pid.isdecimal():
            raise FactProcessError(f"no process id in {line!r}")
        holders.setdefault(int(pid), LockHolder(int(pid), path, " ".join(command)))
    return PackagesState(
        architecture=architecture,
        packages=packages,
        interrupted=bool(parts["updates"]),
        at_work=tuple(holders.values()),
    )
