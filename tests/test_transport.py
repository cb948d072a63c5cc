"""How a run reaches its hosts: only those whose key it knows, with our transport."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from tests.support.relays import family

ROOT = Path(__file__).parent.parent


@dataclass
class Server(paramiko.ServerInterface):
    """An SSH server that lets everybody in and answers every command with "hello"."""

    key: paramiko.PKey
    address: str = "127.0.0.1"
    port: int = 0
    commands: list[str] = field(default_factory=list)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.commands.append(command.decode())
        # paramiko confirms the request after we return; an answer must not overtake that.
        threading.Timer(0.5, self._answer, [channel]).start()
        return True

    @staticmethod
    def _answer(channel: paramiko.Channel) -> None:
        channel.sendall(b"hello\n")
        channel.send_exit_status(0)
        channel.close()

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.key)
            try:
                transport.start_server(server=self)
            except (paramiko.SSHException, EOFError):
                transport.close()  # the client went away: it did not like our key


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    address = getattr(request, "param", "127.0.0.1")
    serving = Server(paramiko.ECDSAKey.generate(), address)
    with socket.create_server((address, 0), family=family(address)) as listener:
        serving.port = listener.getsockname()[1]
        threading.Thread(target=serving.serve, args=(listener,), daemon=True).start()
        yield serving
        listener.shutdown(socket.SHUT_RDWR)


def run(folder: Path, server: Server, known: paramiko.PKey | None) -> tuple[int, str]:
    """Run one command on *server* with the group data of the tree, knowing the key *known*."""
    identity = folder / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(identity))
    known_hosts = folder / "known_hosts"
    where = f"[{server.address}]:{server.port}"
    line = f"{where} {known.get_name()} {known.get_base64()}\n" if known else ""
    known_hosts.write_text(line)
    inventory = folder / "site.py"
    inventory.write_text(
        "hosts = [('gpu01', {\n"
        f"  'ssh_hostname': '{server.address}', 'ssh_port': {server.port}, 'ssh_user': 'lab',\n"
        f"  'ssh_key': {str(identity)!r}, 'ssh_known_hosts_file': {str(known_hosts)!r},\n"
        "  '_sudo': False,\n"
        "})]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyinfra", "-y", "-vvv", "--group-data", "inventories/group_data",
         str(inventory), "exec", "--", "true"],
        cwd=ROOT, env=os.environ | {"HOME": str(folder)}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_host_whose_key_is_known_is_reached_through_our_transport(
    tmp_path: Path, server: Server
) -> None:
    code, said = run(tmp_path, server, server.key)
    assert code == 0, said
    assert "hello" in said
    assert len(server.commands) == 1


def test_pyi_08_a_host_whose_key_is_not_known_is_refused_before_any_command(
    tmp_path: Path, server: Server
) -> None:
    code, said = run(tmp_path, server, None)
    assert code != 0
    assert "found in known_hosts" in said
    assert "No host key for" in said
    assert f"have it show {server.key.get_name()} {server.key.fingerprint}; compare" in said
    assert server.commands == []


@pytest.mark.parametrize("server", ["127.0.0.1", "::1"], indirect=True)
def test_pyi_08_a_host_whose_key_has_changed_is_refused_before_any_command(
    tmp_path: Path, server: Server
) -> None:
    known = paramiko.ECDSAKey.generate()
    code, said = run(tmp_path, server, known)
    assert code != 0
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said
    assert "does not match" in said
    assert f"want {known.get_name()} {known.fingerprint} of {server.address}" in said
    assert f"have {server.key.get_name()} {server.key.fingerprint}; compare" in said
    assert server.commands == []
