"""GPU errors in the kernel's log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, each

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 43, pid=7, name=python3, ... of a MIG device
# Source: NVIDIA/open-gpu-kernel-modules src/nvidia/src/kernel/gpu/rc/kernel_rc.c at 595.91.07
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (\d+),? ?(.*)"
)
READ, CUT = "## read", "## the beginning is missing"

# The newest line of each GPU and number: one that users' programs cause by the thousand does not
# push another out. What the kernel says of a process begins with that process's name, which may be
# any fifteen characters, and its number: such a line is none of the driver's. A kernel may be built
# to say first whose thread wrote a line. (mawk knows no {1,15}.)
NEWEST_OF_EACH = re.sub(
    r"\s+",
    " ",
    r"""
    { sub(/^\[ *[TC][0-9]+\] /, "") }
    $0 == "## read" { read = 1; next }
    match($0, /\[[0-9]+\]: /) && RSTART <= 16 { next }
    /^Linux version / { whole = 1 }
    /^NVRM: .*Xid \(/ {
        key = match($0, /^[^)]*\): [0-9]+/) ? substr($0, 1, RLENGTH) : $0;
        if (!(key in newest)) order[++n] = key;
        newest[key] = $0;
    }
    END {
        for (i = 1; i <= n; i++) print newest[order[i]];
        exit !read ? 1 : whole ? 0 : 3;
    }
    """,
)


@dataclass(frozen=True, slots=True)
class Xid(FactValue):
    pci_address: str
    """As NVIDIA writes it, without the function: ``0000:3b:00``."""
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class XidsState(FactValue):
    errors: tuple[Xid, ...]
    """The newest of each GPU and number."""
    whole: bool
    """Whether the log is there from the boot on; else there may have been others before."""


class Xids(FactBase[XidsState]):
    """
    Xid errors since the boot, from the kernel's ring buffer; where that no longer has the
    beginning, from the journal too.
    """

    def command(self) -> str:
        # The mark stands for a log that was read: one without Xids reads the same as none.
        return (
            f"newest() {{ {{ \"$@\" && echo '{READ}'; }} | awk '{NEWEST_OF_EACH}'; }}; "
            "newest dmesg --notime; case $? in 0) ;; "
            # Of transport "kernel" only: what programs log is not among them.
            f"3) newest journalctl --dmesg --boot --output=cat --no-pager || echo '{CUT}' ;; "
            "*) exit 1 ;; esac; echo '## end'"
        )

    def process(self, output: list[str]) -> XidsState:
        return parse_xids(output)


def parse_xids(output: list[str]) -> XidsState:
    """Read what ``Xids.command`` printed."""
    if output[-1:] != ["## end"]:
        raise FactProcessError("the kernel's log could not be read to its end")
    cut = output[-2:-1] == [CUT]
    found = each(output[: -2 if cut else -1], XID, "Xid")
    newest = {(match[1].lower(), int(match[2])): match[3] for match in found}
    return XidsState(tuple(Xid(*key, text) for key, text in newest.items()), whole=not cut)
