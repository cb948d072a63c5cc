"""What a person sees of work that takes a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def step(console: Console, name: str) -> Iterator[None]:
    """Show a spinner while the block runs, and afterwards how long it took."""
    started = time.monotonic()
    with console.status(f"{name} ..."):
        yield
    console.print(f"[green]ok[/] {name} [dim]{time.monotonic() - started:.1f} s[/]")
