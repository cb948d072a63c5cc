"""Kernel modules that are there now."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, each, sections, where_there

LOADED = re.compile(r"(\S+) (\d+|-)")
# kernel/fs/overlayfs/overlay.ko
BUILTIN = re.compile(r"\S+/([^/\s]+?)\.ko(?:\.\w+)?")


@dataclass(frozen=True, slots=True)
class KernelModulesState(FactValue):
    loaded: dict[str, int]
    """Loaded modules, with how often each is in use. Names have underscores, never dashes."""
    builtin: frozenset[str]
    """Modules that are part of the kernel."""

    def has(self, name: str) -> bool:
        return name in self.loaded or name in self.builtin


class KernelModules(FactBase[KernelModulesState]):
    """
    Modules in ``/proc/modules``, and those built into the running kernel.

    .. code:: python

        KernelModulesState(loaded={"nvidia": 2, "nvidia_uvm": 0}, builtin=frozenset({"overlay"}))
    """

    def command(self) -> str:
        return (
            "echo '## loaded' && awk '{ print $1, $3 }' /proc/modules && echo '## builtin' && "
            f"{where_there('/lib/modules/$(uname -r)/modules.builtin', 'cat')} && echo '## end'"
        )

    def process(self, output: list[str]) -> KernelModulesState:
        return parse_modules(output)


def parse_modules(output: list[str]) -> KernelModulesState:
    """Read what ``KernelModules.command`` printed."""
    parts = sections(output)
    if "end" not in parts:
        raise FactProcessError("the list of modules ended early")
    loaded: dict[str, int] = {}
    for match in each(parts["loaded"], LOADED, "module"):
        # "-" in place of the count: the kernel cannot unload modules at all.
        loaded[match[1]] = int(match[2]) if match[2].isdecimal() else 1
    builtin = frozenset(
        match[1].replace("-", "_") for match in each(parts["builtin"], BUILTIN, "module")
    )
    return KernelModulesState(loaded, builtin)
