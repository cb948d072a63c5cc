"""Kernels without headers, and whether apt knows where to get them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, each, sections

PACKAGE = "Package: "
OFFERED = re.compile(rf"{PACKAGE}(linux-headers-\S+)")
KERNEL = re.compile(r"\d\S*")


@dataclass(frozen=True, slots=True)
class KernelHeadersState(FactValue):
    missing: tuple[str, ...]
    """Kernels, running or in ``/boot``, without headers to build modules against."""
    offered: tuple[str, ...] | None
    """Packages ``linux-headers-...`` in apt's indexes. ``None``: nobody has looked, since nothing
    is missing, or since there are no indexes that are as new as the sources."""


class KernelHeaders(FactBase[KernelHeadersState]):
    """
    Kernels without headers, and what apt's indexes offer.

    .. code:: python

        KernelHeadersState(missing=("6.12.57+deb13-amd64",), offered=("linux-headers-amd64", ...))
    """

    def command(self) -> str:
        lists = "/var/lib/apt/lists"
        # apt-helper reads indexes however they are compressed; apt-cache would write its cache.
        return (
            "m=$(for k in $(uname -r) $(ls /boot | sed -n 's/^vmlinuz-//p'); do "
            "[ -e /lib/modules/$k/build/. ] || echo $k; done | sort -u); echo '## missing'; "
            '[ -n "$m" ] || { echo \'## end\'; exit 0; }; echo "$m"; set -- '
            f'{lists}/*_Packages*; if [ ! -e "$1" ] || '
            f'[ -n "$(find /etc/apt/sources.list* -newer {lists} | head -n 1)" ]; '
            "then echo '## end'; exit 0; fi; echo '## offered'; "
            "{ /usr/lib/apt/apt-helper cat-file \"$@\" && echo '## end'; } | "
            f"grep -x -e '{PACKAGE}linux-headers-.*' -e '## end'"
        )

    def process(self, output: list[str]) -> KernelHeadersState:
        return parse_kernel_headers(output)


def parse_kernel_headers(output: list[str]) -> KernelHeadersState:
    """Read what ``KernelHeaders.command`` printed."""
    part = sections(output)
    if "end" not in part or "missing" not in part:
        raise FactProcessError("the list of kernels and headers ended early")
    offered = part.get("offered")
    return KernelHeadersState(
        missing=tuple(match[0] for match in each(part["missing"], KERNEL, "kernel")),
        offered=None
        if offered is None
        else tuple(sorted({match[1] for match in each(offered, OFFERED, "package")})),
    )
