"""The whole main job on a simulated host: killed anywhere, unreadable, shown before it is done."""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cluster import CLOSED_TAINT, PASSED, VALIDATED_CONDITION, Condition, NodeState
from deploys.phases import mig, preflight
from facts.readings import READINGS
from facts.snapshot import MARK
from operations import containerd, kubeadm, node
from tests.support.machine import machine
from tests.support.runtime import MIRROR, Engine, make_engine, runtime, whole
from tests.support.simulated_cluster import EMPTY, SimulatedCluster, pod
from tests.support.simulated_node import Moments, SimulatedFile, SimulatedHost, Unreadable, boot

KILLS, ALL_KILLS = 2, 50
"""Per scenario: in every run of the tests, and with ``--lab-all``."""


@pytest.fixture(scope="module")
def phases() -> tuple[ModuleType, ...]:
    """Those of the main job, from its own file."""
    found: list[ModuleType] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "converge", lambda name, phases: found.extend(phases))
        runpy.run_path("deploys/gpu_node.py")
    assert len(found) == 9
    return tuple(found)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    return make_engine(monkeypatch, tmp_path)


# --- where a run begins ------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    name: str
    asked: dict[str, Any]
    prepare: Callable[[Engine, Sequence[ModuleType]], SimulatedHost]
    joins: int = 0


def fresh(engine: Engine, phases: Sequence[ModuleType]) -> SimulatedHost:
    """Swap in use, nouveau on the GPUs, no headers: all that a bare host can have against it."""
    return whole(
        engine.cluster, swaps=["/dev/vda5"], fstab=["UUID=9d2e none swap sw 0 0"], headers=set(),
        modules={"nouveau": 2}, gpu_driver="nouveau", nouveau_in_initramfs=True,
    )  # fmt: skip


def known(engine: Engine, phases: Sequence[ModuleType]) -> SimulatedHost:
    """A bare host whose Node object is there from an earlier life, and had passed."""
    passed = {VALIDATED_CONDITION: Condition("True", "Validated", "", "")}
    engine.cluster.nodes["gpu01"] = replace(EMPTY, name="gpu01", uid="first", conditions=passed)
    return whole(engine.cluster)


def in_service(engine: Engine, phases: Sequence[ModuleType]) -> SimulatedHost:
    host = whole(engine.cluster)
    assert engine.converge(host, *phases).state == "open"
    return host


def set_aside(engine: Engine, phases: Sequence[ModuleType]) -> SimulatedHost:
    """A node with another driver that its people have closed for the change."""
    host = whole(engine.cluster)
    assert engine.converge(host, *phases, nvidia_driver_version="580.159.03").state == "open"
    engine.cluster.taint("gpu01", CLOSED_TAINT)
    return host


DIVIDED = {"mig_config": "all-1g.5gb", "mig_strategy": "single"}
LABELLED = {"kube_labels": {"rack": "r01"}, "kube_taints": ["gpu=yes:NoSchedule"]}
SCENARIOS = (
    Scenario("bare", {**DIVIDED, **LABELLED}, fresh, joins=1),
    Scenario("bare, its Node object left from before", LABELLED, known, joins=1),
    Scenario(
        "in service, changed in what disturbs nobody",
        {
            **LABELLED,
            "registry_mirrors": {"docker.io": MIRROR, "ghcr.io": MIRROR},
            "nvidia_device_plugin_image": "nvcr.io/nvidia/k8s-device-plugin:v0.21.0",
        },
        in_service,
    ),
    Scenario("closed, another driver and MIG", DIVIDED, set_aside),
)  # fmt: skip


# --- killed ------------------------------------------------------------------------------------

LOOKS = re.compile(rf"{MARK}|^ask |^cat /proc/sys/kernel|^journalctl|^udevadm settle")
SENTENCE = re.compile(r"[^:]+: want .+, have .+; .+", re.DOTALL)
JUDGES = re.compile(
    "^(annotate|probe|delete the probes|delete probe-|taint|untaint|condition|sweep)"
)


