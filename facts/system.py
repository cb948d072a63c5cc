"""Settings of the system: sysctls, swap, what unattended upgrades leave alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, each, sections, where_there

PARAMETER = re.compile(r"/proc/sys/(\S+?):(.*)")
IN_USE = re.compile(r"/\S.*")
SWAP_ENTRIES = "awk '$1 !~ /^#/ && $3 == \"swap\"'"
ENTRY = re.compile(r"\s*\S+\s+\S+\s+swap\b.*")
# UNIT LOAD ACTIVE SUB DESCRIPTION; LOAD is loaded, masked, not-found ...
UNIT = re.compile(r"\W*(\S+\.swap)\s+(\S+)\s.*")


class Sysctls(FactBase[dict[str, str | None]]):
    """
    Values of kernel parameters now, ``None`` for one that the kernel does not have (yet).

    .. code:: python

        {"net.ipv4.ip_forward": "1", "net.bridge.bridge-nf-call-iptables": None}
    """

    NAMES = (
        "net.bridge.bridge-nf-call-ip6tables",
        "net.bridge.bridge-nf-call-iptables",
        "net.ipv4.ip_forward",
        "net.ipv6.conf.default.forwarding",
        "fs.inotify.max_user_instances",
        "fs.inotify.max_user_watches",
        "vm.max_map_count",
    )

    def command(self) -> str:
        paths = " ".join(f"/proc/sys/{name.replace('.', '/')}" for name in self.NAMES)
        return (
            f'set --; for f in {paths}; do [ ! -e $f ] || set -- "$@" $f; done; '
            "[ $# = 0 ] || grep -H . \"$@\" && echo '## end'"
        )

    def process(self, output: list[str]) -> dict[str, str | None]:
        return parse_sysctls(output)


def parse_sysctls(output: list[str]) -> dict[str, str | None]:
    """Read ``/proc/sys/PATH:VALUE`` lines."""
    if output[-1] != "## end":
        raise FactProcessError("the list of sysctls ended early")
    found = each(output[:-1], PARAMETER, "parameter")
    values = {match[1].replace("/", "."): match[2] for match in found}
    return {name: values.get(name) for name in Sysctls.NAMES}


@dataclass(frozen=True, slots=True)
class SwapState(FactValue):
    active: tuple[str, ...]
    """Files and partitions in use now."""
    fstab: tuple[str, ...]
    """Entries of /etc/fstab that would bring swap back, as they stand there."""
    units: tuple[str, ...]
    """systemd's swap units that are loaded and not masked."""


class Swap(FactBase[SwapState]):
    """
    Swap now and at the next boot.

    .. code:: python

        SwapState(("/dev/sda3",), ("UUID=9d2e none swap sw 0 0",), ("dev-sda3.swap",))
    """

    def command(self) -> str:
        return (
            "echo '## active' && awk 'NR > 1 { print $1 }' /proc/swaps && echo '## fstab' && "
            f"{where_there('/etc/fstab', SWAP_ENTRIES)} && echo '## units' && "
            "systemctl list-units --type=swap --all --plain --no-legend --no-pager && echo '## end'"
        )

    def process(self, output: list[str]) -> SwapState:
        return parse_swap(output)


def parse_swap(output: list[str]) -> SwapState:
    """Read what ``Swap.command`` printed."""
    parts = sections(output)
    if "end" not in parts:
        raise FactProcessError("the list of swaps ended early")
    units = each([line for line in parts["units"] if line.strip()], UNIT, "unit")
    return SwapState(
        active=tuple(match[0] for match in each(parts["active"], IN_USE, "swap")),
        fstab=tuple(match[0] for match in each(parts["fstab"], ENTRY, "entry of fstab")),
        units=tuple(match[1] for match in units if match[2] == "loaded"),
    )


class UnattendedUpgrades(FactBase[tuple[str, ...]]):
    """
    Patterns of packages that unattended upgrades leave alone; apt's own reading of all its files.

    .. code:: python

        ("nvidia-", "linux-image-")
    """

    def command(self) -> str:
        return (
            f"command -v apt-config >/dev/null || {{ echo {ABSENT}; exit 0; }}; "
            "apt-config dump --format '%v%n' Unattended-Upgrade::Package-Blacklist && echo '## end'"
        )

    def process(self, output: list[str]) -> tuple[str, ...]:
        if output == [ABSENT]:
            return ()
        if output[-1] != "## end":
            raise FactProcessError("apt's configuration ended early")
        return tuple(line for line in output[:-1] if line)
