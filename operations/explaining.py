"""Commands of a step that say why, in one sentence, if they fail."""

from __future__ import annotations

from collections.abc import Sequence

from paramiko import SSHClient, SSHException
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.api.util import print_host_combined_output
from pyinfra.connectors.util import CommandOutput

from operations.causes import sentence
from operations.failure import tell
from operations.lock import connector_arguments
from operations.step import Step


def explained(command: PyinfraCommand, component: str, step: Step) -> PyinfraCommand:
    """
    *command* as it is, but for what it leaves behind when it fails: the sentence in the result.

    pyinfra shows a failed command's output, and gives none of it to who asked for the command.
    """
    if not isinstance(command, (StringCommand, FunctionCommand)):
        return command

    def run(state: State, host: Host) -> bool:
        arguments = connector_arguments(host)
        ok, output, lost = False, CommandOutput([]), ""
        try:
            done = command.execute(state, host, arguments)  # type: ignore[arg-type]
            ok, output = done if isinstance(command, StringCommand) else (done is not False, output)
        except (TimeoutError, OSError, EOFError, SSHException) as error:
            lost = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if ok:
            return True
        if not state.print_output:
            print_host_combined_output(host, output)
        by_itself = isinstance(command, FunctionCommand)  # it tells why it fails
        if lost or (not by_itself and (lost := ended(host))):
            tell(
                host,
                f"{component}: want {step.want}, have the connection lost on the way ({lost}); "
                "look at the host and the network between, then run again",
            )
        elif not by_itself:
            lines = [line.line for line in output]
            tell(host, sentence(component, step.want, lines, step.remedy))
        return False

    return FunctionCommand(run, (), {})


# Source of the words: sudo 1.9 (plugins/sudoers/policy.c, logging.c, auth/sudo_auth.c) and sudo-rs.
SUDO = (
    ("you must have a tty", "a sudo that wants a terminal, by requiretty",
     "add `Defaults:USER !requiretty` to a file in /etc/sudoers.d"),
    ("password is required", "a sudo that wants a password",
     "set `_sudo_password`, or allow it without one in /etc/sudoers.d"),
    ("authentication is required", "a sudo that wants a password",
     "set `_sudo_password`, or allow it without one in /etc/sudoers.d"),
    ("incorrect password", "a sudo that takes another password", "correct `_sudo_password`"),
    ("incorrect authentication", "a sudo that takes another password", "correct `_sudo_password`"),
    ("not in the sudoers file", "a user who may not use sudo", "allow it in /etc/sudoers.d"),
    ("is not allowed to", "a user who may not use sudo for this", "allow it in /etc/sudoers.d"),
)  # fmt: skip


def why_silent(said: Sequence[str]) -> str:
    """
    The sentence for a host that did not let itself be read.

    + said: lines that it answered with, on its standard error
    """
    have, todo = "no answer", "check the connection, sudo, and the disk"
    if said:
        have = f"no answer: {said[-1]}"
    for words, meaning, remedy in SUDO:
        if any(words in line for line in said):
            have, todo = meaning, remedy
            break
    return f"host: want it read, have {have}; {todo}"


def ended(host: Host) -> str:
    """Why nothing more comes from *host*, empty if its SSH connection lives.

    paramiko ends a command whose connection has gone with an exit code, as if it had failed.
    """
    client: SSHClient | None = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    if client is None or (transport is not None and transport.is_active()):
        return ""
    return "the SSH connection has ended"