@dataclass
class Watch:
    """Looks at the node at each moment: open, and not as it was when it passed, is a fault."""

    engine: Engine
    passed: bool = False
    announced: bool = False
    """Whether the node says that it was changed since it passed."""
    seen: int = 0
    faults: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        cluster = self.engine.cluster
        assert cluster.moments is not None
        for what in cluster.moments.log[self.seen :]:
            if what == "condition True Validated":
                self.passed, self.announced = cluster.probe_runs[-1:] == [True], False
            elif what.startswith("condition Unknown "):
                self.announced = self.announced or self.passed
            elif not LOOKS.search(what) and not JUDGES.match(what):
                self.passed = False
        self.seen = len(cluster.moments.log)
        there = cluster.nodes.get("gpu01")
        if there and is_open(there) and not (self.passed or self.announced):
            self.faults.append(f"open after {cluster.moments.log[-1][:200]}")


def is_open(there: NodeState) -> bool:
    return there.ready and not there.closed


@dataclass
class Began:
    """A host where a scenario begins, watched from there."""

    engine: Engine
    host: SimulatedHost
    moments: Moments
    watch: Watch


def begin(scenario: Scenario, phases: Sequence[ModuleType], engine: Engine) -> Began:
    engine.cluster.__init__()  # type: ignore[misc]
    host = scenario.prepare(engine, phases)
    there = engine.cluster.nodes.get("gpu01")
    watch = Watch(engine, passed=bool(there and is_open(there)))
    host.moments = engine.cluster.moments = moments = Moments(watch=watch)
    for log in (host.log, engine.cluster.log, engine.cluster.closed_at_start):
        log.clear()
    machine(host).unpacked.clear()
    host.values["kubelet"].joins = 0
    return Began(engine, host, moments, watch)


def dry(scenario: Scenario, phases: Sequence[ModuleType], began: Began) -> list[str]:
    """What ``--dry`` shows. It sends no change."""
    sent = len(began.moments.log)
    row = began.engine.converge(began.host, *phases, dry=True, **scenario.asked)
    assert all(LOOKS.search(what) for what in began.moments.log[sent:])
    assert row.changes == []
    return row.planned


def shown(planned: Sequence[str], done: Sequence[str]) -> list[str]:
    """
    The steps of a plan, without those of which nobody can say beforehand if they will be due:
    whether there will be anything to wait for, and how the GPUs are divided that have no driver.
    """
    return [
        step
        for step in planned
        if " | wait for " not in step and (step in done or step != "mig | apply the MIG layout")
    ]


UNCUT: dict[str, Moments] = {}


def uncut(scenario: Scenario, phases: Sequence[ModuleType], engine: Engine) -> Moments:
    """What a run of the scenario sends when nobody kills it. It does what ``--dry`` has shown."""
    if scenario.name not in UNCUT:
        began = begin(scenario, phases, engine)
        planned = dry(scenario, phases, began)
        began.moments.log.clear()
        began.moments.breakable.clear()
        began.watch.seen = 0
        row = engine.converge(began.host, *phases, **scenario.asked)
        assert (row.state, row.problems, began.watch.faults) == ("open", [], [])
        assert shown(planned, row.changes) == shown(row.changes, row.changes)
        UNCUT[scenario.name] = Moments([*began.moments.log], breakable=[*began.moments.breakable])
        assert dry(scenario, phases, began) == []
    return UNCUT[scenario.name]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_dry_shows_what_the_run_then_does_and_sends_no_change(engine, phases, scenario):
    """On a bare host, on one that is changed and on a converged one; half-done ones are below."""
    assert len(uncut(scenario, phases, engine).log) > 50


# A generator that is thrown away still wants to say a word: of a dead process nothing comes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_run_that_is_killed_at_a_random_moment_is_finished_by_the_next(
    engine, phases, scenario, request
):
    whole_run = uncut(scenario, phases, engine)
    many = request.config.getoption("--lab-all")
    for seed in range(ALL_KILLS if many else KILLS):
        print(f"{scenario.name}: {kill_and_resume(scenario, phases, engine, whole_run, seed)}")


