"""Programs of the lab host, run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import LabError

ERROR_TAIL_LINES = 15


class CommandError(LabError):
    """A program failed; the message has its last lines."""


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    hint: str = "see its message",
) -> str:
    """Standard output of a program that must succeed."""
    name = Path(argv[0]).name
    shown = " ".join(str(argument) for argument in argv)
    try:
        done = subprocess.run(
            [str(argument) for argument in argv],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(
            f"{name}: want it installed, have no such program; run: python -m lab up --install"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"{name}: want an end within {timeout_s:g} s, have it still run; {hint}: {shown}"
        ) from error
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-ERROR_TAIL_LINES:])
        raise CommandError(
            f"{name}: want success, have exit code {done.returncode}; {hint}: {shown}\n{tail}"
        )
    return done.stdout
