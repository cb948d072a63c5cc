"""What is wrong with an inventory, and how a thousand hosts' worth of it stays readable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api.exceptions import InventoryError

HOSTS_NAMED = 3
"""Hosts that a line names before it only counts."""

VALUES_SHOWN = 3
VALUE_WIDTH = 80

URL_USER = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that one host's data has wrong."""

    key: str
    want: str
    have: str
    todo: str

    def __str__(self) -> str:
        return f"{self.key}: want {self.want}, have {self.have}; {self.todo}"


@dataclass(frozen=True, slots=True)
class HostProblem:
    """A problem and the hosts that have it: one host, or all that contradict each other."""

    hosts: tuple[str, ...]
    problem: Problem


class InventoryProblems(InventoryError):
    """Every problem of every host of an inventory, one line for each kind."""

    def __init__(self, problems: Iterable[HostProblem]) -> None:
        self.problems = tuple(problems)
        lines = report(self.problems)
        head = [f"{len(lines)} problems in the inventory"] if len(lines) > 1 else []
        super().__init__("\n".join(head + lines))


@dataclass(slots=True)
class _Line:
    hosts: dict[str, None] = field(default_factory=dict)
    haves: dict[str, None] = field(default_factory=dict)


def report(problems: Iterable[HostProblem]) -> list[str]:
    """
    Lines for people: hosts that have the same thing wrong share one.

    The values they have may differ; the first few are shown.
    """
    lines: dict[tuple[str, str, str], _Line] = {}
    for found in problems:
        problem = found.problem
        line = lines.setdefault((problem.key, problem.want, problem.todo), _Line())
        line.hosts.update(dict.fromkeys(found.hosts))
        line.haves[problem.have] = None
    return [
        f"{_hosts(list(line.hosts))}: {Problem(key, want, _haves(list(line.haves)), todo)}"
        for (key, want, todo), line in lines.items()
    ]


def _hosts(names: list[str]) -> str:
    if len(names) <= HOSTS_NAMED:
        return ", ".join(names)
    more = len(names) - HOSTS_NAMED
    return f"{', '.join(names[:HOSTS_NAMED])} and {more} more ({len(names)} hosts)"


def _haves(haves: list[str]) -> str:
    if len(haves) <= VALUES_SHOWN:
        return " / ".join(haves)
    return f"{' / '.join(haves[:VALUES_SHOWN])} and {len(haves) - VALUES_SHOWN} other values"


def show(value: Any) -> str:
    """Return *value* as people read it: short, on one line, without a URL's password."""
    if value is None:
        return "nothing"
    text = URL_USER.sub("***@", repr(value))
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which gpu2 comes before gpu10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
        if part
    ]
