"""The current host's readings: one remote command, kept until something is sent to the host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from paramiko import SSHException
from pyinfra import state
from pyinfra.api import StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.context import ctx_host

from facts.snapshot import Readings, Snapshot, UnknownReading
from operations.explaining import ended, why_silent
from operations.lock import connector_arguments

TIMEOUT_S = 600
"""For all readings together. Each has its own limit; this one is for a host that is gone."""
FRESH_S = 60
"""How long readings stand for a host to which nothing has been sent."""

_cache: WeakKeyDictionary[Host, tuple[float, object, Readings]] = WeakKeyDictionary()


def read(files: Sequence[str] = (), api_server: Sequence[str] = ()) -> Readings:
    """
    The current host's readings, from the cache if nothing has been sent to it since.

    Raises ``UnknownReading`` if the host does not let itself be read, with what it says.
    """
    this = ctx_host.get()  # pyinfra's `host` is a proxy, one object for all hosts: never a key
    read_at, asked, readings = _cache.get(this, (0.0, None, None))
    asks = (tuple(files), tuple(api_server))
    # pyinfra asks twice, for the plan and for the run. In between a person may think about the
    # plan, or a thousand other hosts be planned: what is old is read again.
    old = time.monotonic() - read_at > FRESH_S
    if readings is None or old or asked != asks:
        readings = _read(this, Snapshot().command(*asks))
        _cache[this] = (time.monotonic(), asks, readings)
    return readings


def _read(host: Host, command: str) -> Readings:
    # Not `host.get_fact`: of a command that fails it puts all output into the log, here hundreds
    # of lines with the contents of files, and gives none of it to who asked.
    try:
        ok, output = host.run_shell_command(
            StringCommand(command),
            # Whole files are in it, in base64, which no redaction looks into: not even for -vvv.
            print_output=False,
            print_input=state.print_fact_input,
            **{**connector_arguments(host), "_timeout": TIMEOUT_S},
        )
    except (TimeoutError, OSError, EOFError, SSHException) as error:
        raise UnknownReading(why_silent([str(error) or type(error).__name__])) from error
    except PyinfraError as error:  # of our own sudo, and a sentence
        raise UnknownReading(str(error)) from error
    if not ok:
        lost = ended(host)
        said = [lost] if lost else [line.strip() for line in output.stderr_lines if line.strip()]
        raise UnknownReading(why_silent(said))
    return Snapshot().process(output.stdout_lines)


def forget(this: Host) -> None:
    """What was read of *this* is old: a command has been sent to it."""
    _cache.pop(this, None)
