"""
An inventory as pyinfra sees it, and everything that is wrong with it, before any contact.

pyinfra itself executes the files: its rules for files, groups and connectors are then the ones of a
run. That takes a process of its own, since pyinfra's command line patches the standard library:
``look`` is for such a process, ``load`` starts one.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import fnmatch
import json
import re
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pyinfra
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory

from nodespec.fleet import data_of, read_all
from nodespec.problems import (
    LOOKED_AT,
    HostProblem,
    InventoryProblems,
    Problem,
    masked,
    short,
    show,
)
from nodespec.values import suggestion

TIMEOUT_S = 120

ROOT = Path(__file__).parents[1]

PACKAGES = str(Path(pyinfra.__file__).parents[1])
"""Frames of a traceback below it are not the inventory's."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an inventory holds."""

    data: Mapping[str, Mapping[str, Any]]
    """Merged data of each host, by name."""
    problems: tuple[HostProblem, ...]
    """What pyinfra takes without a word, though nobody can have meant it."""


def look(
    inventory: str, make: Callable[[], Inventory] | None = None
) -> tuple[Inventory | None, list[HostProblem]]:
    """
    Load *inventory* in this process, which is pyinfra's or will be nothing else any more.

    Returns None for the inventory where it cannot be loaded, and what is wrong with its files:
    what hosts' data has wrong is not looked at.

    + inventory: as pyinfra takes it on its command line
    + make: pyinfra's own call that makes it
    """
    unreadable = _no_file(inventory)
    if unreadable is not None:
        return None, [unreadable]
    seen = Seen(inventory)
    try:
        with seen.watching():
            loaded = make() if make else _make(inventory)
    except (Exception, SystemExit) as error:
        return None, [*seen.problems, _told(inventory, error, seen.file)]
    return loaded, [*seen.problems, *seen.strays(loaded)]


def _make(inventory: str) -> Inventory:
    from pyinfra.api.state import State
    from pyinfra.context import ctx_state
    from pyinfra_cli.inventory import make_inventory

    cwd = str(Path.cwd())
    if cwd not in sys.path:
        sys.path.append(cwd)
    state = State()
    state.cwd = cwd
    ctx_state.set(state)
    made: Inventory = make_inventory(inventory, cwd=cwd)
    return made


def load(inventory: str) -> Loaded:
    """
    Load *inventory* in a process of its own.

    Its data has been through JSON: a path is a string then, and a function its name. Raises
    ``InventoryProblems`` if it cannot be loaded.
    """
    command = [sys.executable, "-m", "nodespec.loading", inventory]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        have, todo = f"no answer in {TIMEOUT_S} s", "look for what it waits for"
        raise InventoryProblems(
            [_problem(inventory, "inventory", "an inventory that can be read", have, todo)]
        ) from None
    if not done.stdout:
        have = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        want, todo = "an inventory that can be read", "correct it"
        raise InventoryProblems([_problem(inventory, "inventory", want, short_message(have), todo)])
    return loaded(json.loads(done.stdout.splitlines()[-1]))


def loaded(answer: Mapping[str, Any]) -> Loaded:
    """Read what ``main`` printed."""
    problems = tuple(
        HostProblem(tuple(found["hosts"]), Problem(**found["problem"]))
        for found in answer["problems"]
    )
    if answer["data"] is None:
        raise InventoryProblems(problems)
    return Loaded(answer["data"], problems)


def main(arguments: list[str] | None = None) -> int:
    """Print what ``load`` reads."""
    (inventory,) = sys.argv[1:] if arguments is None else arguments
    with contextlib.redirect_stdout(sys.stderr):  # it is the inventory's to print to
        found, problems = look(inventory)
    data = None if found is None else data_of(found)
    answer = {"data": data, "problems": [asdict(one) for one in problems]}
    print(json.dumps(answer, default=_json, skipkeys=True))
    return 0


def _json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value) if isinstance(value, Path) else f"{getattr(value, '__name__', value)}"


def refuse_before_contact() -> None:
    """
    Make pyinfra's command line refuse a wrong inventory before it connects. For ``config.py``.

    pyinfra runs a deploy's body, where ``of_all`` is called, after it has connected to every host:
    with a thousand of them that takes minutes, and a host that is down hides what is wrong.
    """
    import click
    from pyinfra_cli import cli
    from pyinfra_cli.exceptions import CliError

    make = cli.make_inventory

    @wraps(make)
    def make_inventory(inventory: str, **arguments: Any) -> Inventory:
        asked = click.get_current_context().params
        if not _ours(asked["operations"]):
            try:
                made: Inventory = make(inventory, **arguments)
            except Exception as error:  # pyinfra tells it as a bug of its own
                raise CliError(
                    str(InventoryProblems([_told(inventory, error, inventory)]))
                ) from None
            return made
        found, problems = look(inventory, lambda: make(inventory, **arguments))
        if not (asked["yes"] or asked["dry"] or asked["json_output"] or sys.stdin.isatty()):
            want, have = "it where nobody sits at a terminal", "a run that would ask"
            todo = "add -y, or --dry to see what would happen"
            problems.append(_problem("command line", "-y", want, have, todo))
        if found is not None:
            problems += read_all(data_of(found))[1]
            problems += _patterns(found, asked)
        if problems or found is None:
            raise CliError(str(InventoryProblems(problems)))
        return found

    cli.make_inventory = make_inventory


