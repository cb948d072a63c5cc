"""A host with state, in place of a host: pyinfra's real prepare and execute against Python.

``modprobe`` makes the next reading succeed, a reboot changes the boot id. A command that
nobody has described fails: a test never passes by being ignored.
"""

from __future__ import annotations

import base64
import fnmatch
import functools
import hashlib
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
from gevent import GreenletExit
from pyinfra.api import Config, Inventory, State, connectors
from pyinfra.api.connect import connect_all, disconnect_all
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.operations import run_ops
from pyinfra.api.state import StateStage
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from facts.snapshot import MARK
from operations.lock import packages_free

# Of all packages that are installed, twice per run: a quarter of what a simulated run costs.
connectors.entry_points = functools.cache(connectors.entry_points)

ALONE = packages_free("lock")

Handler = Callable[["SimulatedHost", re.Match[str], str], "str | bool | tuple[bool, str]"]


class Killed(GreenletExit):
    """``kill -9`` of the operator's process: no handler sees it, and nothing more is sent."""


@dataclass
class Moments:
    """Every command and every call of the API, in order; and the one at which the run dies."""

    log: list[str] = field(default_factory=list)
    die_at: int | None = None
    way: int | None = None
    """How the command that is under way then ends, if it can end half-way; ``None``: it was never
    sent. (One that ended well, and nobody heard of it, is the next moment never sent.)"""
    breakable: list[int] = field(default_factory=list)
    """Which of them can end half-way."""
    cut: bool = False
    """Whether only the way to the host is lost: the process lives, and so does the API."""
    dead: bool = False
    watch: Callable[[], None] = lambda: None
    """Called before each."""

    def pass_one(
        self, what: str, halves: Sequence[Callable[[], object]] = (), *, remote: bool = False
    ) -> None:
        self.watch()
        if halves and not self.dead:
            self.breakable.append(len(self.log))
        if len(self.log) == self.die_at and not self.dead:
            self.dead = True
            if self.way is not None and halves:
                self.log.append(what)
                halves[self.way % len(halves)]()
        if self.dead and not self.cut:
            raise Killed
        if self.dead and remote:
            raise ConnectionResetError("connection reset by peer")
        self.log.append(what)


@dataclass
class SimulatedFile:
    text: str
    mode: str = "0644"
    owner: str = "root"
    changed_at_s: int = 0


