"""The node operation: plan, act, verify; on fresh, converged and abandoned hosts."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace

import gevent
import pytest
from gevent.subprocess import PIPE, STDOUT, Popen
from paramiko import SSHException
from pyinfra.api import FactBase, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.connectors.util import CommandOutput, OutputLine
from rich.console import Console

from facts import readings
from facts.files import Files
from facts.snapshot import MARK
from operations import boot, lock, node, reading, report
from operations.files import written
from operations.report import RUN
from operations.step import Refusal, Step
from tests.support import simulated_node
from tests.support.simulated_node import (
    SimulatedConnector,
    SimulatedHost,
    Unreadable,
    failed,
    run,
)

CONFIG = "/etc/thing.conf"
LOCK_OWNER = lock.OWNER_PATH


class Module(FactBase[str | None]):
    def command(self) -> str:
        return "cat /sys/module/thing/version || echo absent"

    def process(self, output: list[str]) -> str | None:
        if output == ["rubbish"]:
            raise FactProcessError("no version in 'rubbish'")
        return None if output == ["absent"] else output[0]


class Boots(FactBase[int]):
    def command(self) -> str:
        return "boots"

    def process(self, output: list[str]) -> int:
        return int(output[0])


def driver_plan(spec, have) -> Iterator[Step | Refusal]:
    module = have[Module]
    if module is None:

        def load():
            yield StringCommand("modprobe thing")

        yield Step("load the module", "1.0", "none", load, disrupts=True)
    if have[Boots] < spec.boots:

        def restart():
            yield boot.reboot("a boot is missing", timeout_s=30)

        yield Step("reboot", f"{spec.boots} boots", str(have[Boots]), restart, reboots=True)


def runtime_plan(spec, have) -> Iterator[Step | Refusal]:
    step = written("write the configuration", CONFIG, "a = 1\n", have[Files])
    if step:
        yield step
    if have[Module] is None:
        yield Step(
            "start the runtime", "running", "stopped", lambda: iter(()), waits_for="the module"
        )


def refusing_plan(spec, have) -> Iterator[Step | Refusal]:
    if spec.refuse:
        yield Refusal("gpus", "2", "1", "reseat the card", unfit=True)


driver = SimpleNamespace(__name__="deploys.phases.driver", plan=driver_plan)
runtime = SimpleNamespace(
    __name__="deploys.phases.runtime", plan=runtime_plan, files=lambda spec: (CONFIG,)
)
refusing = SimpleNamespace(__name__="deploys.phases.preflight", plan=refusing_plan)
PHASES = [refusing, driver, runtime]


class Spec(SimpleNamespace):
    audit = False
    boots = 1
    refuse = False
    kube_node_name = "gpu01"
    kube_api_server = "10.0.0.1:6443"
    kube_kubeconfig = None


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """The engine over two small facts, without a cluster."""
    monkeypatch.setattr(readings, "READINGS", (Files, Module, Boots))
    monkeypatch.setattr(node.Have, "node", None)
    cluster = SimpleNamespace(ca_pem=b"")
    monkeypatch.setattr(node.Cluster, "connect", lambda kubeconfig: cluster)
    monkeypatch.setattr(RUN, "rows", {})
    monkeypatch.setattr(RUN, "folder", tmp_path)
    monkeypatch.setattr(boot, "RETRY_S", 0)


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    found = {name: Spec() for name in ("gpu01", "gpu02")}
    monkeypatch.setattr(node, "specs", lambda: found)
    return found


def bare(name: str) -> SimulatedHost:
    host = SimulatedHost(name)
    host.values["module"] = "absent"
    host.facts = {
        "Module": lambda h: h.values["module"],
        "Boots": lambda h: str(h.boot),
    }

    def load(h, match, stdin):
        h.values["module"] = "1.0"
        return True

    host.on("^modprobe thing$", load)
    return host


def converge(*hosts: SimulatedHost, **kwargs):
    return run(hosts, {}, lambda: node.converge(name="Converge the node", phases=PHASES), **kwargs)


def test_fresh_host_gets_every_step_in_order(specs):
    host = bare("gpu01")
    state = converge(host)
    assert not failed(state)
    assert RUN.rows["gpu01"].changes == [
        "driver | load the module", "runtime | write the configuration",
    ]  # fmt: skip
    assert host.files[CONFIG].text == "a = 1\n"
    assert RUN.rows["gpu01"].state == "done"


def test_pyi_07_a_step_whose_time_has_not_come_is_planned_and_applied_later(specs):
    host = bare("gpu01")
    converge(host)
    assert RUN.rows["gpu01"].planned == [
        "driver | load the module", "runtime | write the configuration",
        "runtime | start the runtime",
    ]  # fmt: skip


def test_converged_host_costs_one_command(specs):
    host = bare("gpu01")
    converge(host)
    host.log.clear()
    state = converge(host)
    assert not failed(state)
    assert len(host.log) == 1
    assert MARK in host.log[0]


def test_pyi_07_what_was_read_for_the_plan_is_read_again_if_the_run_comes_late(specs, monkeypatch):
    host = bare("gpu01")
    converge(host)
    host.log.clear()
    assert not failed(converge(host, yes=False))
    assert len(host.log) == 1
    monkeypatch.setattr(reading, "FRESH_S", -1)
    assert not failed(converge(host, yes=False))
    assert len(host.log) == 3


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (
            "sudo: sorry, you must have a tty to run sudo",
            "host: want it read, have a sudo that wants a terminal, by requiretty; add "
            "`Defaults:USER !requiretty` to a file in /etc/sudoers.d",
        ),
        (
            "sudo: 3 incorrect password attempts",
            "host: want it read, have a sudo that takes another password; correct `_sudo_password`",
        ),
        (
            "ops is not in the sudoers file.",
            "host: want it read, have a user who may not use sudo; allow it in /etc/sudoers.d",
        ),
        (
            "sh: 1: cannot fork",
            "host: want it read, have no answer: sh: 1: cannot fork; check the connection, sudo, "
            "and the disk",
        ),
    ],
)
def test_pyi_02_why_a_host_does_not_let_itself_be_read(specs, says, problem):
    strange, usual = bare("gpu01"), bare("gpu02")
    strange.sudo_says = says
    assert failed(converge(strange, usual)) == {"gpu01"}
    assert RUN.rows["gpu01"].problems == [problem]
    assert RUN.rows["gpu02"].state == "done"
    strange.sudo_says = ""
    assert not failed(converge(strange))


def test_a_reading_that_was_cut_off_puts_no_contents_of_files_into_the_log(
    specs, monkeypatch, capsys, caplog
):
    usual = simulated_node.answer

    def cut_off(machine, command, stdin):
        ok, output = usual(machine, command, stdin)
        return (False, output + "Q09OVEVOVFM=") if MARK in command else (ok, output)

    monkeypatch.setattr(simulated_node, "answer", cut_off)
    with caplog.at_level("DEBUG"):
        assert failed(converge(bare("gpu01"))) == {"gpu01"}
    assert RUN.rows["gpu01"].problems == [
        "host: want it read, have no answer; check the connection, sudo, and the disk"
    ]
    assert "Q09OVEVOVFM=" not in "".join(capsys.readouterr()) + caplog.text


def test_dry_run_shows_the_plan_and_sends_one_reading(specs):
    host = bare("gpu01")
    converge(host, yes=False, dry=True)
    assert host.changes == []
    assert host.snapshots == 1
    assert len(RUN.rows["gpu01"].planned) == 3


def test_a_dry_run_says_which_phases_have_how_many_steps(specs, tmp_path):
    converge(bare("gpu01"), yes=False, dry=True)
    row = RUN.rows["gpu01"]
    assert (row.state, row.changes) == ("planned", [])
    assert row.phases == {"preflight": "ok", "driver": "differs", "runtime": "differs"}
    row.node, row.seconds = "gpu0001.rack17.site.test", 4.2
    console = Console(width=120, file=StringIO())
    console.print(report.table([row]))
    shown = console.file.getvalue()
    for words in (row.node, "planned", "driver (1)", "runtime (2)", "3 planned"):
        assert words in shown, shown
    RUN.close()
    (result,) = json.loads((tmp_path / "result.json").read_text())["nodes"]
    assert (result["state"], result["seconds"]) == ("planned", 4.2)


def test_a_dry_run_over_a_node_with_nothing_to_do_is_no_plan(specs):
    host = bare("gpu01")
    converge(host)
    converge(host, yes=False, dry=True)
    row = RUN.rows["gpu01"]
    assert (row.state, row.planned, set(row.phases.values())) == ("done", [], {"ok"})


@pytest.mark.parametrize("after", [0, 1])
def test_a_run_that_dies_is_resumed_by_the_next(specs, after):
    host = bare("gpu01")
    host.cut_after = after
    assert failed(converge(host)) == {"gpu01"}
    assert RUN.rows["gpu01"].state == "failed"
    host.cut_after = None
    assert not failed(converge(host))
    assert len(RUN.rows["gpu01"].changes) == 2 - after


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (lambda h: (_ for _ in ()).throw(Unreadable(124)), "timed out"),
        (lambda h: (_ for _ in ()).throw(Unreadable(3)), "exit code 3"),
        (lambda h: "rubbish", "no version in 'rubbish'"),
        (lambda h: "", "printed nothing"),
    ],
)
def test_unreadable_is_not_absent(specs, reading, reason):
    host, other = bare("gpu01"), bare("gpu02")
    host.facts["Module"] = reading
    state = converge(host, other)
    assert failed(state) == {"gpu01"}
    assert host.changes == []
    (problem,) = RUN.rows["gpu01"].problems
    assert "Module" in problem
    assert reason in problem
    assert RUN.rows["gpu02"].state == "done"


def test_a_step_that_does_not_take_fails_with_want_and_have(specs):
    host = bare("gpu01")
    host.on("^modprobe thing$", lambda h, m, s: True)
    assert failed(converge(host)) == {"gpu01"}
    assert "want 1.0, have none after: load the module" in RUN.rows["gpu01"].problems[0]


def test_a_command_that_fails_says_why_with_the_steps_want_and_remedy(specs):
    host = bare("gpu01")
    host.on("^modprobe thing$", lambda h, m, s: (False, "modprobe: ERROR: no such thing"))
    assert failed(converge(host)) == {"gpu01"}
    assert RUN.rows["gpu01"].problems == [
        "driver: want 1.0, have no such thing; look at the host, then run again"
    ]
    assert RUN.rows["gpu01"].phases["driver"] == "failed"


@pytest.mark.parametrize("error", [TimeoutError(), SSHException("keepalive"), OSError("reset")])
def test_a_connection_that_is_lost_is_told_as_such(specs, error):
    host, other = bare("gpu01"), bare("gpu02")

    def lose(h, match, stdin):
        raise error

    host.on("^modprobe thing$", lose)
    assert failed(converge(host, other)) == {"gpu01"}
    (problem,) = RUN.rows["gpu01"].problems
    assert problem.startswith("driver: want 1.0, have the connection lost on the way")
    assert RUN.rows["gpu02"].state == "done"


def test_a_command_whose_connection_has_ended_has_not_failed_by_itself(specs, monkeypatch):
    host = bare("gpu01")
    active = []
    client = SimpleNamespace(
        get_transport=lambda: SimpleNamespace(is_active=lambda: not active), close=lambda: None
    )
    monkeypatch.setattr(SimulatedConnector, "client", client, raising=False)
    host.on("^modprobe thing$", lambda h, m, s: (False, "half a li"))
    converge(host)
    assert "have half a li;" in RUN.rows["gpu01"].problems[0]
    active.append("no more")
    converge(host)
    assert "have the connection lost on the way" in RUN.rows["gpu01"].problems[0]


def test_a_bug_in_a_phase_fails_its_host_alone(specs):
    host, other = bare("gpu01"), bare("gpu02")
    specs["gpu01"].boots = "many"  # a comparison that raises
    state = converge(host, other)
    assert failed(state) == {"gpu01"}
    (problem,) = RUN.rows["gpu01"].problems
    assert "have TypeError: '<' not supported between instances of 'int' and 'str'" in problem
    assert RUN.rows["gpu01"].state == "failed"
    assert RUN.rows["gpu02"].state == "done"


def test_a_refusal_stops_the_host_before_any_change(specs):
    host = bare("gpu01")
    specs["gpu01"].refuse = True
    assert failed(converge(host)) == {"gpu01"}
    assert host.changes == []
    assert RUN.rows["gpu01"].problems == ["gpus: want 2, have 1; reseat the card"]


def test_audit_changes_nothing(specs):
    host = bare("gpu01")
    specs["gpu01"].audit = True
    assert not failed(converge(host))
    assert host.changes == []
    assert RUN.rows["gpu01"].state == "audited"
    assert len(RUN.rows["gpu01"].planned) == 3


def test_pyi_03_reboot_comes_from_state_and_waits_for_another_boot_id(specs):
    host = bare("gpu01")
    specs["gpu01"].boots = 2
    assert not failed(converge(host))
    assert host.boot == 2
    assert "driver | reboot" in RUN.rows["gpu01"].changes


def test_pyi_05_a_host_that_comes_back_unchanged_has_not_rebooted(specs, monkeypatch):
    host = bare("gpu01")
    specs["gpu01"].boots = 2
    monkeypatch.setattr(boot, "_boot_id", lambda host, arguments: "boot-1")
    host.on("systemctl reboot", lambda h, m, s: True)

    def reboot(reason, timeout_s):
        from pyinfra.api import FunctionCommand

        return FunctionCommand(boot._reboot, (reason, 0.2), {})

    monkeypatch.setattr(boot, "reboot", reboot)
    assert failed(converge(host)) == {"gpu01"}
    assert RUN.rows["gpu01"].problems == [
        "reboot: want another boot within 0 s, have boot id boot-1 or no answer; "
        "look at the console"
    ]


def test_the_second_of_two_runs_says_who_has_the_host_and_does_the_others(specs):
    host, other = bare("gpu01"), bare("gpu02")
    host.locked_by = "eve@desk pid 7 since 2026-11-30T03:00:00Z"
    state = converge(host, other)
    assert failed(state) == {"gpu01"}  # hence an exit code that is not 0
    assert host.changes == []
    assert RUN.rows["gpu01"].problems == [
        "lock: want /run/rackwright.lock free, have it held by eve@desk pid 7 since "
        "2026-11-30T03:00:00Z; wait for that run to end, or stop it where it runs"
    ]
    assert RUN.rows["gpu02"].state == "done"
    host.locked_by = None
    assert not failed(converge(host, other))


class Shell:
    """A host whose commands are run here, by a real shell."""

    name, current_op_global_arguments = "gpu01", None

    def run_shell_command(self, command, **arguments):
        words = ["sh", "-c", command.get_raw_value()]
        process = Popen(words, stdout=PIPE, stderr=STDOUT)
        try:
            lines = [line.decode().strip() for line in process.stdout]
        finally:  # also where the connection is cut: nothing is sent, and nobody reads any more
            process.stdout.close()
        said = CommandOutput([OutputLine("stdout", line) for line in lines])
        return process.wait() == 0, said

    def log_styled(self, message, **style) -> None:
        pass


def test_the_lock_itself_lives_and_dies_with_the_connection_of_its_run(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "PATH", tmp_path / "lock")
    monkeypatch.setattr(lock, "OWNER_PATH", tmp_path / "lock.owner")
    for name, seconds in (("BEAT_S", 0.2), ("POLL_S", 0.05), ("WAIT_S", 1)):
        monkeypatch.setattr(lock, name, seconds)
    monkeypatch.setattr(lock, "PACKAGES_PATH", tmp_path / "packages.lock")
    first, second, third = Shell(), Shell(), Shell()
    RUN.row("gpu01", [])

    def take(host: Shell, owner: str) -> bool:
        monkeypatch.setattr(lock, "owner", lambda: owner)
        return lock.take().execute(None, host, {})

    assert take(first, "ann@desk pid 6 since 2026-11-30T02:00:00Z")
    assert take(first, "ann")  # once more in the same run: held already
    assert (lock.held(first), lock.held(second)) == (True, False)
    assert not take(second, "eve@desk pid 7 since 2026-11-30T03:00:00Z")
    (problem,) = RUN.rows["gpu01"].problems
    assert "held by ann@desk pid 6 since 2026-11-30T02:00:00Z" in problem
    lock.drop(first)
    assert not lock.held(first)
    assert take(third, "joe@desk pid 8 since 2026-11-30T04:00:00Z")
    lock.drop(third)
    gevent.sleep(0)

    # A dead run's command is at work: what is read now is not what will be.
    RUN.rows.clear()
    RUN.row("gpu01", [])
    monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 0)
    with (tmp_path / "packages.lock").open("w") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        last = Shell()
        assert not take(last, "sue@desk pid 9 since 2026-11-30T05:00:00Z")
        assert not lock.held(last)
    assert RUN.rows["gpu01"].problems == [
        "lock: want no command of an earlier run at work, have one that does not end; "
        "look at it on the host"
    ]
    gevent.sleep(0)


@pytest.mark.parametrize(
    ("path", "owner", "have"),
    [
        ("lock", "folder", "{owner} that cannot be written"),
        ("no/lock", "lock.owner", "flock: cannot open lock file {path}: No such file or directory"),
        ("lock", "null", "{owner} not written within 0.5 s"),
    ],
    ids=["the owner's file", "the lock's file", "a write that is lost"],
)
def test_a_lock_that_the_host_cannot_keep_is_not_waited_for(
    monkeypatch, tmp_path, path, owner, have
):
    (tmp_path / "folder").mkdir()  # what cannot be written, as a file on a full /run
    told = {"path": tmp_path / path, "owner": tmp_path / owner}
    (tmp_path / "null").symlink_to("/dev/null")
    monkeypatch.setattr(lock, "PATH", told["path"])
    monkeypatch.setattr(lock, "OWNER_PATH", told["owner"])
    monkeypatch.setattr(lock, "UNWRITTEN", lock.UNWRITTEN.replace(LOCK_OWNER, str(told["owner"])))
    for name, seconds in (("BEAT_S", 0.1), ("POLL_S", 0.05), ("WAIT_S", 1)):
        monkeypatch.setattr(lock, name, seconds)
    if owner == "null":  # the others have an answer, however late
        monkeypatch.setattr(lock, "LIMIT_S", 0.5)
    host = Shell()
    RUN.row("gpu01", [])
    with gevent.Timeout(20):
        assert lock.take().execute(None, host, {}) is False
    assert not lock.held(host)
    want, why = told["path"], have.format(**told)
    assert RUN.rows["gpu01"].problems == [
        f"lock: want {want} taken, have {why}; look at `df /run` on the host"
    ]
    gevent.sleep(0)


def test_a_disruptive_step_on_a_node_in_service_is_refused(specs, monkeypatch):
    host = bare("gpu01")
    monkeypatch.setattr(
        node.Have,
        "node",
        SimpleNamespace(closed=False, unschedulable=False, name="gpu01", conditions={}),
    )
    monkeypatch.setattr(node.Have, "pods", [])
    assert failed(converge(host)) == {"gpu01"}
    assert host.changes == []
    assert "driver | load the module" in RUN.rows["gpu01"].problems[0]
