"""The system: release, kernels, identity, clock, space, boot."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue


@dataclass(frozen=True, slots=True)
class OsReleaseState(FactValue):
    id: str
    """``debian``, ``ubuntu``, ``rocky`` ..."""
    version: str
    """``13``, ``24.04``; empty where there is none (Debian testing)."""
    codename: str
    """``trixie``, ``noble``; empty where there is none."""
    name: str
    """For people."""


class OsRelease(FactBase[OsReleaseState]):
    """
    ``/etc/os-release``.

    .. code:: python

        OsReleaseState("debian", "13", "trixie", name="Debian GNU/Linux 13 (trixie)")
    """

    def command(self) -> str:
        return "cat /etc/os-release"

    def process(self, output: list[str]) -> OsReleaseState:
        return parse_os_release(output)


def parse_os_release(lines: list[str]) -> OsReleaseState:
    """Read ``KEY=value`` lines, quoted as a shell would. Source: os-release(5)."""
    values: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            try:
                values[key.strip()] = " ".join(shlex.split(value))
            except ValueError:
                raise FactProcessError(f"a quote is not closed in {line!r}") from None
    if "ID" not in values:
        raise FactProcessError("os-release has no ID")
    return OsReleaseState(
        id=values["ID"],
        version=values.get("VERSION_ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        name=values.get("PRETTY_NAME", values["ID"]),
    )
