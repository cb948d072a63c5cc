"""Rebooting a host, and knowing that it did."""

from __future__ import annotations

import time

import gevent
from pyinfra import logger
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.connectors.util import clear_askpass_cache

from operations import lock, packages
from operations.causes import sentence
from operations.failure import tell
from operations.reading import forget

BOOT_ID = "/proc/sys/kernel/random/boot_id"
RETRY_S = 3


def reboot(reason: str, timeout_s: float) -> FunctionCommand:
    """
    Reboot the host and wait until it answers with another boot id; fail it if it does not.

    pyinfra's own ``server.reboot`` compares uptimes, and takes a host that still answers
    while it goes down for one that has come back; it is not used. Whoever changes packages is
    waited for: what a boot cuts off there may not boot again.

    + reason: what asks for the reboot, for the person at the terminal
    + timeout_s: seconds to wait; firmware of a GPU server can take more than ten minutes
    """
    return FunctionCommand(_reboot, (reason, timeout_s), {})


def _boot_id(host: Host, arguments: dict[str, object]) -> str | None:
    """The host's boot id, ``None`` if it does not answer."""
    try:
        ok, output = host.run_shell_command(
            StringCommand("cat", BOOT_ID), **{**arguments, "_timeout": 10}
        )
    except Exception:  # a dying connection raises whatever layer it dies in
        return None
    # Whatever a talkative login shell says comes first.
    return output.stdout_lines[-1].strip() or None if ok and output.stdout_lines else None


def _reconnect(host: Host) -> bool:
    """Drop the connection and make a new one; a kept one may belong to the old boot."""
    client = getattr(host.connector, "client", None)
    try:
        host.disconnect()
    except Exception as error:  # cleaning up an askpass file on a host that is gone
        logger.debug("disconnect %s: %s", host.name, error)
    if client is not None:
        client.close()
    # The helper that tells sudo its password lay in /tmp, which a boot empties.
    clear_askpass_cache(host)
    host.connected = False
    try:
        host.connect(show_errors=False)
    except Exception as error:
        logger.debug("connect %s: %s", host.name, error)
    return bool(host.connected)


def _reboot(state: State, host: Host, reason: str, timeout_s: float) -> bool:
    arguments = lock.connector_arguments(host)
    before = _boot_id(host, arguments)
    if before is None:
        tell(host, "reboot: want the boot id read, have no answer; look at the host")
        return False
    host.log(f"rebooting: {reason}")
    ok, output = host.run_shell_command(
        # Detached, so that the command can answer before the connection goes. It keeps our turn.
        StringCommand(
            f"{packages.turn('reboot')}; "
            "nohup sh -c 'sleep 1; systemctl reboot; sleep 60' >/dev/null 2>&1 &"
        ),
        **arguments,
    )
    lines = [line.line for line in output if line.line != lock.WAITING]
    if not ok and lines:  # without a word the connection was quicker: another boot is waited for
        tell(host, sentence("reboot", "it begun", lines, "look at the host"))
        return False
    lock.drop(host)
    started = told = time.monotonic()
    while (now := time.monotonic()) - started < timeout_s:
        gevent.sleep(RETRY_S)
        if now - told > 60:
            host.log(f"still rebooting after {now - started:.0f} s")
            told = now
        if _reconnect(host) and (after := _boot_id(host, arguments)) and after != before:
            forget(host)
            host.log(f"back after {time.monotonic() - started:.0f} s")
            return True
    tell(
        host,
        f"reboot: want another boot within {timeout_s:.0f} s, have boot id {before} or no answer; "
        "look at the console",
    )
    return False
