"""The daemons around the guests: package mirror, registry, control plane."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rich.console import Console

NAMES = ("mirror", "registry", "control_plane")
"""In the order in which they start; each is a module with ``up``, ``down`` and ``status``."""


def modules() -> dict[str, ModuleType]:
    return {
        name: importlib.import_module(f"lab.{name}")
        for name in NAMES
        if find_spec(f"lab.{name}") is not None
    }


def apt_key(console: Console) -> Path | None:
    """The public key of the mirror, which the guests trust."""
    mirror = modules().get("mirror")
    if mirror is None:
        console.print("[yellow]no lab.mirror: the guests trust no package archive[/]")
        return None
    key: Path = mirror.key()
    return key


def up(console: Console) -> None:
    for module in modules().values():
        module.up(console)


def down(console: Console) -> None:
    for module in reversed(modules().values()):
        module.down()


def status() -> dict[str, dict[str, object]]:
    return {name: module.status() for name, module in modules().items()}
