"""Failing one host, and no other."""

from __future__ import annotations

from collections.abc import Callable

from pyinfra import logger
from pyinfra.api import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import ClusterError
from operations.redaction import redact
from operations.report import RUN


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


def tell(host: Host, message: str) -> None:
    """Say why *host* fails: at the terminal and, where people look afterwards, in the result."""
    host.log_styled(redact(message), fg="red", log_func=logger.error)
    if row := RUN.rows.get(host.name):
        row.problems.append(redact(message))


def calling(function: Callable[..., bool | None], *arguments: object) -> FunctionCommand:
    """
    Return a command that calls ``function(state, host, *arguments)``; false fails the host.

    So does the API's refusal, in its own words: pyinfra would print a traceback, and the result
    would not say why.
    """

    def call(state: State, host: Host) -> bool:
        try:
            return function(state, host, *arguments) is not False
        except ClusterError as error:
            tell(host, str(error))
            return False

    return FunctionCommand(call, (), {})
