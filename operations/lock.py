"""One run at a time on a host: a lock that dies with the run that holds it."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import time
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import gevent
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS
from pyinfra.api.host import Host
from pyinfra.api.state import State

from operations.failure import tell

PATH = "/run/rackwright.lock"
OWNER_PATH = "/run/rackwright.lock.owner"
HELD = "--held--"
BEAT_S = 5
WAIT_S = 20
POLL_S = 0.25
LIMIT_S = 60
"""The host has to have answered by then, one way or the other."""
UNWRITTEN = f"{OWNER_PATH} that cannot be written"

WAITING = "waiting"
"""What a command says while it waits: it dies of it if its run has died, as nobody reads."""
PACKAGES_PATH = "/run/rackwright-packages.lock"
"""Held by each command of ours that changes packages, for as long as it runs: one outlives the run
that has sent it, and neither dkms nor update-initramfs looks whether another of its kind is at
work."""
PACKAGES_WAIT_S = 900
"""How long somebody else's apt, or that of a run that died, may go on."""

_held: WeakKeyDictionary[Host, gevent.Greenlet] = WeakKeyDictionary()


def owner() -> str:
    """Who we are, as the host will tell the next run."""
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()} since {since}"


def connector_arguments(host: Host) -> dict[str, object]:
    """How the current operation reaches the host: ``run_shell_command`` does not inherit it."""
    arguments: Any = host.current_op_global_arguments or {}
    return {key: arguments[key] for key in CONNECTOR_ARGUMENT_KEYS if key in arguments}


def take() -> FunctionCommand:
    """
    Hold the host's lock until the run ends, however it ends; fail the host if another run holds it.

    The lock is flock(2)'s, held by a process on the host whose output goes through our
    connection: it writes a heartbeat, and dies of it as soon as nobody reads.
    """
    return FunctionCommand(_take, (), {})


def _take(state: State, host: Host) -> bool:
    if held(host):
        return True
    us = owner()
    # Who has it is written before the first beat, or it is not taken: nobody could tell.
    beat = (
        f"echo {shlex.quote(us)} > {OWNER_PATH} || {{ echo '{UNWRITTEN}'; exit 1; }}; "
        f"while echo {HELD}; do sleep {BEAT_S}; done"
    )
    # A run that was killed holds it for one more beat: that is waited for, a live one is not.
    command = StringCommand("flock", "-w", WAIT_S, PATH, "sh", "-c", shlex.quote(beat))
    arguments = connector_arguments(host)
    greenlet = gevent.spawn(host.run_shell_command, command, **arguments)
    started = time.monotonic()
    while not greenlet.dead and time.monotonic() - started < LIMIT_S:
        gevent.sleep(POLL_S)
        if greenlet.dead:
            break
        ok, output = host.run_shell_command(StringCommand("cat", OWNER_PATH), **arguments)
        if ok and us in output.stdout:
            _held[host] = greenlet
            return _alone(host)
    if why := _not_taken(greenlet):
        greenlet.kill(block=False)
        tell(host, f"lock: want {PATH} taken, have {why}; look at `df /run` on the host")
        return False
    _, output = host.run_shell_command(StringCommand("cat", OWNER_PATH), **arguments)
    held_by = output.stdout.strip() or "unknown"
    tell(
        host,
        f"lock: want {PATH} free, have it held by {held_by}; "
        "wait for that run to end, or stop it where it runs",
    )
    return False


def packages_free(component: str) -> str:
    """
    Shell that waits until no command of an earlier run changes packages; ``waited`` says how long.

    Nobody can begin one then until it ends: it holds their lock as file descriptor 8.
    """
    return (
        f"exec 8>{PACKAGES_PATH}; waited=0; until flock -w 3 8; do "
        f"[ $waited -lt {PACKAGES_WAIT_S} ] || {{ echo '{component}: want no command of an earlier "
        "run at work, have one that does not end; look at it on the host' >&2; exit 75; }; "
        f"echo {WAITING}; waited=$((waited + 3)); done"
    )


def _alone(host: Host) -> bool:
    """What a dead run has left at work would change the host after all was looked at."""
    ok, output = host.run_shell_command(
        StringCommand(packages_free("lock")), **connector_arguments(host)
    )
    if not ok:
        drop(host)
        lines = [line.line for line in output if line.line != WAITING]
        tell(host, *(lines[-1:] or ["lock: want the host asked, have no answer; look at the host"]))
    return ok


def _not_taken(greenlet: gevent.Greenlet) -> str:
    """Why the lock is not ours though nobody else has it; empty if somebody has."""
    if not greenlet.dead:
        return f"{OWNER_PATH} not written within {LIMIT_S} s"
    if greenlet.value is None:
        return ""  # the connection
    _, output = greenlet.value
    said = [line.line for line in output if line.line.startswith(("flock: ", UNWRITTEN))]
    return said[-1] if said else ""


def held(host: Host) -> bool:
    """Whether the host's lock has been ours ever since it was taken, as far as is known here."""
    greenlet = _held.get(host)
    return greenlet is not None and not greenlet.dead


def drop(host: Host) -> None:
    """The connection is about to go, or the run is over for this host."""
    greenlet = _held.pop(host, None)
    if greenlet is not None:
        greenlet.kill(block=False)
