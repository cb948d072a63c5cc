"""What is wrong with an inventory, and how a thousand hosts' worth of it stays readable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyinfra.api.exceptions import InventoryError

HOSTS_NAMED = 8
"""Hosts, or rows of them, that a line names before it only counts."""

VALUES_SHOWN = 6
VALUE_WIDTH = 80
PATH_WIDTH = 250

# A password may hold what its URL should not have: everything up to the last @ is masked, and what
# looks like user:password@host without a scheme. A digest (name:tag@sha256:...) is none.
CREDENTIALS = re.compile(r"(?:(?<=://)|[^\s'\"/:@]+:(?!//))[^\s'\"]*@(?!sha\d)")


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
        one_line(
            f"{_hosts(list(line.hosts))}: {Problem(key, want, _haves(list(line.haves)), todo)}"
        )
        for (key, want, todo), line in lines.items()
    ]


def one_line(text: str) -> str:
    """Return *text* so that it cannot move a terminal's cursor: names are data of others too."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def masked(text: str) -> str:
    """Return *text* without the names and passwords of its URLs."""
    return CREDENTIALS.sub("***@", text)


def _hosts(names: list[str]) -> str:
    """Names as people read them: gpu01 to gpu16 (16 hosts), rather than sixteen of them."""
    rows: list[list[str]] = []
    for name in names:
        if rows and _next(rows[-1][-1]) == name:
            rows[-1].append(name)
        else:
            rows.append([name])
    words: list[str] = []
    for row in rows:
        many = len(row) > 2
        words += [f"{short(row[0])} to {short(row[-1])}"] if many else map(short, row)
    if len(words) > HOSTS_NAMED:
        words = [*words[: HOSTS_NAMED - 1], "and more"]
    text = ", ".join(words).replace(", and more", " and more")
    return text if len(names) == len(words) else f"{text} ({len(names)} hosts)"


def _next(name: str) -> str | None:
    """Return the name whose last number is one higher: gpu10.example.com of gpu09.example.com."""
    match = re.fullmatch(r"(.*?)([0-9]{1,9})([^0-9.]*(?:\.[^0-9].*)?)", name)
    if match is None:
        return None
    number = str(int(match[2]) + 1).zfill(len(match[2]))
    return f"{match[1]}{number}{match[3]}"


def _haves(haves: list[str]) -> str:
    if len(haves) <= VALUES_SHOWN:
        return " / ".join(haves)
    return f"{' / '.join(haves[:VALUES_SHOWN])} and {len(haves) - VALUES_SHOWN} other values"


def show(value: Any) -> str:
    """Return *value* as people read it: short, on one line, without a URL's password."""
    if value is None:
        return "nothing"
    path = isinstance(value, Path)
    try:
        text = str(value) if path else repr(value)
    except Exception:  # of an object of the inventory's own, or a number of thousands of digits
        text = f"a value of type {type(value).__name__}"
    if len(text) > LOOKED_AT:
        # Where its passwords end would take long to find out.
        return f"{len(text)} characters of type {type(value).__name__}"
    return short(masked(text), PATH_WIDTH if path else VALUE_WIDTH)


LOOKED_AT = 2000


def short(text: str, width: int = VALUE_WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which gpu2 comes before gpu10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
        if part
    ]
