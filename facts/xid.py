"""GPU errors in the kernel's log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, each

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
XID = re.compile(r".*NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")


@dataclass(frozen=True, slots=True)
class Xid(FactValue):
    pci_address: str
    """As NVIDIA writes it, without the function: ``0000:3b:00``."""
    number: int
    text: str


class Xids(FactBase[tuple[Xid, ...]]):
    """Xid errors since the boot, from the kernel's ring buffer; the newest fifty."""

    def command(self) -> str:
        # The mark stands for a log that was read: one without Xids reads the same as none.
        return (
            "{ dmesg --notime && echo '## end'; } | grep -F -e 'NVRM: Xid' -e '## end' | tail -n 51"
        )

    def process(self, output: list[str]) -> tuple[Xid, ...]:
        if output[-1:] != ["## end"]:
            raise FactProcessError("the kernel's log could not be read to its end")
        found = each(output[:-1], XID, "Xid")
        return tuple(Xid(match[1].lower(), int(match[2]), match[3]) for match in found)