def _ours(operations: Iterable[str]) -> bool:
    """Whether a deploy of ours is asked for: a command or a fact is for looking around."""
    paths = (Path(name).resolve() for name in operations if name.endswith(".py"))
    return any(path.is_relative_to(ROOT / "deploys") for path in paths) or any(
        name.startswith("deploys.") for name in operations
    )


def _patterns(inventory: Inventory, asked: Mapping[str, Any]) -> Iterator[HostProblem]:
    """What pyinfra only warns of: a mistyped host would be left out, or not be left out."""
    names = [host.name for host in inventory]
    chosen = set(names)
    for option in ("limit", "exclude"):
        matched: set[str] = set()
        for pattern in asked.get(option) or ():
            group = inventory.groups.get(pattern)
            found = [host.name for host in group] if group else fnmatch.filter(names, pattern)
            matched.update(found)
            if not found:
                todo = suggestion(pattern, [*inventory.groups, *names])
                yield _problem(
                    "command line",
                    f"--{option}",
                    "a host or group of the inventory",
                    show(pattern),
                    todo or "write a host's name, a group, or a pattern as in 'gpu0*'",
                )
        if asked.get(option):
            chosen = chosen & matched if option == "limit" else chosen - matched
    if names and not chosen:
        todo = "there would be nothing to do"
        yield _problem("command line", "--limit, --exclude", "at least one host", "none", todo)


def _problem(inventory: str, key: str, want: str, have: str, todo: str) -> HostProblem:
    return HostProblem((inventory,), Problem(key, want, have, todo))


def _no_file(inventory: str) -> HostProblem | None:
    """What pyinfra would take for the name of a host."""
    path = Path(inventory)
    if path.is_file():
        return None
    if path.is_dir():
        have, todo = "a directory", "name a file in it"
    elif path.suffix == ".py" or not set(inventory) & set("@,.:"):
        near = suggestion(path.stem, [found.stem for found in Path("inventories").glob("*.py")])
        have, todo = "none", f"{near} in inventories/" if near else "correct the path"
    else:
        return None
    return _problem(inventory, "inventory", "a file", have, todo)


# --- what does not run ----------------------------------------------------------------------------


def _told(inventory: str, error: BaseException, file: str) -> HostProblem:
    """Make a problem of what loading has ended with."""
    error = getattr(error, "exception", error)  # pyinfra's wrapping of what a file has raised
    if isinstance(error, PyinfraError):
        return HostProblem((inventory,), _parsed(" ".join(str(error).split())))
    kind = type(error).__name__
    have = f"{kind}: {error}" if str(error) else kind
    if isinstance(error, SyntaxError):
        have = f"{kind}: {error.msg}"
        place = f"{error.filename or file}, line {error.lineno}"
    else:
        frames = [
            f"{frame.filename}, line {frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((PACKAGES, str(Path(__file__).parent), "<"))
        ]
        place = frames[-1] if frames else file
    have = f"{short_message(have)} ({place})"
    return _problem(inventory, "inventory", "Python that runs", have, "correct it")


def short_message(text: str) -> str:
    return short(masked(" ".join(text[:LOOKED_AT].split())), 300)


def _parsed(message: str) -> Problem:
    """Read a message in our own form back; anything else is told as it stands."""
    match = re.fullmatch(r"(.+?): want (.+), have (.+?); (.+)", message)
    if match is None:
        have = short_message(message)
        return Problem("inventory", "an inventory that can be read", have, "correct it")
    return Problem(*match.groups())


# --- what pyinfra takes without a word ------------------------------------------------------------