def kill_and_resume(
    scenario: Scenario, phases: Sequence[ModuleType], engine: Engine, whole_run: Moments, seed: int
) -> str:
    """
    Kill a run before a command or call of the API, or half-way through one; with the host or not.
    Or cut it off from the host: then it lives, and has to say so. Sometimes twice. Returns when.

    What has had its effect, and was not heard of, is the next moment before it.
    """
    random_ = random.Random(f"{scenario.name} {seed}")
    began = begin(scenario, phases, engine)
    host, moments, cluster = began.host, began.moments, engine.cluster
    if random_.random() < 0.6 or not whole_run.breakable:
        moments.die_at = random_.randrange(len(whole_run.log))
    else:
        moments.die_at = random_.choice(whole_run.breakable)
        moments.way = random_.randrange(3)
    what = whole_run.log[moments.die_at]
    at = f"seed {seed}: {'a reading' if MARK in what else what[-50:]!r}, "
    deaths, torn = random_.choice([1, 1, 2]), 0
    for death in range(deaths):
        if death:  # the run that was to finish it dies as well, if it gets that far
            moments.die_at = len(moments.log) + random_.randrange(60)
            moments.way = random_.choice([None, 0, 1, 2])
        torn += moments.way is not None
        moments.cut, power_lost = random_.random() < 0.25, random_.random() < 0.3
        row = engine.converge(host, *phases, **scenario.asked)
        assert moments.dead or death
        at += f"{'cut off' if moments.cut else 'killed'} at {moments.die_at}"
        at += f" of {len(whole_run.log)}, way {moments.way}" + ", power lost" * power_lost + "; "
        if moments.dead and moments.cut:
            told = row.problems and all(map(SENTENCE.fullmatch, row.problems))
            assert row.state == "open" or (told and engine.failed == {"gpu01"}), (row, at)
        if power_lost:
            boot(host)
        began.watch()
        moments.die_at, moments.dead = None, False

    planned = dry(scenario, phases, began)
    row = engine.converge(host, *phases, **scenario.asked)
    began.watch()
    assert (row.state, row.problems) == ("open", []), at
    assert shown(planned, row.changes) == shown(row.changes, row.changes), at
    assert began.watch.faults == [], at

    # Nothing is left of what died, and nothing was done twice.
    kubelet = host.values["kubelet"]
    assert cluster.tokens == {}, at
    assert kubeadm.JOIN_FILE not in host.files, at
    assert not kubelet.bootstrapping, at
    assert not [pod for pod in cluster.pods if pod.name.startswith("probe-")], at
    assert kubelet.joins == scenario.joins, at
    assert all(cluster.closed_at_start[:1]) or not scenario.joins, at
    assert len(cluster.minted) <= 1 + deaths, at
    assert count(moments.log, "systemctl reboot") <= count(whole_run.log, "systemctl reboot"), at
    assert count(cluster.log, "apply ") <= 2, at
    assert all(n <= 1 + torn for n in machine(host).unpacked.values()), at
    last = engine.converge(host, *phases, **scenario.asked)
    assert (last.state, last.planned) == ("open", []), at
    return at


def count(log: Sequence[str], what: str) -> int:
    return sum(what in line for line in log)


# --- users -------------------------------------------------------------------------------------

OTHER_DRIVER = "580.159.03"
JOB = {"namespace": "team", "requests": {"nvidia.com/gpu": "2"}, "owner_kind": "Job"}
TAKEN = {
    "phase": "Pending", "log": "", "scheduled": False,
    "reason": "Unschedulable: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu.",
}  # fmt: skip


