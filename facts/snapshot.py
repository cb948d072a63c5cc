"""Everything that is known of a host, read in one remote command.

A node has some forty things to read, and a round trip costs more than the
reading: one fact prints them all between markers, each under its own time
limit and with its own exit code, each parsed by the same code as when it is
read alone, each failing alone.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ToolFailed

T = TypeVar("T")

MARK = "--8<--"
TIMEOUT_S = 60
"""For one reading. NVML can hang for ever when a GPU has fallen off the bus; a host that builds
kernel modules on its last core is only slow."""


class UnknownReading(Exception):
    """Something was asked of a host that could not be read. Nobody acts on it."""


class Readings(Mapping[str, object]):
    """What was read of one host, by fact.

    ``have[NvidiaDriver]`` is the fact's value; it raises ``UnknownReading`` if the
    host could not tell. ``have.get(NvidiaDriver)`` is ``None`` in that case.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        unread: Mapping[str, str],
        failed: Collection[str] = (),
    ) -> None:
        self.values_by_name = dict(values)
        self.unread = dict(unread)
        """Why each reading that was not made was not, by fact name."""
        self.failed = frozenset(failed)
        """Those of them whose tool hung or failed. Of the others nothing was heard, or nothing
        that was understood."""

    def of(self, fact: type[FactBase[T]]) -> T:
        name = fact.__name__
        if name in self.values_by_name:
            return self.values_by_name[name]  # type: ignore[return-value]
        reason = self.unread.get(name, "not among the readings")
        raise UnknownReading(
            f"{name}: want it read, have unknown ({reason}); "
            f"run `pyinfra INVENTORY fact {fact.__module__}.{name}` to see why"
        )

    def known(self, fact: type[FactBase[T]]) -> T | None:
        value: T | None = self.values_by_name.get(fact.__name__)  # type: ignore[assignment]
        return value

    def __getitem__(self, name: str) -> object:
        return self.values_by_name[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def registered() -> tuple[type[FactBase[Any]], ...]:
    """The facts a snapshot is made of, in the order in which they are read."""
    from facts import readings  # late: the fact modules need nothing of this one but are many

    return readings.READINGS


class Snapshot(FactBase[Readings]):
    """
    All readings in one remote command. What the spec wants to know goes to the facts that ask.

    + files: paths whose content is compared (``facts.files.Files``)
    + api_server: ``host:port`` and CA in PEM (``facts.network.ApiServer``); empty: not asked
    """

    def command(self, files: Sequence[str] = (), api_server: Sequence[str] = ()) -> str:
        arguments = {"files": files, "api_server": api_server}
        # Locale: sorted lists and numbers must read the same on every host.
        parts = [
            "export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ]
        for fact in registered():
            asked = inspect.signature(fact.command).parameters
            command = str(fact().command(**{k: v for k, v in arguments.items() if k in asked}))
            limit = getattr(fact, "timeout_s", TIMEOUT_S)
            parts.append(
                f"echo '{MARK} {fact.__name__}'; "
                f"timeout -k 2 {limit} sh -c {shlex.quote(command)} 2>/dev/null </dev/null; "
                f'echo "{MARK} rc $?"'
            )
        return "; ".join(parts)

    def process(self, output: list[str]) -> Readings:
        return parse_snapshot(output, registered())


def parse_snapshot(output: list[str], facts: Sequence[type[FactBase[Any]]]) -> Readings:
    """Turn marked output into readings. What is missing, timed out or does not parse is unread."""
    by_name = {fact.__name__: fact for fact in facts}
    values: dict[str, object] = {}
    unread = {
        name: "no output: the connection was cut, or the command was killed" for name in by_name
    }
    failed = set[str]()
    name, lines = "", list[str]()
    for line in output:
        if not line.startswith(MARK):
            lines.append(line)
            continue
        what = line.removeprefix(MARK).strip()
        if not what.startswith("rc "):
            name, lines = what, []
            continue
        if name not in by_name:
            continue
        code = what.removeprefix("rc ")
        if code != "0":
            unread[name] = "timed out" if code in ("124", "137") else f"exit code {code}"
            failed.add(name)
        elif not lines:
            unread[name] = "it printed nothing"
        else:
            try:
                values[name] = by_name[name]().process(lines)
                del unread[name]
            except FactProcessError as error:
                unread[name] = str(error)
                if isinstance(error, ToolFailed):
                    failed.add(name)
            except Exception as error:  # a parser's surprise is this reading's alone
                unread[name] = f"{type(error).__name__}: {error}"
        name = ""
    return Readings(values, unread, failed)
