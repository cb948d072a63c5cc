"""One change of the lab at a time, whoever asks for it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from lab.paths import CACHE


@contextmanager
def exclusive(console: Console) -> Iterator[None]:
    """Wait for whoever changes the lab now; a killed process leaves no lock."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lab.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("[yellow]another command changes the lab; waiting for it[/]")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
