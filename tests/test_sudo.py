"""sudo with a password: it reaches sudo, and no list of processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import SSHException
from pyinfra.api import Config, Inventory, State, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors import ssh, util

from operations import boot, sudo

PASSWORD = "Tr0ub4dor & 3'\"$x"

# In place of sudo: asks its helper, and tells of every process between it and the login shell.
FAKE = r"""#!/bin/sh
while [ "$1" != sh ]; do
  case $1 in -n) echo "sudo: a password is required" >&2; exit 1 ;; esac
  shift
done
printf '%s' "$("$SUDO_ASKPASS")" >"$SEEN.password"
pid=$$
while [ "$pid" -gt 1 ] && [ "$pid" != "$TEST" ]; do
  tr '\0' ' ' </proc/$pid/cmdline >>"$SEEN.argv"
  pid=$(awk '/^PPid/ { print $2 }' /proc/$pid/status)
done
exec "$@"
"""


class Client:
    """An SSH client whose host is this machine: the login shell of a command is ``sh``."""

    def __init__(self, folder: Path) -> None:
        (folder / "sudo").write_text(FAKE)
        (folder / "sudo").chmod(0o755)
        self.sent: list[str] = []
        self.greeting = ""
        """What the login shell does before a command."""
        self.environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(folder / "seen"),
            "TMPDIR": str(folder), "TEST": str(os.getpid()),
        }  # fmt: skip

    def exec_command(self, command: str, get_pty: bool = False) -> Any:
        self.sent.append(command)
        process = subprocess.Popen(
            ["sh", "-c", self.greeting + command], env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        process.stdout.channel = SimpleNamespace(recv_exit_status=process.wait)  # type: ignore
        return process.stdin, process.stdout, process.stderr


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A host over SSH, with ours in pyinfra's place, and only for this test."""
    for name in ("make_unix_command_for_host", "execute_command_with_sudo_retry"):
        monkeypatch.setattr(ssh, name, getattr(ssh, name))
    monkeypatch.setattr(ssh.SSHConnector, "run_shell_command", ssh.SSHConnector.run_shell_command)
    sudo.install()
    inventory = Inventory((["gpu01"], {}))
    State(inventory, Config())
    found = inventory.get_host("gpu01")
    found.connector.client = Client(tmp_path)
    return found


def seen(folder: Path, what: str) -> str:
    return (folder / f"seen.{what}").read_text()


def test_pyi_01_a_password_from_the_inventory_reaches_sudo_and_no_argv(
    host, tmp_path: Path
) -> None:
    command = StringCommand("cat; echo done")
    ok, output = host.connector.run_shell_command(
        command, _sudo=True, _sudo_password=PASSWORD, _stdin="a file\nof two lines"
    )
    assert ok, output.output
    assert output.stdout_lines == ["a file", "of two lines", "done"]
    assert seen(tmp_path, "password") == PASSWORD
    assert "sudo" in seen(tmp_path, "argv")
    for text in (seen(tmp_path, "argv"), *host.connector.client.sent):
        assert "Tr0ub4dor" not in text


def test_pyi_01_a_password_from_the_terminal_is_asked_for_once(
    host, tmp_path: Path, monkeypatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sudo, "getpass", lambda prompt: asked.append(prompt) or PASSWORD)
    for _ in range(2):
        ok, output = host.connector.run_shell_command(StringCommand("echo done"), _sudo=True)
        assert ok, output.output
        assert output.stdout_lines == ["done"]
    assert len(asked) == 1
    assert seen(tmp_path, "password") == PASSWORD
    assert not any("Tr0ub4dor" in text for text in host.connector.client.sent)


def test_pyinfra_itself_still_sends_the_password_as_an_argument() -> None:
    """Once it does not, operations/sudo.py can go."""
    own = util.make_unix_command(
        StringCommand("true"), _sudo=True, _sudo_password="hunter22", _sudo_askpass_path="/tmp/x"
    )
    assert "PYINFRA_SUDO_PASSWORD=hunter22" in own.get_raw_value()


def test_without_a_password_a_command_is_pyinfras_own(host) -> None:
    ok, _ = host.connector.run_shell_command(StringCommand("echo done"))
    assert ok
    assert host.connector.client.sent == ["sh -c 'echo done'"]


def test_pyi_09_where_no_program_may_run_the_helper_goes_elsewhere(host, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    client = host.connector.client
    client.environment |= {"HOME": str(home), "TMPDIR": "/proc"}
    ok, output = host.connector.run_shell_command(
        StringCommand("echo done"), _sudo=True, _sudo_password=PASSWORD, _temp_dir="/proc"
    )
    assert (ok, output.stdout_lines) == (True, ["done"])
    assert len(list(home.iterdir())) == 1
    assert seen(tmp_path, "password") == PASSWORD


def test_pyi_09_a_host_on_which_no_program_may_run_is_told(host, monkeypatch) -> None:
    monkeypatch.setattr(sudo, "HELPER", sudo.HELPER.replace('chmod 700 "$helper"', "true"))
    with pytest.raises(
        PyinfraError, match=r"sudo: want a folder .* have none among .*; set `_temp_"
    ):
        host.connector.run_shell_command(StringCommand("true"), _sudo=True, _sudo_password=PASSWORD)


def test_pyi_04_after_a_reboot_the_password_has_a_new_helper(host, tmp_path: Path) -> None:
    """It lay in /tmp, and the connection by which pyinfra would remove it is dead."""
    host.connector.run_shell_command(StringCommand("true"), _sudo=True, _sudo_password=PASSWORD)
    (old,) = tmp_path.glob("pyinfra-sudo-askpass-*")
    old.unlink()
    client = host.connector.client
    host.connector.disconnect = raises
    host.connector.connect = lambda: None
    host.connected = True
    client.close = lambda: None
    boot._reconnect(host)
    ok, output = host.connector.run_shell_command(
        StringCommand("echo done"), _sudo=True, _sudo_password=PASSWORD
    )
    assert (ok, output.stdout_lines) == (True, ["done"])
    assert seen(tmp_path, "password") == PASSWORD
    assert len(list(tmp_path.glob("pyinfra-sudo-askpass-*"))) == 1


def raises() -> None:
    raise SSHException("SSH session not active")


def test_pyi_12_a_login_shell_that_talks_does_not_disturb(host, tmp_path: Path) -> None:
    host.connector.client.greeting = "echo Welcome; echo noise >&2; "
    ok, output = host.connector.run_shell_command(
        StringCommand("echo done"), _sudo=True, _sudo_password=PASSWORD
    )
    assert (ok, output.stdout_lines) == (True, ["Welcome", "done"])
    assert seen(tmp_path, "password") == PASSWORD


def test_no_password_stays_on_the_host(host, tmp_path: Path) -> None:
    """The helper that pyinfra leaves there until it disconnects holds a name, no value."""
    host.connector.run_shell_command(StringCommand("true"), _sudo=True, _sudo_password=PASSWORD)
    (helper,) = tmp_path.glob("pyinfra-sudo-askpass-*")
    assert sudo.VARIABLE in helper.read_text()
    assert "Tr0ub4dor" not in helper.read_text()