def serves(engine: Engine, phases: Sequence[ModuleType], *jobs: str, **asked: Any) -> SimulatedHost:
    """A node in service, with users' pods of these names."""
    host = whole(engine.cluster)
    assert engine.converge(host, *phases, **asked).state == "open"
    engine.cluster.pods += [pod(name, "gpu01", **JOB) for name in jobs]
    host.log.clear()
    engine.cluster.log.clear()
    return host


def change(engine: Engine, **values: Any) -> None:
    """Change the Node object behind our back."""
    engine.cluster.nodes["gpu01"] = replace(engine.cluster.nodes["gpu01"], **values)


def says(engine: Engine) -> Condition:
    return engine.cluster.nodes["gpu01"].conditions[VALIDATED_CONDITION]


@pytest.mark.parametrize(
    "values", [{}, {"taints": (CLOSED_TAINT,)}, {"unschedulable": True}],
    ids=["open", "closed", "cordoned"],
)  # fmt: skip
def test_a_node_with_users_pods_is_not_disturbed_whatever_keeps_new_ones_off(
    engine, phases, values
):
    """A taint and a cordon leave the pods that are there."""
    jobs = [f"job{number}" for number in range(6)]
    host = serves(engine, phases, *jobs, nvidia_driver_version=OTHER_DRIVER)
    change(engine, **values)
    row = engine.converge(host, *phases)
    assert host.changes == []
    assert (
        " under team/job0, team/job1, team/job2, team/job3, team/job4, ...; drain it"
        in row.problems[0]
    )
    engine.cluster.pods = [p for p in engine.cluster.pods if p.owner_kind != "Job"]
    change(engine, taints=(CLOSED_TAINT,))  # drained, and closed
    assert engine.converge(host, *phases).state == "open"


def test_a_host_whose_node_object_was_deleted_keeps_its_pods(engine, phases):
    host = serves(engine, phases, "job", nvidia_driver_version=OTHER_DRIVER)
    del engine.cluster.nodes["gpu01"]
    row = engine.converge(host, *phases)
    assert "under team/job; drain" in row.problems[0]
    assert host.changes == []


def test_a_kubelet_that_serves_without_its_file_is_not_reset(engine, phases):
    """kubelet.conf was removed, and the process goes on."""
    host = serves(engine, phases, "job")
    kubelet = host.values["kubelet"]
    kubelet.api_server, kubelet.ca = None, True
    row = engine.converge(host, *phases)
    assert "have kubernetes | undo the join that was cut off" in row.problems[0]
    assert host.changes == []
    kubelet.ca = False  # nothing to undo: then it would be joined once more
    assert "| join the cluster under team/job; drain" in engine.converge(host, *phases).problems[0]
    assert host.changes == []
    change(engine, ready=False)  # it cannot renew its lease for long; users' containers run on
    assert "| join the cluster under team/job; drain" in engine.converge(host, *phases).problems[0]
    assert host.changes == []
    boot(host)  # what was gone stays gone, and no pod of the Node object runs any more
    assert engine.converge(host, *phases).state == "open"


def test_a_node_that_did_not_pass_is_nobodys_though_its_taint_is_gone(engine, phases):
    host = serves(engine, phases, nvidia_driver_version=OTHER_DRIVER)
    failed = Condition("False", "ValidationFailed", "pod with nvidia.com/gpu: ...", "")
    change(engine, conditions={VALIDATED_CONDITION: failed})
    assert engine.converge(host, *phases).state == "open"
    assert count(host.log, "systemctl reboot") == 1


@pytest.mark.parametrize("ready", [True, False], ids=["in service", "in repair, or just booting"])
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "bare"])
def test_a_node_of_another_machine_is_neither_taken_nor_closed(engine, phases, ready, joined):
    """The address of gpu01 leads to another machine; what that one lacks is not gpu01's."""
    host = serves(engine, phases, nvidia_driver_version=OTHER_DRIVER)
    if not joined:
        host = whole(engine.cluster)
    machine(host).gpus = machine(host).gpus[:1]
    change(engine, ready=ready, machine_id="of-gpu01", system_uuid="of-gpu01", boot_id="its own")
    there = engine.cluster.nodes["gpu01"]
    row = engine.converge(host, *phases)
    assert "have that of another (machine-id of-gpu01, UUID of-gpu01)" in row.problems[0]
    assert (row.state, host.changes) == ("failed", [])
    assert engine.cluster.nodes["gpu01"] == there


