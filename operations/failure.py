"""Failing one host, and no other."""

from __future__ import annotations

from pyinfra import logger
from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State


def fail_host(message: str) -> FunctionCommand:
    """
    Return a command that fails the host it runs on, and no other, with *message*.

    Yield this rather than raise: an exception that leaves an operation while it
    executes ends the run for every host (pyinfra 3.10, ``api/operations.py``).
    """

    def fail(state: State, host: Host) -> bool:
        host.log_styled(message, fg="red", log_func=logger.error)
        return False

    return FunctionCommand(fail, (), {})
