"""Commands as a person types them, each in a process of its own that costs a fork, not a start.

pyinfra's command line needs a process of its own (it patches the standard library) and more than
a second to be imported. A server imports it once and forks for each command: what runs is what a
person runs, with what it tried to reach outside written down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str
    cpu_s: float
    contacts: tuple[str, ...]
    """Every connection, look-up of a name and process that it tried to make, in order."""

    @property
    def said(self) -> str:
        return self.stdout + self.stderr


class Commands:
    """The server; ``with Commands() as run: run("pyinfra", "-y", ...)``."""

    def __enter__(self) -> Commands:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def __call__(
        self, *command: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> Done:
        """
        Run *command* from *cwd*.

        + command: ``pyinfra``, ``nodespec`` or ``nodespec.loading`` (as with ``python -m``), and
          its arguments
        + env: variables beside those of this process
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"command": command, "cwd": str(cwd), "env": dict(env or {})}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return Done(**answer | {"contacts": tuple(answer["contacts"])})


# Of the events of Python's audit hooks, those by which a program reaches beyond itself.
OUTWARD = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
    "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system",
)  # fmt: skip

SERVER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.commands import serve
serve()
"""


def serve() -> None:
    """Answer one request after the other, until there are no more."""
    import pyinfra_cli  # patches the standard library, before anything uses it
    import pyinfra_cli.main
    from pyinfra.api.connectors import get_all_connectors

    import nodespec.__main__
    import nodespec.loading

    get_all_connectors()
    mains = {
        "pyinfra": pyinfra_cli.main.main,
        "nodespec": nodespec.__main__.main,
        "nodespec.loading": nodespec.loading.main,
    }
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), mains)), flush=True)


def _answer(request: dict[str, Any], mains: Mapping[str, Any]) -> dict[str, Any]:
    import os
    import tempfile

    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryFile("w+") as contacts,
    ):
        pid = os.fork()
        if not pid:
            _child(request, mains, out.fileno(), err.fileno(), contacts.fileno())
        _, status, usage = os.wait4(pid, 0)
        for file in (out, err, contacts):
            file.seek(0)
        return {
            "returncode": os.waitstatus_to_exitcode(status),
            "stdout": out.read(),
            "stderr": err.read(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "contacts": contacts.read().splitlines(),
        }


def _child(
    request: dict[str, Any], mains: Mapping[str, Any], out: int, err: int, contacts: int
) -> None:
    import atexit
    import os
    import signal
    import traceback

    code: Any = 1
    try:
        signal.alarm(TIMEOUT_S)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        program, *arguments = request["command"]
        sys.argv = [program, *arguments]

        def heard(event: str, values: tuple[Any, ...]) -> None:
            if event in OUTWARD:
                os.write(contacts, f"{event} {values[:2]!r}".replace("\n", " ").encode() + b"\n")

        sys.addaudithook(heard)
        code = mains[program]()
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