def test_a_machine_that_serves_under_another_name_is_left_alone(engine, phases):
    """The address of gpu01 leads to gpu02, which is in service; gpu01 is not there."""
    host = serves(engine, phases, nvidia_driver_version=OTHER_DRIVER)
    engine.cluster.nodes["gpu02"] = replace(engine.cluster.nodes.pop("gpu01"), name="gpu02")
    engine.cluster.twin_of = "gpu02"  # as the API says
    row = engine.converge(host, *phases)
    assert "have one that Node gpu02 has; the address leads to gpu02" in row.problems[0]
    assert host.changes == engine.cluster.log == []


def test_a_host_that_was_installed_anew_takes_its_node_over(engine, phases):
    serves(engine, phases)
    change(engine, ready=False, ready_reason="NodeStatusUnknown")
    host = whole(engine.cluster, machine_id="f00d")
    assert engine.converge(host, *phases).state == "open"
    assert engine.cluster.nodes["gpu01"].machine_id == "f00d"


@pytest.mark.parametrize("users", [[], ["job"]], ids=["nobody", "users since"])
def test_a_node_whose_driver_was_changed_is_not_opened_without_a_gpu_pod(engine, phases, users):
    """No pod with a GPU has run since: that it had passed before says nothing."""
    host = serves(engine, phases, nvidia_driver_version=OTHER_DRIVER)
    change(engine, unschedulable=True)  # drained and cordoned
    engine.cluster.fails = {"probes"}
    assert engine.converge(host, *phases).state == "failed"
    assert count(host.log, "systemctl reboot") == 1
    assert says(engine).reason == "RunFailed"
    engine.cluster.fails = set()
    engine.cluster.pods += [pod(name, "gpu01", **JOB) for name in users]
    engine.cluster.probe_results["gpu"] = TAKEN
    row = engine.converge(host, *phases)
    assert (row.state, says(engine).reason) == ("closed", "NotTested")


READS_ALL_UNITS = re.compile(
    r"daemon-reload|systemctl (enable|disable|mask|preset)(?! --no-reload)"
)


@pytest.mark.parametrize(
    ("spoil", "applied"),
    [
        (
            lambda host: machine(host).persistenced.update(ActiveState="failed"),
            ["nvidia_driver | turn persistence mode on"],
        ),
        (
            lambda host: machine(host).persistenced.update(UnitFileState="disabled"),
            ["nvidia_driver | turn persistence mode on"],
        ),
        (
            lambda host: host.files.update({mig.UNIT: SimulatedFile("of an older release\n")}),
            ["mig | install the boot unit"],
        ),
        (
            lambda host: setattr(runtime(host).mig_unit, "enabled", False),
            ["mig | enable the boot unit"],
        ),
        (
            lambda host: setattr(host.values["kubelet"], "enabled", False),
            ["kubernetes | wait for the node to be Ready"],
        ),
    ],
    ids=["persistence daemon", "it disabled", "MIG's unit", "it disabled", "kubelet disabled"],
)
def test_rtm_13_systemd_reads_no_unit_anew_under_users_pods(engine, phases, spoil, applied):
    host = in_service(engine, phases)
    engine.cluster.pods.append(pod("job", "gpu01", **JOB))
    host.log.clear()
    spoil(host)
    row = engine.converge(host, *phases)
    assert (row.problems, row.changes[: len(applied)]) == ([], applied)
    assert [line for line in host.changes if READS_ALL_UNITS.search(line)] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda host: machine(host).fstab.append("UUID=9d2e none swap sw 0 0"),
        lambda host: machine(host).persistenced.update(argv="/x --no-persistence-mode"),
        lambda host: host.files.update(
            {containerd.UNIT_DROP_IN: SimulatedFile("of an older release\n")}
        ),
    ],
    ids=["fstab", "persistence daemon's unit", "containerd's unit"],
)
def test_rtm_13_what_needs_units_read_anew_is_refused_under_users_pods(engine, phases, spoil):
    host = in_service(engine, phases)
    engine.cluster.pods.append(pod("job", "gpu01", **JOB))
    host.log.clear()
    spoil(host)
    row = engine.converge(host, *phases)
    assert "node: want no disruptive step on a node in service" in row.problems[0]
    assert host.changes == []


