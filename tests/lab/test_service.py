"""Daemons by process id: real processes, the fastest there are."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lab.service
from lab.service import ProcessIdentity, Record, Service, ServiceError


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lab.service, "STATE", tmp_path)
    return tmp_path


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def web(state: Path, port: int) -> Iterator[Service]:
    service = web_service(port)
    yield service
    service.stop()


def web_service(port: int, name: str = "web") -> Service:
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    return Service(name, argv, ready=lambda: listens(port))


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_start_waits_until_it_answers(web: Service, port: int) -> None:
    assert not web.running()
    web.start(timeout_s=20)
    assert web.running()
    assert listens(port)


def test_start_twice_keeps_the_process(web: Service, port: int) -> None:
    web.start(timeout_s=20)
    first = web.pid()
    web_service(port).start(timeout_s=20)
    assert web.pid() == first


def test_another_command_line_replaces_the_process(web: Service, port: int) -> None:
    web.start(timeout_s=20)
    first = web.pid()
    other = web_service(port)
    other.argv.insert(1, "-u")
    other.start(timeout_s=20)
    assert other.pid() not in (None, first)


def test_stop_from_another_object_ends_it(web: Service, port: int) -> None:
    web.start(timeout_s=20)
    web_service(port).stop()
    assert not web.running()
    assert not listens(port)
    web.stop()  # and once more, with nothing there


def test_a_daemon_that_exits_is_an_error_with_its_log(state: Path) -> None:
    service = Service("dies", ["sh", "-c", "echo no such disk; exit 3"], ready=lambda: False)
    with pytest.raises(ServiceError, match=r"exited.*\n(.*\n)*no such disk"):
        service.start(timeout_s=20)


def test_a_daemon_that_never_answers_is_an_error(state: Path) -> None:
    service = Service("mute", ["sleep", "60"], ready=lambda: False)
    try:
        with pytest.raises(ServiceError, match="ready within"):
            service.start(timeout_s=0.3)
    finally:
        service.stop()


def test_a_stranger_on_the_port_is_not_taken_for_ours(web: Service, port: int) -> None:
    web.start(timeout_s=20)
    with pytest.raises(ServiceError, match="did not start"):
        web_service(port, name="second").start(timeout_s=20)


def test_a_reused_process_id_is_left_alone(web: Service, state: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        identity = ProcessIdentity.of(stranger.pid)
        assert identity is not None
        earlier = replace(identity, start_ticks=identity.start_ticks - 1)
        Record(process=earlier, argv=web.argv).write(web.pid_file)
        assert not web.running()
        web.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_cut_short_reads_as_not_running(web: Service) -> None:
    web.pid_file.parent.mkdir(parents=True)
    web.pid_file.write_text('{"pid": 1')
    assert not web.running()


def test_children_of_the_daemon_end_with_it(state: Path, tmp_path: Path) -> None:
    note = tmp_path / "child"
    service = Service(
        "parent", ["sh", "-c", f"sleep 60 & echo $! > {note}; wait"],
        ready=lambda: note.is_file() and note.read_text().endswith("\n"),
    )  # fmt: skip
    service.start(timeout_s=20)
    child = int(note.read_text())
    service.stop()
    deadline = time.monotonic() + 10
    while ProcessIdentity.of(child) is not None:  # init has to bury it
        assert time.monotonic() < deadline, f"process {child} lives"
        time.sleep(0.02)
