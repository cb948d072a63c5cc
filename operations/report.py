"""The run's result: a row per node, as a table for people and as JSON, also when hosts failed."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from operations import redaction
from operations.redaction import redact, redacted

RUNS = Path(os.environ.get("RACKWRIGHT_RUNS", "runs"))
"""A folder per run: ``result.json`` and ``run.log``."""


@dataclass
class Row:
    """One node's part of the run."""

    node: str
    phases: dict[str, str] = field(default_factory=dict)
    """Result per phase: ``ok``, ``changed``, ``differs`` (planned), ``refused``, ``failed``,
    ``not reached``."""
    changes: list[str] = field(default_factory=list)
    """Steps that were applied, ``<phase> | <title>``, in order."""
    planned: list[str] = field(default_factory=list)
    """The first plan, in the same form."""
    problems: list[str] = field(default_factory=list)
    offers: dict[str, str] = field(default_factory=dict)
    """Allocatable GPU and RDMA resources, from the Node object."""
    state: str = "running"
    """``open``, ``closed``, ``audited``, ``planned`` (a dry run), ``done`` (one without admission),
    ``failed``, or ``running``."""
    started_at_s: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def finish(self, state: str) -> None:
        self.state = state
        self.seconds = round(time.monotonic() - self.started_at_s, 1)


class Run:
    """All rows of this process."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.folder: Path | None = None

    def row(self, node: str, phases: Sequence[str]) -> Row:
        """A new row for *node*, in place of the one that planning made."""
        if self.folder is None:
            self._open()
        self.rows[node] = Row(node=node, phases=dict.fromkeys(phases, "not reached"))
        return self.rows[node]

    def _open(self) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self.folder = RUNS / f"{stamp}-{os.getpid()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(self.folder / "run.log")
        handler.setFormatter(Plain("%(asctime)s %(levelname)s %(message)s"))
        log = logging.getLogger("pyinfra")
        redaction.install()
        log.addHandler(handler)
        atexit.register(self.close)

    def close(self) -> None:
        """Write the result and print the table: called once, when the process ends."""
        if not self.rows or self.folder is None:
            return
        for row in self.rows.values():
            if row.state == "running":
                row.finish("failed")
                row.problems.append("node: want it finished, have the run ended before; run again")
            row.problems = [redact(problem) for problem in row.problems]
        rows = [self.rows[name] for name in sorted(self.rows)]
        result = redacted({"nodes": [asdict(row) for row in rows]})
        (self.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        console = Console(stderr=True, highlight=False)
        console.print(table(rows))
        for row in rows:
            for problem in row.problems:
                console.print(f"[red]{row.node}[/red] {escape(problem)}", soft_wrap=True)
        help_ = (
            "; docs/troubleshooting.md has every message" if any(r.problems for r in rows) else ""
        )
        console.print(f"[dim]{self.folder}/result.json, run.log{help_}[/dim]", soft_wrap=True)


class Plain(logging.Formatter):
    """For a file: without the terminal's colours."""

    COLOUR = re.compile(r"\x1b\[[0-9;]*m")

    def format(self, record: logging.LogRecord) -> str:
        # A traceback comes after what the logger's filter has seen.
        return redact(self.COLOUR.sub("", super().format(record)))


def table(rows: Sequence[Row]) -> Table:
    """The table at the end of a run."""
    shown = Table(title="Rackwright", title_justify="left", show_lines=True)
    # Names are copied and looked for: broken ones are neither.
    whole = ("node", "state", "seconds")
    for heading in ("node", "state", "phases", "changed", "offers", "seconds"):
        shown.add_column(heading, overflow="fold", no_wrap=heading in whole)
    colours = {"open": "green", "done": "green", "audited": "cyan", "planned": "cyan"}
    for row in rows:
        by_result: dict[str, list[str]] = {}
        steps = Counter(step.partition(" | ")[0] for step in row.planned)
        for name, result in row.phases.items():
            count = f" ({steps[name]})" if result == "differs" and steps[name] else ""
            by_result.setdefault(result, []).append(name + count)
        colour = colours.get(row.state, "red")
        changed = f"{len(row.changes)} of {len(row.planned)} steps" if row.planned else "nothing"
        if row.state in ("planned", "audited") and row.planned:
            changed = f"nothing, {len(row.planned)} planned"
        shown.add_row(
            row.node,
            f"[{colour}]{row.state}[/{colour}]",
            "\n".join(f"{result}: {', '.join(names)}" for result, names in by_result.items()),
            changed,
            "\n".join(f"{name}: {count}" for name, count in sorted(row.offers.items())),
            f"{row.seconds:.0f}",
        )
    return shown


RUN = Run()