def test_a_cordoned_node_is_closed_by_one_phase_that_disturbs_it(engine, phases):
    """Else `kubectl uncordon` would be all that is between it and its users."""
    host = serves(engine, phases)
    change(engine, unschedulable=True)
    row = engine.converge(host, preflight, mig, **DIVIDED)
    assert row.changes[-1] == "mig | apply the MIG layout"
    there = engine.cluster.nodes["gpu01"]
    assert (there.closed, says(engine).status, says(engine).reason) == (True, "False", "Changing")
    assert PASSED not in there.annotations


def test_who_comes_between_the_question_and_the_taint_is_not_disturbed(engine, phases, monkeypatch):
    host = serves(engine, phases, nvidia_driver_version=OTHER_DRIVER)
    failed = Condition("False", "ValidationFailed", "pod with nvidia.com/gpu: ...", "")
    change(engine, conditions={VALIDATED_CONDITION: failed})
    taint = engine.cluster.taint

    def late(*given):
        engine.cluster.pods.append(pod("late", "gpu01", **JOB))
        return taint(*given)

    monkeypatch.setattr(engine.cluster, "taint", late)
    row = engine.converge(host, *phases)
    assert " under team/late" in row.problems[0]
    assert "systemctl reboot" not in "".join(host.log)


def test_a_node_that_was_closed_by_a_slip_of_the_inventory_comes_back_full_of_users(engine, phases):
    host = serves(engine, phases, "job")
    engine.cluster.probe_results["gpu"] = TAKEN
    engine.converge(host, *phases, gpu_count=8)
    assert (engine.cluster.nodes["gpu01"].closed, says(engine).reason) == (True, "NotFit")
    row = engine.converge(host, *phases)  # mended: nothing was ever done to the host
    assert (row.state, row.problems) == ("open", [])
    assert "not tested: a pod with one nvidia.com/gpu" in says(engine).message


def test_users_whose_containers_cannot_be_made_excuse_no_missing_pod(engine, phases):
    """They hold the GPUs of a node whose runtime is broken, and are no sign that it is well."""
    host = serves(engine, phases)
    engine.cluster.pods.append(pod("job", "gpu01", **JOB, phase="Pending", ready=False))
    engine.cluster.probe_results["gpu"] = TAKEN
    row = engine.converge(host, *phases, kube_labels={"rack": "r01"})
    assert (row.state, says(engine).reason) == ("closed", "NotTested")


def test_a_node_that_has_not_passed_is_closed_again_when_its_run_fails(engine, phases, monkeypatch):
    """An autoscaler takes start-up taints off, or a person at three in the morning."""
    host = whole(engine.cluster)
    engine.cluster.pod_waits = "ImagePullBackOff: x"
    apply = engine.cluster.apply

    def and_the_taint_goes(manifest):
        change(engine, taints=())
        return apply(manifest)

    monkeypatch.setattr(engine.cluster, "apply", and_the_taint_goes)
    assert engine.converge(host, *phases).state == "failed"
    assert (engine.cluster.nodes["gpu01"].closed, says(engine).status) == (True, "False")


