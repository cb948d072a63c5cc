"""The lab's own way into its guests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from lab.command import CommandError, run
from lab.description import Node
from lab.errors import LabError
from lab.guest.image import USER
from lab.paths import KNOWN_HOSTS, SSH_KEY

CONNECT_TIMEOUT_S = 10


def argv(node: Node) -> list[str]:
    """``ssh`` to the node, to which a command may be appended."""
    options = {
        "IdentityFile": str(SSH_KEY),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(KNOWN_HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        # A guest that is reset meanwhile answers nothing to a connection of before.
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        # The post-quantum exchange costs an emulated guest more than everything else here.
        "KexAlgorithms": "curve25519-sha256",
        "LogLevel": "ERROR",
    }
    settings = [f"-o{name}={value}" for name, value in options.items()]
    return ["ssh", "-F", "none", *settings, f"{USER}@{node.address}"]


def command(node: Node, shell: str, *, timeout_s: float = 60.0, stdin: str | None = None) -> str:
    """Standard output of a shell command that must succeed in the guest."""
    name, *options = argv(node)
    return run([name, "-oBatchMode=yes", *options, shell], timeout_s=timeout_s, stdin=stdin)


def reachable(node: Node, timeout_s: float = CONNECT_TIMEOUT_S) -> bool:
    try:
        command(node, "true", timeout_s=timeout_s)
    except CommandError:
        return False
    return True


def wait(node: Node, *, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Until the guest lets us in; at once an error if it is not even running."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            command(node, "true", timeout_s=30)
        except CommandError as error:
            if time.monotonic() > deadline or not alive():
                state = "no answer" if alive() else "a guest that stopped"
                raise LabError(
                    f"{node.name}: want SSH within {timeout_s:g} s, have {state}; "
                    f"see its console log: {error}"
                ) from error
        else:
            return
        time.sleep(0.5)


def set_clock(node: Node) -> None:
    """Step the guest's clock to ours; after a snapshot is reverted it has that of the snapshot."""
    name, *options = argv(node)
    # Connecting takes a second or more: the time is told only when the guest listens for it.
    listen = "echo ready; read -r now; sudo date --utc --set=@$now >/dev/null"
    with subprocess.Popen(
        [name, "-oBatchMode=yes", *options, listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            _, complaint = process.communicate(f"{time.time():.3f}\n", timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        raise LabError(
            f"{node.name}: want its clock set, have {complaint.strip()!r}; "
            f"run: python -m lab reset {node.name}"
        )