@dataclass
class Seen:
    """What the files hold, seen as pyinfra executes them; what would break pyinfra is taken out."""

    inventory: str
    file: str = ""
    """The last one that was executed."""
    problems: list[HostProblem] = field(default_factory=list)
    data_files: list[Path] = field(default_factory=list)
    """Of the groups."""

    def __post_init__(self) -> None:
        self.file = self.inventory

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        from pyinfra_cli import inventory as cli

        execute = cli.exec_file

        def exec_file(filename: str, **arguments: Any) -> Any:
            self.file = str(filename)
            attributes = execute(filename, **arguments)
            if str(filename) == self.inventory:
                return self.checked(attributes)
            self.data_files.append(Path(filename))
            return attributes

        cli.exec_file = exec_file
        try:
            yield
        finally:
            cli.exec_file = execute

    def checked(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return the groups that pyinfra can take, with the hosts that it can take."""
        kept = dict(attributes)
        groups: dict[str, list[Any]] = {}
        for name, value in attributes.items():
            if name.startswith("_") or not isinstance(value, GROUPS):
                continue
            hosts, data, wrong = _group(value)
            if wrong:
                want = "a list of hosts, or (list of hosts, {...})"
                todo = "write [...] around the hosts; begin the name of what is no group with _"
                self.problem(f"group {name}", want, wrong, todo)
            broken = [host for host in hosts if _broken(host)]
            if broken:
                have = " / ".join(show(host) for host in broken[:3])
                have += f" and {len(broken) - 3} more" if len(broken) > 3 else ""
                want = "hosts as a string or as (name, {...})"
                todo = "correct it; begin the name of a list that is no group with _"
                self.problem(f"group {name}", want, have, todo)
            groups[name] = [host for host in hosts if not _broken(host)]
            kept[name] = (groups[name], data)
            self._twice(name, groups[name])
        self._outside(groups)
        return kept

    def problem(self, key: str, want: str, have: str, todo: str) -> None:
        self.problems.append(_problem(self.inventory, key, want, have, todo))

    def _twice(self, group: str, hosts: list[Any]) -> None:
        for host, count in Counter(map(_name, hosts)).items():
            if count > 1:
                lines = _lines(Path(self.inventory), group, host)
                have = f"{count} entries"
                if len(set(lines)) == count:
                    have += f" in lines {', '.join(map(str, lines))} of {self.inventory}"
                todo = "pyinfra makes one host of them: correct the copied line"
                problem = Problem(f"group {group}", "each host once", have, todo)
                self.problems.append(HostProblem((host,), problem))

    def _outside(self, groups: Mapping[str, list[Any]]) -> None:
        if "all" not in groups:
            return
        every = set(map(_name, groups["all"]))
        for group, hosts in groups.items():
            outside = [name for name in dict.fromkeys(map(_name, hosts)) if name not in every]
            if outside:
                todo = "pyinfra leaves them out: add them, or leave out the group all"
                problem = Problem(f"group {group}", "hosts of the group all", "others", todo)
                self.problems.append(HostProblem(tuple(outside), problem))

    def strays(self, inventory: Inventory) -> Iterator[HostProblem]:
        """Files of group data that no inventory beside them has a group for."""
        folders = dict.fromkeys(path.parent for path in self.data_files)
        for folder in folders:
            beside = sorted({*folder.parent.glob("*.py"), Path(self.inventory)})
            names = {"all", *inventory.groups, *(path.stem for path in beside)}
            words = set(re.findall(r"\w+", " ".join(map(_text, beside))))
            for path in sorted(folder.iterdir()):
                key = f"{folder.name}/{path.name}"
                if path.suffix in (".yml", ".yaml", ".json", ".toml"):
                    todo = "pyinfra reads none of it: write its values as Python"
                    yield _problem(self.inventory, key, "group data in Python", path.suffix, todo)
                elif path.suffix == ".py" and path.stem not in names | words:
                    near = difflib.get_close_matches(path.stem, sorted(names), n=1)
                    todo = f"did you mean {near[0]}.py" if near else "rename or remove it"
                    want, have = "data of a group of the inventory", "no group of that name"
                    yield _problem(self.inventory, key, want, have, todo)


GROUPS = (list, tuple, set, frozenset, Iterator)
"""pyinfra passes over sets and generators of hosts; nobody means that."""


def _group(value: Any) -> tuple[list[Any], dict[str, Any], str]:
    """Hosts and data of a group, and what is wrong with its form."""
    if isinstance(value, list):
        return value, {}, ""
    if isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[0], list) and isinstance(value[1], dict):
            return value[0], value[1], ""
        if value and isinstance(value[0], list):
            return value[0], {}, f"a list in a tuple of {len(value)} without {{...}} after it"
        return [], {}, f"a tuple: {show(value)}"
    if isinstance(value, Iterator):
        return [], {}, f"a {type(value).__name__}"
    return [], {}, f"a set: {show(sorted(map(str, value)))}"


def _broken(host: Any) -> bool:
    if isinstance(host, tuple):
        if len(host) != 2 or not isinstance(host[1], dict):
            return True
        host = host[0]
    return not isinstance(host, str) or not host


def _name(host: Any) -> str:
    return str(host[0] if isinstance(host, tuple) else host)


def _lines(path: Path, group: str, host: str) -> list[int]:
    """Lines on which *host* stands in *group*, where it stands there in full."""
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return []
    return [
        node.lineno
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == group for name in statement.targets)
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Constant) and node.value == host
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
