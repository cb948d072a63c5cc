"""Base of the values that facts return, and of what could not be read."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pyinfra.api.exceptions import FactProcessError

ABSENT = "absent"
"""Printed by a fact's command in place of a file or tool that is not there."""


class ToolFailed(FactProcessError):
    """The tool that was asked says that it failed: what it is about may be broken. Any other
    ``FactProcessError`` means that an answer was not understood, and says nothing of that."""


class FactValue:
    """Base of the frozen dataclasses that facts return.

    ``None`` in place of a value always means "this host could not be read"; a
    field that is ``None`` means "read, and it is not there".
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Let ``pyinfra INVENTORY fact ...`` print the value."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


def properties(lines: list[str], unit: str, *names: str) -> dict[str, str]:
    """
    Read what ``systemctl show`` printed of *unit*: ``Name=value`` lines.

    Raises ``FactProcessError`` for any other line, and if one of *names* is missing: systemd prints
    all that it is asked for, empty where there is nothing.
    """
    found = dict(line.partition("=")[::2] for line in lines)
    missing = [name for name in names if name not in found]
    if missing or not all("=" in line for line in lines):
        what = ", ".join(missing) or "property"
        raise FactProcessError(f"systemd does not tell of {unit}: no {what} in {lines[:3]!r}")
    return found


def where_there(path: str, command: str) -> str:
    """Shell that gives *path* to *command* if it is there: what cannot be read is not absent."""
    return f'{{ [ ! -e "{path}" ] || {command} "{path}"; }}'


def grep_where_there(path: str, grep: str) -> str:
    """The same for a ``grep``, to which no line is an answer: it ends with 1 then, not with 2."""
    return f"{{ {where_there(path, grep)} || [ $? = 1 ]; }}"


def listable(folder: str) -> str:
    """Shell that fails for a folder that is there and cannot be listed: its content is unknown."""
    return f"{{ [ ! -e {folder} ] || ls {folder}/. >/dev/null; }}"


def each(lines: list[str], form: re.Pattern[str], what: str) -> list[re.Match[str]]:
    """Every line in its form; raises ``FactProcessError`` for one that is not: it is unknown."""
    found = [form.fullmatch(line) for line in lines]
    for line, match in zip(lines, found, strict=True):
        if match is None:
            raise FactProcessError(f"no {what} in {line!r}")
    return [match for match in found if match]


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
