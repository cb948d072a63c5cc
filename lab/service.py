"""Daemons of the lab that no init system looks after: started, watched and stopped by process id.

A process id alone says little: it may have been given to another process since. The record of a
service therefore also holds the kernel's boot id and the process's start time, and only a process
with both is ever signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.paths import STATE

STOP_TIMEOUT_S = 10.0
LOG_TAIL_LINES = 15


class ServiceError(LabError):
    """A daemon that cannot be started or stopped; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What tells a process from a later one with the same id."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The living process with this id; ``None`` if there is none, or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The second field is the command's name in parentheses; the name may hold blanks and more
        # parentheses.
        state, *rest = stat.rpartition(")")[2].split()
        # A zombie whose other threads are not gone yet still has its files, and listens.
        threads = int(rest[16])
        if state == "X" or (state == "Z" and threads <= 1):
            return None
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(pid=pid, start_ticks=int(rest[18]), boot_id=boot_id)

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


@dataclass(frozen=True, slots=True)
class Record:
    """Contents of a pid file."""

    process: ProcessIdentity
    argv: list[str]

    def write(self, path: Path) -> None:
        fields = {
            "pid": self.process.pid,
            "start_ticks": self.process.start_ticks,
            "boot_id": self.process.boot_id,
            "argv": self.argv,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(fields) + "\n")
        scratch.rename(path)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """``None`` if there is no record, or one that was cut short by a crash."""
        try:
            fields = json.loads(path.read_text())
            process = ProcessIdentity(fields["pid"], fields["start_ticks"], fields["boot_id"])
            return cls(process=process, argv=fields["argv"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


class Service:
    """One daemon; ``start`` and ``stop`` may be called in any state, by any process of its user."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``env`` is added to the environment; ``ready`` answers fast and never raises."""
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.ready = ready
        self.env = dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return STATE / "logs" / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return STATE / "run" / f"{self.name}.json"

    def running(self) -> bool:
        """Whether the daemon that the lab started lives; whether it answers is ``ready``."""
        return self._record() is not None

    def pid(self) -> int | None:
        record = self._record()
        return record.process.pid if record else None

    def start(self, timeout_s: float = 30.0) -> None:
        """Run the daemon and wait until it is ready.

        One that already runs is left alone, unless its command line is another one.
        """
        record = self._record()
        if record is not None and record.argv != self.argv:
            self.stop()
            record = None
        if record is None:
            if self.ready():
                raise ServiceError(
                    f"{self.name}: want to start it, have something the lab did not start "
                    f"answer in its place; stop what listens there (ss -ltnp)"
                )
            self._spawn()
        self._wait_ready(timeout_s)

    def stop(self) -> None:
        """End the daemon and all it started; nothing happens if it does not run."""
        record = self._record()
        if record is not None:
            # The daemon leads a session and so a process group of its own: its children are in it.
            self._signal(record.process, signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self._record() is not None and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._record() is not None:
                self._signal(record.process, signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT_S
                while self._record() is not None:
                    if time.monotonic() > deadline:
                        raise ServiceError(
                            f"{self.name}: want it stopped, have process {record.process.pid} "
                            f"survive SIGKILL; see /proc/{record.process.pid}/stack"
                        )
                    time.sleep(0.05)
        self.pid_file.unlink(missing_ok=True)

    def _record(self) -> Record | None:
        if self._child is not None:
            self._child.poll()  # reaps it, or it would stay a zombie as long as we live
        record = Record.read(self.pid_file)
        return record if record is not None and record.process.alive() else None

    def _spawn(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(
                f"--- {time.strftime('%FT%TZ', time.gmtime())} {' '.join(self.argv)}\n".encode()
            )
            log.flush()
            try:
                self._child = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self.env,
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise ServiceError(
                    f"{self.name}: want {self.argv[0]} to run, have {error.strerror}; "
                    f"build or install it"
                ) from error
        process = ProcessIdentity.of(self._child.pid)
        if process is not None:
            Record(process=process, argv=self.argv).write(self.pid_file)

    def _wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if not self.running():
                raise ServiceError(
                    f"{self.name}: want it running, have it exited; "
                    f"see {self.log}:\n{self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{self.name}: want it ready within {timeout_s:g} s, "
                    f"have it run without answering; see {self.log}:\n{self._log_tail()}"
                )
            time.sleep(0.1)
        if not self.running():
            raise ServiceError(
                f"{self.name}: want our daemon to answer, have it exited and another one answer; "
                f"stop what listens there (ss -ltnp); see {self.log}:\n{self._log_tail()}"
            )

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    @staticmethod
    def _signal(process: ProcessIdentity, number: signal.Signals) -> None:
        if process.alive():
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                return  # it ended by itself between the look and the signal