def test_a_node_that_did_not_pass_is_closed_by_a_run_that_is_refused(engine, phases):
    """Users who have come meanwhile stay; no more come."""
    host = serves(engine, phases, "job", nvidia_driver_version=OTHER_DRIVER)
    failed = Condition("False", "ValidationFailed", "pod with nvidia.com/gpu: ...", "")
    change(engine, conditions={VALIDATED_CONDITION: failed})
    row = engine.converge(host, *phases)
    assert " under team/job; drain" in row.problems[0]
    assert (engine.cluster.nodes["gpu01"].closed, host.changes) == (True, [])


def test_a_node_that_was_never_ours_is_left_to_its_users_by_a_run_that_is_refused(engine, phases):
    host = serves(engine, phases, "job", nvidia_driver_version=OTHER_DRIVER)
    change(engine, conditions={})
    row = engine.converge(host, *phases)
    assert " under team/job; drain" in row.problems[0]
    node = engine.cluster.nodes["gpu01"]
    assert (node.closed, node.conditions, host.changes) == (False, {}, [])


def test_one_lost_packet_does_not_close_a_node_in_service(engine, phases):
    host = serves(engine, phases)
    answers = ["connects\nrc 0", "refused"]
    host.facts["ApiServer"] = lambda h: answers.pop()
    assert engine.converge(host, *phases).state == "open"
    assert (answers, engine.cluster.log) == ([], [])
    answers = ["refused", "refused"]
    engine.converge(host, *phases)
    assert says(engine).reason == "NotFit"


# --- known failures that take more than one phase ----------------------------------------------


def test_mig_14_the_device_plugin_is_restarted_for_a_new_layout(engine, phases):
    """It looks at the MIG devices when it starts, and never again."""
    host = in_service(engine, phases)
    engine.cluster.taint("gpu01", CLOSED_TAINT)
    engine.cluster.log.clear()
    row = engine.converge(host, *phases, **DIVIDED)
    assert (row.state, row.offers["nvidia.com/gpu"]) == ("open", "14")
    assert engine.cluster.log.count("delete nvidia-device-plugin") == 1


# --- unreadable --------------------------------------------------------------------------------

UNREADABLE: dict[str, str | Unreadable] = {
    "exit code 3": Unreadable(3),
    "timed out": Unreadable(124),
    "": "rubbish",
}
"""By the reason that is told; of rubbish it is told what was looked for."""
HOSTS: dict[str, tuple[SimulatedHost, SimulatedCluster]] = {}


@pytest.fixture(params=["bare", "converged"])
def unchanging(request, engine, phases) -> SimulatedHost:
    """A host to which nothing must happen: one for all tests."""
    if request.param not in HOSTS:
        host = whole(engine.cluster)
        if request.param == "converged":
            assert engine.converge(host, *phases).state == "open"
        HOSTS[request.param] = host, engine.cluster
    host, engine.cluster = HOSTS[request.param]
    return host


@pytest.mark.parametrize("fact", READINGS, ids=lambda fact: fact.__name__)
def test_a_host_with_a_reading_that_failed_fails_with_its_name_and_is_left_alone(
    engine, phases, unchanging, fact, monkeypatch
):
    host, cluster, name = unchanging, engine.cluster, fact.__name__
    there = dict(cluster.nodes)
    for reason, answer in UNREADABLE.items():
        host.log.clear()
        cluster.log.clear()
        monkeypatch.setitem(host.facts, name, lambda h, answer=answer: spoken(answer))
        row = engine.converge(host, *phases)
        assert (row.state, engine.failed) == ("failed", {"gpu01"})
        (problem,) = row.problems[0].splitlines()
        assert problem.startswith(f"reading {name}: want it made, have unknown ({reason}")
        assert host.changes == []
        # Only what may be the hardware's fault keeps users off a node that was open, and not an
        # answer that no parser knows.
        failed = isinstance(answer, Unreadable)
        closes = bool(there) and failed and name in preflight.OF_THE_HARDWARE
        assert bool(cluster.log) == closes
        assert not closes or cluster.nodes["gpu01"].closed
        cluster.nodes = dict(there)


def spoken(answer: str | Unreadable) -> str:
    if isinstance(answer, Unreadable):
        raise answer
    return answer
