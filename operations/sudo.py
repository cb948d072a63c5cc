"""sudo's password on its way to a host: through standard input, in no list of processes.

pyinfra 3.10 sends it as ``env PYINFRA_SUDO_PASSWORD=... sudo -A ...``: every user of the host can
read that in ``ps`` while the shell starts (``pyinfra/connectors/util.py``, ``make_unix_command``).
Here the shell reads it from its input before the command does, into the environment of sudo's
askpass helper.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from getpass import getpass
from typing import Any

from pyinfra.api import StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors import ssh, util

VARIABLE = "RACKWRIGHT_SUDO_PASSWORD"
SHOWN = "from-standard-input"
"""What pyinfra's own variable says in place of the password."""


# pyinfra's own writes it into one folder, and does not look whether programs may run there: a
# hardened host mounts /tmp noexec. What a talkative login shell prints comes before its path.
HELPER = r"""
for folder in "$TMPDIR" {folder} "$HOME" "$XDG_RUNTIME_DIR" /var/tmp; do
  helper=$(mktemp "$folder/pyinfra-sudo-askpass-XXXXXXXXXXXX" 2>/dev/null) || continue
  printf '%s\n' '#!/bin/sh' 'printf "%s\n" "${variable}"' >"$helper"
  chmod 700 "$helper"
  if "$helper" >/dev/null 2>&1; then echo "$helper"; exit; fi
  rm -f "$helper"
done
exit 1
"""


class Asked(Exception):
    """sudo wanted a password; the person at the terminal has just given it."""


def password_of(host: Any, arguments: dict[str, Any]) -> str | None:
    """The password for sudo on *host*, if the command goes through sudo and there is one."""
    if not arguments.get("_sudo"):
        return None
    prompted = host.connector_data.get("prompted_sudo_password")
    return arguments.get("_sudo_password") or prompted or None


def command_for_host(state: Any, host: Any, command: StringCommand, **arguments: Any) -> Any:
    """pyinfra's command for a Unix host, without the password in it."""
    if password_of(host, arguments) is None:
        return util.make_unix_command_for_host(state, host, command, **arguments)
    helper(host, arguments.get("_temp_dir") or host.get_temp_dir_config())
    through_sudo = util.make_unix_command_for_host(
        state, host, command, **{**arguments, "_sudo_password": SHOWN}
    )
    return StringCommand(f"IFS= read -r {VARIABLE} && export {VARIABLE} &&", through_sudo)


def helper(host: Any, folder: str) -> None:
    """
    Put sudo's askpass helper on the host, once: pyinfra finds its path, and removes it in the end.

    + folder: where to put it, if programs may run there
    """
    key = f"sudo_askpass_path__{folder}"
    if host.connector_data.get(key):
        return
    script = HELPER.replace("{folder}", shlex.quote(folder)).replace(
        "{variable}", f"{{{VARIABLE}}}"
    )
    ok, output = host.run_shell_command(script)
    if not ok or not output.stdout_lines:
        raise PyinfraError(
            f"sudo: want a folder that its askpass helper can run in, have none among {folder}, "
            "$TMPDIR, $HOME, $XDG_RUNTIME_DIR and /var/tmp; set `_temp_dir` to one that is not "
            "mounted noexec"
        )
    host.connector_data[key] = output.stdout_lines[-1]


def ask_once(
    host: Any, arguments: dict[str, Any], execute: Callable[[], tuple[int, Any]]
) -> tuple[int, Any]:
    """pyinfra's retry with a password from the terminal, as another command with another input."""
    code, output = execute()
    wanted = code != 0 and password_of(host, arguments) is None
    if wanted and any(
        line.line.strip() in util.SUDO_PASSWORD_REQUIRED_LINES for line in output.combined_lines
    ):
        host.connector_data["prompted_sudo_password"] = getpass(
            f"{host.print_prefix}sudo password: "
        )
        raise Asked
    return code, output


def through_standard_input(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a connector's ``run_shell_command`` put the password before the command's own input."""

    @wraps(run)
    def with_password(self: Any, command: Any, *given: Any, **arguments: Any) -> Any:
        password = password_of(self.host, arguments)
        if password is not None:
            own = arguments.get("_stdin") or []
            own = own.readlines() if hasattr(own, "readlines") else own
            lines = list(own) if isinstance(own, (list, tuple)) else [own]
            arguments = {**arguments, "_stdin": [password, *lines]}
        return run(self, command, *given, **arguments)

    @wraps(run)
    def asking(self: Any, command: Any, *given: Any, **arguments: Any) -> Any:
        try:
            return with_password(self, command, *given, **arguments)
        except Asked:
            return with_password(self, command, *given, **arguments)

    return asking


def install() -> None:
    """Let pyinfra's SSH connections work like that: once, before the first of them."""
    module: Any = ssh  # whose names are replaced: pyinfra has no other place for this
    if module.make_unix_command_for_host is command_for_host:
        return
    module.make_unix_command_for_host = command_for_host
    module.execute_command_with_sudo_retry = ask_once
    connector = module.SSHConnector
    connector.run_shell_command = through_standard_input(connector.run_shell_command)
