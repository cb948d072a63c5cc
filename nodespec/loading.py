"""An inventory as pyinfra sees it, without connecting to any of its hosts."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyinfra

from nodespec.problems import HostProblem, InventoryProblems, Problem

TIMEOUT_S = 120

PACKAGES = str(Path(pyinfra.__file__).parents[1])
"""Frames of a traceback below it are not the inventory's."""

# --> An exception occurred in: inventories/prod.py:  ...  ModuleNotFoundError: No module named 'x'
FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
ERROR = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
# --> pyinfra error in inventories/lab.py line 15: lab: want ...
PYINFRA_ERROR = re.compile(r"^--> .*?[Ee]rror.*? in .* line \d+: (.+)$", re.MULTILINE)
# Ignoring host group "gpu_nodes". Host groups may only contain strings (host) or tuples ...
IGNORED = re.compile(r'Ignoring host group "(.+?)"')


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an inventory holds."""

    data: Mapping[str, Mapping[str, Any]]
    """Merged data of each host, by name."""
    problems: tuple[HostProblem, ...]
    """What pyinfra takes without a word, though nobody can have meant it."""


def load(inventory: str) -> Loaded:
    """
    Load *inventory*, as pyinfra takes it on its command line.

    pyinfra itself reads it, in a process of its own: its rules for files, groups and connectors are
    then the ones of a run. Raises ``InventoryProblems`` if it cannot be read.
    """
    path = Path(inventory)
    found: list[HostProblem] = []
    if path.suffix == ".py":
        found += source(path)
    command = [sys.executable, "-m", "pyinfra", "--json", inventory, "debug-inventory"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise _unreadable(
            inventory, f"no answer in {TIMEOUT_S} s", "look for what it waits for"
        ) from None
    if done.returncode != 0:
        raise InventoryProblems([*found, *said(inventory, done.stderr)])
    for group in IGNORED.findall(done.stderr):
        have = "something else in it, for which pyinfra leaves out the whole group"
        todo = "write each host as a string or as (name, {...})"
        found.append(_problem(inventory, f"group {group}", "hosts", have, todo))
    hosts = json.loads(done.stdout)
    return Loaded({host["name"]: host["data"] for host in hosts}, tuple(found))


def _problem(inventory: str, key: str, want: str, have: str, todo: str) -> HostProblem:
    return HostProblem((inventory,), Problem(key, want, have, todo))


def _unreadable(inventory: str, have: str, todo: str) -> InventoryProblems:
    return InventoryProblems(
        [_problem(inventory, "inventory", "an inventory that can be read", have, todo)]
    )


def said(inventory: str, stderr: str) -> list[HostProblem]:
    """Make a problem of what pyinfra wrote before it gave up."""
    own = PYINFRA_ERROR.findall(stderr)
    if own:
        return [HostProblem((inventory,), _parsed(own[-1]))]
    have = (ERROR.findall(stderr) or stderr.strip().splitlines() or ["no message"])[-1]
    frames = [frame for frame in FRAME.findall(stderr) if not frame[0].startswith((PACKAGES, "<"))]
    todo = "correct it"
    if "Cannot serialize" in have:
        todo = "keep to numbers, strings, lists, dicts, paths and plain functions"
    elif frames:
        have += f" ({frames[-1][0]}, line {frames[-1][1]})"
    return [_problem(inventory, "inventory", "Python that runs", have, todo)]


def _parsed(message: str) -> Problem:
    """Read a message in our own form back; anything else is told as it stands."""
    match = re.fullmatch(r"(.+?): want (.+), have (.+?); (.+)", message)
    if match is None:
        return Problem("inventory", "an inventory that can be read", message, "correct it")
    return Problem(*match.groups())


def source(path: Path) -> Iterator[HostProblem]:
    """Look at the file itself for what is lost once pyinfra has read it."""
    name = str(path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
    except OSError as error:
        # pyinfra would take the path for the name of a host.
        have = f"none that can be read ({error.strerror})"
        raise InventoryProblems(
            [_problem(name, "inventory", "a file", have, "correct the path")]
        ) from None
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise _unreadable(name, f"{type(error).__name__}: {error}", "correct it") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            group = node.targets[0].id
            if not group.startswith("_"):
                yield from _group(name, group, node.value)


def _group(path: str, group: str, value: ast.expr) -> Iterator[HostProblem]:
    if isinstance(value, ast.Tuple) and value.elts:
        value = value.elts[0]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            have = "a tuple, of which pyinfra takes the first host's letters for hosts"
            todo = "write [...] around the hosts"
            yield _problem(path, f"group {group}", "a list of hosts", have, todo)
            return
    if not isinstance(value, ast.List):
        return
    lines: dict[str, list[int]] = defaultdict(list)
    for element in value.elts:
        host = element.elts[0] if isinstance(element, ast.Tuple) and element.elts else element
        if isinstance(host, ast.Constant) and isinstance(host.value, str):
            lines[host.value].append(host.lineno)
    for host_name, where in lines.items():
        if len(where) > 1:
            have = f"{len(where)} entries in lines {', '.join(map(str, where))} of {path}"
            todo = "pyinfra makes one host of them: correct the copied line"
            yield HostProblem((host_name,), Problem(f"group {group}", "each host once", have, todo))
