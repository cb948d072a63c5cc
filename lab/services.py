"""The daemons around the guests: package mirror, registry, control plane."""

from __future__ import annotations

from types import ModuleType

from rich.console import Console

from lab import control_plane, mirror, registry

# In the order in which they start; each module has `up`, `down` and `status`.
MODULES: dict[str, ModuleType] = {
    "mirror": mirror,
    "registry": registry,
    "control_plane": control_plane,
}


def up(console: Console) -> None:
    for module in MODULES.values():
        module.up(console)


def down() -> None:
    for module in reversed(MODULES.values()):
        module.down()


def status() -> dict[str, dict[str, object]]:
    return {name: module.status() for name, module in MODULES.items()}
