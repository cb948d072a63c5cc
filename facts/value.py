"""Base of the values that facts return, and of what could not be read."""

from __future__ import annotations

import dataclasses
from typing import Any

ABSENT = "absent"
"""Printed by a fact's command in place of a file or tool that is not there."""


class FactValue:
    """Base of the frozen dataclasses that facts return.

    ``None`` in place of a value always means "this host could not be read"; a
    field that is ``None`` means "read, and it is not there".
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Let ``pyinfra INVENTORY fact ...`` print the value."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


def sections(lines: list[str], marker: str = "## ") -> dict[str, list[str]]:
    """Split output that a command printed under ``## name`` headings."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if line.startswith(marker):
            current = found.setdefault(line.removeprefix(marker).strip(), [])
        elif current is not None:
            current.append(line)
    return found