@dataclass
class SimulatedHost:
    """State of one host. Readings are functions of it; commands change it."""

    name: str
    files: dict[str, SimulatedFile] = field(default_factory=dict)
    facts: dict[str, Callable[[SimulatedHost], str]] = field(default_factory=dict)
    """Output of each reading, by fact name; raise ``Unreadable`` to make it fail."""
    commands: list[tuple[re.Pattern[str], Handler]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """Whatever the readings and handlers of a test share."""
    log: list[str] = field(default_factory=list)
    """Every command that was sent, whole, in order."""
    stdin: list[str] = field(default_factory=list)
    now_s: int = 1000
    boot: int = 1
    sudo_says: str = ""
    """In place of running anything."""
    down_for: int = 0
    """How many connection attempts fail before it answers again."""
    cut_after: int | None = None
    """The operator's process dies after this many changing commands: everything after fails."""
    halves: list[tuple[re.Pattern[str], Handler]] = field(default_factory=list)
    """Ways in which a command stops half-way, of which there may be several for one command."""
    moments: Moments | None = None
    locked_by: str | None = None

    def on(self, pattern: str, handler: Handler) -> None:
        """Describe a command. The newest description wins."""
        self.commands.insert(0, (re.compile(pattern, re.DOTALL), handler))

    def half(self, pattern: str, *handlers: Handler) -> None:
        """Describe how a command stops half-way."""
        self.halves += [(re.compile(pattern, re.DOTALL), handler) for handler in handlers]

    @property
    def changes(self) -> list[str]:
        """Commands that were neither a reading nor the lock's."""
        return [
            line for line in self.log
            if MARK not in line
            and "rackwright.lock" not in line
            and "boot_id" not in line
            and line != ALONE
        ]  # fmt: skip

    @property
    def snapshots(self) -> int:
        return sum(MARK in line for line in self.log)


class Unreadable(Exception):
    """A reading that fails; the argument is the exit code."""


class SimulatedConnector(FakeConnector):
    """Asks a ``SimulatedHost`` for each answer."""

    def _sleep(self) -> None:
        pass

    def connect(self) -> None:
        machine = self.machine
        if machine.down_for > 0:
            machine.down_for -= 1
            raise ConnectError("connection refused")

    @property
    def machine(self) -> SimulatedHost:
        return MACHINES[self.host.name]

    def run_shell_command(self, command, print_output=False, print_input=False, **arguments):  # type: ignore[no-untyped-def]
        text = command if isinstance(command, str) else command.get_raw_value()
        stdin = arguments.get("_stdin") or ""
        if self.machine.sudo_says:
            return False, CommandOutput([OutputLine("stderr", self.machine.sudo_says)])
        ok, out = answer(self.machine, text, stdin)
        if print_output:
            click.echo(out, err=True)  # past the log and its redaction, as pyinfra does it
        return ok, CommandOutput([OutputLine("stdout", line) for line in out.splitlines()])


MACHINES: dict[str, SimulatedHost] = {}


def answer(machine: SimulatedHost, command: str, stdin: str) -> tuple[bool, str]:
    """What the host does with one command."""
    machine.log.append(command)
    machine.stdin.append(stdin)
    machine.now_s += 1
    if machine.moments is not None:
        halves = [
            functools.partial(handler, machine, match, stdin)
            for pattern, handler in machine.halves
            if (match := pattern.search(command))
        ]
        machine.moments.pass_one(command, halves, remote=True)
    if MARK in command:
        return True, snapshot(machine, command)
    if command == ALONE:
        return True, ""
    if "rackwright.lock" in command:
        return lock(machine, command)
    if command == "cat /proc/sys/kernel/random/boot_id":
        return True, f"boot-{machine.boot}\n"
    if machine.cut_after is not None:
        if machine.cut_after == 0:
            return False, "connection lost"
        machine.cut_after -= 1
    if "systemctl reboot" in command and "nohup" in command:
        machine.down_for = 1
        boot(machine)
        return True, ""
    written = re.match(
        r'umask 077 && p=(\S+) && f=\$\(readlink -m "\$p"\) && .* && '
        r'base64 -d > "\$t" && chmod (\d+) ',
        command,
    )
    if written:
        text = base64.b64decode(stdin).decode()
        path = shlex.split(written[1])[0]
        machine.files[path] = SimulatedFile(text, written[2], changed_at_s=machine.now_s)
        hook = machine.values.get("on_file")
        if hook:
            hook(machine, path)
        return True, ""
    for pattern, handler in machine.commands:
        match = pattern.search(command)
        if match:
            result = handler(machine, match, stdin)
            if isinstance(result, tuple):
                return result
            return (result, "") if isinstance(result, bool) else (True, result)
    return False, f"simulated host: nobody described this command: {command}"


def boot(machine: SimulatedHost) -> None:
    """The host starts again, asked to or after a loss of power."""
    machine.boot += 1
    if on_boot := machine.values.get("on_boot"):
        on_boot(machine)


def lock(machine: SimulatedHost, command: str) -> tuple[bool, str]:
    if command.startswith("flock"):
        if machine.locked_by:
            return False, ""
        owner = re.search(r"echo '?\"?'?(.*?) > /run/rackwright.lock.owner", command)
        assert owner, command
        machine.values["lock_owner"] = owner[1]
        import gevent

        gevent.sleep(0.6)  # the holder lives while the run looks at who holds it
        return True, ""
    return True, machine.locked_by or re.sub(r"['\"\\]", "", machine.values.get("lock_owner", ""))


def snapshot(machine: SimulatedHost, command: str) -> str:
    """Answer each reading that the command asks for, in the snapshot's own form."""
    out: list[str] = []
    for name in re.findall(rf"echo '{MARK} (\w+)'", command):
        out.append(f"{MARK} {name}")
        try:
            if name == "Files" and name not in machine.facts:
                out += files(machine, command).splitlines()
            else:
                out += machine.facts[name](machine).splitlines()
            code = 0
        except Unreadable as error:
            code = int(error.args[0])
        except KeyError:
            code = 1
        out.append(f"{MARK} rc {code}")
    return "\n".join(out) + "\n"


def files(machine: SimulatedHost, command: str) -> str:
    """The ``Files`` reading's output."""
    asked = re.search(r"for f in (.*?); do if", command)
    lines: list[str] = []
    patterns = shlex.split(asked[1].replace("'\"'\"'", "'")) if asked else []
    there = (fnmatch.filter(machine.files, pattern) or [pattern] for pattern in patterns)
    for path in itertools.chain(*there):
        lines.append(f"## {path}")
        file = machine.files.get(path)
        if file is None:
            lines.append("absent")
            continue
        data = file.text.encode()
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {path}")
        lines.append(f"{file.mode.lstrip('0') or '0'} {file.owner} {file.changed_at_s} {len(data)}")
        lines.append(base64.b64encode(data).decode())
    return "\n".join([*lines, "## done"])


@contextmanager
def pyinfra_state(
    machines: Sequence[SimulatedHost], data: Mapping[str, Mapping[str, Any]], *, yes: bool = True
) -> Iterator[State]:
    """A real pyinfra state over simulated hosts, connected."""
    MACHINES.clear()
    MACHINES.update({machine.name: machine for machine in machines})
    inventory = Inventory(([(m.name, dict(data.get(m.name, {}))) for m in machines], {}))
    for host in inventory.hosts.values():
        host.connector_cls = SimulatedConnector
    state = State(inventory, Config(), check_for_changes=not yes)
    with ctx_state.use(state), ctx_inventory.use(inventory):
        connect_all(state)
        yield state
        disconnect_all(state)


def run(
    machines: Sequence[SimulatedHost],
    data: Mapping[str, Mapping[str, Any]],
    deploy: Callable[[], Any],
    *,
    yes: bool = True,
    dry: bool = False,
) -> State:
    """One ``pyinfra INVENTORY DEPLOY``: prepare on all hosts, then execute."""
    with pyinfra_state(machines, data, yes=yes) as state:
        state.set_stage(StateStage.Prepare)
        for host in state.inventory.get_active_hosts():
            with ctx_host.use(host):
                deploy()
        if dry:
            return state
        state.is_executing = True
        state.set_stage(StateStage.Execute)
        try:
            run_ops(state)
        except PyinfraError as error:
            if str(error) != "No hosts remaining!":  # the last host has failed: told by the state
                raise
        return state


def failed(state: State) -> set[str]:
    return {host.name for host in state.failed_hosts}
