"""Commands of a step that say why, in one sentence, if they fail."""

from __future__ import annotations

from paramiko import SSHException
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.api.util import print_host_combined_output

from operations.causes import sentence
from operations.failure import tell
from operations.lock import connector_arguments
from operations.step import Step


def explained(command: PyinfraCommand, component: str, step: Step) -> PyinfraCommand:
    """
    *command* as it is, but for what it leaves behind when it fails: the sentence in the result.

    pyinfra shows a failed command's output, and gives none of it to who asked for the command.
    """
    if not isinstance(command, StringCommand):
        return command  # a function tells by itself

    def run(state: State, host: Host) -> bool:
        arguments = connector_arguments(host)
        try:
            ok, output = command.execute(state, host, arguments)  # type: ignore[arg-type]
        except (TimeoutError, OSError, EOFError, SSHException) as error:
            lost = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            tell(
                host,
                f"{component}: want {step.want}, have the connection lost on the way ({lost}); "
                "look at the host and the network between, then run again",
            )
            return False
        if not ok:
            if not state.print_output:
                print_host_combined_output(host, output)
            lines = [line.line for line in output]
            tell(host, sentence(component, step.want, lines, step.remedy))
        return bool(ok)

    return FunctionCommand(run, (), {})
