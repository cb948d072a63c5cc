"""Phases container_runtime and mig: fresh, converged, cut off, rebooted, and each way to fail."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from deploys.phases import container_runtime, mig, preflight
from facts.containerd import parse_containerd
from facts.snapshot import MARK
from operations import containerd
from operations.report import Row
from tests.support import simulated_node
from tests.support.machine import machine
from tests.support.runtime import (
    CONTAINERD,
    MIRROR,
    Engine,
    Gpu,
    bare,
    make_engine,
    open_node,
    runtime,
)
from tests.support.simulated_node import SimulatedFile, SimulatedHost

ALL = (preflight, container_runtime, mig)
DIVIDED = {"mig_config": "all-1g.5gb", "mig_strategy": "single"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    return make_engine(monkeypatch, tmp_path)


@pytest.fixture
def converge(engine: Engine):
    return engine.converge


def changes(row: Row) -> list[str]:
    return [change.split(" | ")[1] for change in row.changes]


def test_fresh_host_gets_everything_in_order(converge):
    host = bare()
    row = converge(host, *ALL, **DIVIDED)
    assert (row.state, row.problems) == ("done", [])
    assert row.changes == [
        "container_runtime | add the docker repository",
        "container_runtime | add the container toolkit repository",
        "container_runtime | install containerd and the NVIDIA container toolkit",
        "container_runtime | let the drop-in directory count in containerd's configuration",
        "container_runtime | make nvidia the default runtime",
        "container_runtime | lift containerd's limits for RDMA",
        "container_runtime | point containerd at the registry mirrors",
        "container_runtime | start containerd",
        "container_runtime | run a container through the nvidia runtime",
        "mig | declare the MIG layout",
        "mig | install what applies it",
        "mig | install the boot unit",
        "mig | enable the boot unit",
        "mig | apply the MIG layout",
    ]
    state = runtime(host)
    config = state.configuration(host)
    cri = config["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]
    assert cri["default_runtime_name"] == "nvidia"
    assert "disabled_plugins" not in config
    assert state.proofs == 1
    assert [len(gpu.devices) for gpu in state.gpus] == [7, 7]
    held = [name for name, package in machine(host).packages.items() if package.held]
    assert held == ["containerd.io", "nvidia-container-toolkit", "nvidia-container-toolkit-base"]


def test_fresh_host_is_read_once_per_batch_of_steps(converge):
    host = bare()
    converge(host, *ALL, **DIVIDED)
    # Shown, under the lock, after the runtime, the proof, and MIG.
    assert host.snapshots == 5


def test_the_first_plan_names_what_is_to_come(converge):
    row = converge(bare(driver=False), *ALL, audit=True, **DIVIDED)
    assert row.state == "audited"
    assert {
        "container_runtime | start containerd",
        "container_runtime | run a container through the nvidia runtime",
        "mig | apply the MIG layout",
    } <= set(row.planned)


def test_converged_host_costs_one_command_and_keeps_its_daemon(converge):
    host = bare()
    converge(host, *ALL, **DIVIDED)
    started = runtime(host).service.started_at_s
    host.log.clear()
    row = converge(host, *ALL, **DIVIDED)
    assert (row.state, row.planned) == ("done", [])
    assert len(host.log) == 1
    assert MARK in host.log[0]
    assert runtime(host).service.started_at_s == started


COMMANDS = 20
"""Changing commands of a fresh run: in between is everything where it can die."""


def test_number_of_commands_of_a_fresh_run(converge):
    host = bare()
    converge(host, *ALL, **DIVIDED)
    assert len(host.changes) == COMMANDS


@pytest.mark.parametrize("after", range(COMMANDS))
def test_a_run_that_dies_anywhere_is_finished_by_the_next(converge, after):
    host = bare()
    host.cut_after = after
    cut = converge(host, *ALL, **DIVIDED)
    assert cut.state == "failed"
    host.cut_after = None
    row = converge(host, *ALL, **DIVIDED)
    assert (row.state, row.problems) == ("done", [])
    assert not converge(host, *ALL, **DIVIDED).planned
    state = runtime(host)
    assert state.proofs >= 1
    assert [len(gpu.devices) for gpu in state.gpus] == [7, 7]


def test_mig_08_what_a_boot_brings_back_is_what_was_converged(converge):
    host = bare()
    machine(host).on_disk = {machine(host).running: (str(machine(host).loaded), "Dual MIT/GPL")}
    host.files["/etc/modules-load.d/rackwright-nvidia.conf"] = SimulatedFile("nvidia\n")
    converge(host, *ALL, **DIVIDED)
    runtime(host).boot(host)
    assert not converge(host, *ALL, **DIVIDED).planned


def test_host_without_gpus_waits_for_no_driver(converge):
    asked = {"gpu_count": 0, "gpu_model": None}
    host = bare(driver=False, gpus=[])
    row = converge(host, *ALL, **asked)
    assert (row.state, row.problems) == ("done", [])
    assert runtime(host).proofs == 0
    assert not converge(host, *ALL, **asked).planned


def test_without_a_driver_the_phase_says_what_it_waits_for(converge):
    row = converge(bare(driver=False), preflight, container_runtime)
    assert row.problems == [
        "container_runtime: want a container that sees the GPUs, have none tried; "
        "waiting for the driver and the packages, which no step brings"
    ]


# --- container_runtime -------------------------------------------------------------------------


def converged(converge, **asked) -> SimulatedHost:
    host = bare()
    assert converge(host, *ALL, **asked).state == "done"
    host.log.clear()
    return host


def in_service(engine: Engine, host: SimulatedHost) -> None:
    """The host has joined, and its node is open."""
    host.values["joined"] = "server: https://10.0.0.1:6443"
    engine.cluster.nodes = {"gpu01": open_node()}


def put(host: SimulatedHost, path: str, text: str, **values) -> None:
    """Somebody else writes a file, later than anything that was done before."""
    host.now_s += 100
    host.files[path] = SimulatedFile(text, changed_at_s=host.now_s, **values)


def test_a_daemon_that_was_not_restarted_after_its_files_is_found_by_the_next_run(converge):
    host = converged(converge)
    put(host, "/etc/containerd/conf.d/50-site.toml", 'version = 3\nroot = "/data"\n')
    assert changes(converge(host, *ALL)) == ["restart containerd"]
    assert not converge(host, *ALL).planned


@pytest.mark.parametrize(
    ("written_after_s", "stale"),
    [(-1.0, False), (-0.1, False), (-0.005, True), (0.0, True), (0.1, True), (0.9, True)],
)
def test_a_file_written_in_the_second_of_the_start_is_not_missed(converge, written_after_s, stale):
    host = converged(converge)
    started = runtime(host).service.started_at_s
    runtime(host).binary_changed_at_s = started + written_after_s
    assert changes(converge(host, *ALL)) == (["restart containerd"] if stale else [])
    assert not converge(host, *ALL).planned


def test_a_daemon_that_does_not_start_at_boot_is_enabled(converge):
    host = converged(converge)
    runtime(host).service.enabled = False
    row = converge(host, *ALL)
    assert changes(row) == ["restart containerd"]
    assert runtime(host).service.enabled


def test_a_daemon_that_was_stopped_is_started(converge):
    host = converged(converge)
    runtime(host).service.active = False
    assert changes(converge(host, *ALL)) == ["start containerd"]


@pytest.mark.parametrize(
    ("break_it", "steps"),
    [
        (
            lambda host: put(host, containerd.DROP_IN, "version = 3\n"),
            "container_runtime | restart containerd",
        ),
        (
            lambda host: put(host, containerd.UNIT_DROP_IN, "[Service]\n"),
            "container_runtime | restart containerd",
        ),
        (
            lambda host: machine(host).packages.pop("nvidia-container-toolkit"),
            "container_runtime | install containerd and the NVIDIA container toolkit, "
            "container_runtime | restart containerd",
        ),
    ],
    ids=["drop-in", "unit", "package"],
)
def test_rtm_13_nothing_is_written_on_a_node_in_service_that_asks_for_a_restart(
    engine, converge, break_it, steps
):
    host = converged(converge)
    break_it(host)
    in_service(engine, host)
    row = converge(host, *ALL)
    assert host.changes == []
    assert row.problems == [
        f"node: want no disruptive step on a node in service, have {steps}; "
        "drain it and add the taint that closes it, or leave it as it is"
    ]


def test_a_mirror_that_is_no_longer_asked_for_is_taken_back_and_those_of_others_stay(converge):
    host = converged(converge)
    converge(host, *ALL, registry_mirrors={"docker.io": MIRROR, "ghcr.io": MIRROR})
    theirs = "/etc/containerd/certs.d/quay.io/hosts.toml"
    host.files[theirs] = SimulatedFile("server = 'https://quay.io'\n")
    row = converge(host, *ALL)
    assert changes(row) == ["take back the registry mirrors that are no longer asked for"]
    mirrors = {path for path in host.files if "/certs.d/" in path}
    assert mirrors == {theirs, "/etc/containerd/certs.d/docker.io/hosts.toml"}
    assert converge(host, *ALL).planned == []


def test_mirrors_are_changed_on_a_node_in_service_since_they_ask_for_no_restart(engine, converge):
    host = converged(converge)
    in_service(engine, host)
    row = converge(host, *ALL, registry_mirrors={"docker.io": MIRROR, "ghcr.io": MIRROR})
    assert changes(row) == ["point containerd at the registry mirrors"]
    assert MIRROR in host.files["/etc/containerd/certs.d/ghcr.io/hosts.toml"].text


def test_a_hosts_toml_of_others_is_neither_shown_nor_lost(converge, caplog):
    caplog.set_level(logging.DEBUG, "pyinfra")
    host = converged(converge)
    path = "/etc/containerd/certs.d/docker.io/hosts.toml"
    theirs = SimulatedFile('[host."https://m.test".header]\nX-Key = ["AKCp8-s3cr3t"]\n', "0600")
    host.files[path] = theirs
    row = converge(host, *ALL)
    assert changes(row) == ["point containerd at the registry mirrors"]
    assert host.files[f"{path}.disabled"] == theirs
    assert host.files[path].text.startswith(containerd.MARK)
    assert f"{path} of somebody else's, which is kept" in caplog.text
    assert "AKCp8-s3cr3t" not in caplog.text
    assert converge(host, *ALL).planned == []


MAIN_FILES = {
    "without the CRI, as Docker ships it": ('disabled_plugins = ["cri"]\n', 3),
    "version 4": ('version = 4\nroot = "/data"\n', 4),
    "imports of its own": ('version = 3\nimports = ["/etc/containerd/mine.toml"]\n', 3),
}


@pytest.mark.parametrize(("text", "version"), MAIN_FILES.values(), ids=MAIN_FILES)
def test_rtm_02_the_main_file_is_merged_and_the_drop_in_has_its_version(converge, text, version):
    host = bare()
    host.files[containerd.CONFIG] = SimulatedFile(text)
    assert converge(host, *ALL).state == "done"
    assert f"version = {version}\n" in host.files[containerd.DROP_IN].text
    assert not converge(host, *ALL).planned


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version = 2\n", "one where it is of version 2"),
        ('version = "3"\n', "one where it is of version 3"),
        ("= nonsense", "one where it is not TOML"),
        ("[plugins.cri]\nx = 1\n", "one where it has plugin tables but no version"),
    ],
)
def test_rtm_01_a_main_file_that_cannot_be_merged_is_left_alone(converge, text, problem):
    host = bare()
    host.files[containerd.CONFIG] = SimulatedFile(text)
    row = converge(host, *ALL)
    assert problem in row.problems[0]
    assert row.problems[0].endswith(
        "run `containerd config migrate` and put the result in /etc/containerd/config.toml"
    )
    assert host.changes == []
    assert host.files[containerd.CONFIG].text == text


def test_a_main_file_that_could_not_be_read_whole_is_not_taken_for_none(converge):
    host = converged(converge)
    answers = simulated_node.files

    def without_text(machine, command):
        """As ``Files`` prints a file that is larger than it reads."""
        found = answers(machine, command)
        return re.sub(rf"(## {containerd.CONFIG}\n.*\n.* )\d+\n.*\n", r"\g<1>65537\n", found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated_node, "files", without_text)
        row = converge(host, *ALL)
    assert "one where it is no text of a reasonable size" in row.problems[0]
    assert host.changes == []


def test_a_main_file_with_credentials_keeps_its_mode_and_is_not_shown(converge, caplog):
    caplog.set_level("DEBUG")
    host = bare()
    text = 'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nauth="hunter2"\n'
    host.files[containerd.CONFIG] = SimulatedFile(text, "0600")
    assert converge(host, *ALL).state == "done"
    assert host.files[containerd.CONFIG].mode == "0600"
    assert "hunter2" in host.files[containerd.CONFIG].text
    assert "hunter2" not in caplog.text


def test_rep_07_a_proxy_with_a_password_is_neither_shown_nor_readable(converge, caplog):
    caplog.set_level("DEBUG")
    host = bare()
    proxy = "http://user:p%40ss@proxy.test:3128"
    assert converge(host, *ALL, https_proxy=proxy).state == "done"
    file = host.files[containerd.UNIT_DROP_IN]
    assert 'Environment="HTTPS_PROXY=http://user:p%%40ss@proxy.test:3128"\n' in file.text
    assert file.mode == "0600"
    assert "p%40ss" not in caplog.text
    assert "p%%40ss" not in caplog.text
    assert not any("p%" in line for line in host.log)


OTHERS = {
    "RTM-09 default runtime": (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd]\n'
        'default_runtime_name = "runc"\n',
        "container runtime: want nvidia as the default runtime, have runc; ",
    ),
    "RTM-03 no type": (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.legacy.options]\n'
        'BinaryName = "/usr/bin/nvidia-container-runtime.legacy"\nSystemdCgroup = true\n',
        "container runtime: want a type for every runtime, have none for legacy; ",
    ),
    "RTM-07 cgroups": (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]\n'
        'runtime_type = "io.containerd.kata.v2"\n',
        "container runtime: want systemd cgroups for every runtime, have cgroupfs for kata; ",
    ),
    "RTM-02 higher version": (
        "version = 4\n",
        "container runtime: want a configuration that loads, have containerd: drop-in config "
        "version 4 higher than root config version 3; ",
    ),
    "RTM-05 no CRI": (
        'version = 3\ndisabled_plugins = ["io.containerd.cri.v1.images"]\n',
        "container runtime: want the CRI plugin, have it disabled; ",
    ),
    "RTM-14 no CDI": (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n',
        "container runtime: want CDI, have it disabled; ",
    ),
    "another runtime binary": (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]\n'
        'BinaryName = "/opt/nvidia"\n',
        "container runtime: want runtime nvidia to run /usr/bin/nvidia-container-runtime, "
        "have /opt/nvidia; ",
    ),
    "pause image": (
        'version = 3\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "pause:2"\n',
        "container runtime: want pause image registry.k8s.io/pause:3.10.2, have pause:2; ",
    ),
}


@pytest.mark.parametrize(("text", "problem"), OTHERS.values(), ids=OTHERS)
def test_what_another_drop_in_hides_is_refused_before_the_restart(converge, text, problem):
    host = converged(converge)
    put(host, "/etc/containerd/conf.d/99-zz.toml", text)
    row = converge(host, *ALL)
    assert row.state == "failed"
    assert (
        problem
        + (
            "another file hides ours: compare `containerd config dump` with the files in "
            "/etc/containerd/conf.d, which are read in the order of their names"
        )
        in row.problems[0].splitlines()
    )
    assert host.changes == []


def test_rtm_06_without_a_main_file_there_is_runc_too(converge):
    host = bare()
    machine(host).on_configured.pop("containerd.io")  # a package that brings no configuration
    assert converge(host, *ALL).state == "done"
    effective = parse_containerd(runtime(host).dump(host).splitlines())
    assert {"runc", "nvidia"} <= effective.runtimes.keys()
    assert effective.default_runtime in effective.runtimes


def test_rtm_09_a_main_file_that_another_tool_has_written_again_is_merged_again(converge):
    """As a dump of the configuration, put in place of the file: with itself among its imports."""
    host = converged(converge)
    put(
        host, containerd.CONFIG,
        'version = 3\nimports = ["/etc/containerd/config.toml"]\n'
        '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "runc"\n',
    )  # fmt: skip
    assert changes(converge(host, *ALL)) == [
        "let the drop-in directory count in containerd's configuration", "restart containerd",
    ]  # fmt: skip
    effective = parse_containerd(runtime(host).dump(host).splitlines())
    assert effective.default_runtime == "nvidia"
    assert not converge(host, *ALL).planned


def test_rtm_04_imports_that_somebody_took_out_come_back(converge):
    host = converged(converge)
    put(host, containerd.CONFIG, "version = 3\n")
    row = converge(host, *ALL)
    assert changes(row) == [
        "let the drop-in directory count in containerd's configuration", "restart containerd",
    ]  # fmt: skip
    assert not converge(host, *ALL).planned


def test_a_limit_that_another_unit_drop_in_sets_fails_with_where_to_look(converge):
    host = converged(converge)
    before = host.facts["ContainerdService"]
    host.facts["ContainerdService"] = lambda h: before(h).replace("infinity", "65536")
    row = converge(host, *ALL)
    assert row.problems == [
        "container_runtime: want running, at boot too, newer than its files, memlock unlimited, "
        "have a limit on locked memory after: restart containerd; read `journalctl -u containerd`, "
        "`containerd config dump` and `systemctl cat containerd`"
    ]


def test_rtm_14_a_specification_of_an_older_driver_is_written_anew(converge):
    host = converged(converge)
    state = runtime(host)
    assert state.cdi is not None
    state.cdi["containerEdits"]["mounts"] = [{"hostPath": "/usr/lib/libcuda.so.570.86.15"}]
    row = converge(host, *ALL)
    assert changes(row) == ["write the CDI specification"]
    assert not converge(host, *ALL).planned


def test_rtm_15_a_specification_of_older_mig_devices_is_written_anew(converge):
    host = converged(converge, **DIVIDED)
    for gpu in runtime(host).gpus:
        gpu.devices = [(profile, f"{uuid}-new") for profile, uuid in gpu.devices]
    assert changes(converge(host, *ALL, **DIVIDED)) == ["write the CDI specification"]


def test_a_specification_that_does_not_come_fails_with_where_to_look(converge):
    host = bare()
    machine(host).on_configured.pop("nvidia-container-toolkit-base")
    host.on("^systemctl restart nvidia-cdi-refresh", lambda h, m, s: True)
    row = converge(host, *ALL)
    assert row.problems == [
        "container_runtime: want 2 devices of driver 580.178.04, have 0 of them after: "
        "write the CDI specification; read `journalctl -u nvidia-cdi-refresh`"
    ]


def test_the_proof_is_made_again_after_what_it_proved_has_changed(converge):
    host = converged(converge)
    row = converge(host, *ALL, validation_image="registry.test/probe:2")
    assert changes(row) == ["run a container through the nvidia runtime"]
    assert runtime(host).proofs == 2


def test_a_container_that_does_not_run_leaves_no_proof(converge):
    host = bare()
    host.on("^ctr ", lambda h, m, s: (False, "no such device"))
    row = converge(host, *ALL)
    assert row.state == "failed"
    assert container_runtime.PROOF not in host.files
    assert "mig | declare the MIG layout" not in row.changes


def test_another_version_of_containerd_is_brought_to_the_one_that_is_asked(converge):
    host = converged(converge)
    machine(host).archive["containerd.io"].append("2.4.3-1~debian.13~trixie")
    row = converge(host, *ALL, containerd_version="2.4.3")
    assert row.state == "done"
    assert machine(host).packages["containerd.io"].version != CONTAINERD
    assert machine(host).packages["containerd.io"].held
    assert changes(row)[-1] == "run a container through the nvidia runtime"
    assert runtime(host).proofs == 2


# --- mig ---------------------------------------------------------------------------------------


def test_all_disabled_is_a_layout_too(converge):
    host = bare()
    row = converge(host, *ALL)
    assert row.state == "done"
    assert "mig | apply the MIG layout" not in row.changes
    assert host.files[mig.LAYOUT].text.splitlines()[1:] == ["0 off", "1 off"]


def test_a_custom_layout_is_made_largest_first(converge):
    layout = [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "3g.20gb": 1}},
        {"devices": [1], "mig-enabled": False},
    ]
    asked = {"mig_config": "mixed", "mig_layouts": {"mixed": layout}, "mig_strategy": "mixed"}
    host = bare()
    assert converge(host, *ALL, **asked).state == "done"
    assert host.files[mig.LAYOUT].text.splitlines()[1:] == ["0 on 3g.20gb,1g.5gb,1g.5gb", "1 off"]
    assert not converge(host, *ALL, **asked).planned


def test_mig_10_a_layout_is_not_changed_on_a_node_in_service(engine, converge):
    host = converged(converge)
    in_service(engine, host)
    row = converge(host, *ALL, **DIVIDED)
    assert host.changes == []
    assert row.problems == [
        "node: want no disruptive step on a node in service, have mig | apply the MIG layout; "
        "drain it and add the taint that closes it, or leave it as it is"
    ]


def test_the_layout_before_is_kept_for_who_wants_it_back(converge):
    host = converged(converge, **DIVIDED)
    converge(host, *ALL, mig_config="all-3g.20gb", mig_strategy="single")
    assert host.files[mig.PREVIOUS].text.splitlines() == [
        f"{gpu} on {','.join(['1g.5gb'] * 7)}" for gpu in (0, 1)
    ]


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        (
            [Gpu("Enabled", offers=("1g.6gb", "7g.40gb")), Gpu()],
            "mig: want GPU 0 with 1g.5gb, "
            "have NVIDIA A100-SXM4-40GB, which offers 1g.6gb, 7g.40gb; choose among these",
        ),
        (
            [Gpu(), Gpu("[N/A]")],
            "mig: want GPU 1 divided, have NVIDIA A100-SXM4-40GB, which has no MIG; "
            "set mig_config: all-disabled for this host",
        ),
        (
            [Gpu()],
            "mig: want a GPU of index 1, have GPU 0; "
            "correct gpu_count, or find out where the GPU is",
        ),
    ],
    ids=["MIG-03 profile", "no MIG", "MIG-06 index"],
)
def test_what_a_gpu_cannot_be_divided_into_is_refused_before_any_change(converge, gpus, problem):
    host = bare()
    runtime(host).gpus = gpus
    row = converge(host, *ALL, **DIVIDED)
    assert row.problems == [problem]
    assert host.changes == []


def test_mig_02_devices_that_were_not_made_fail_with_want_and_have(converge):
    host = bare()
    host.on("systemctl restart rackwright-mig", lambda h, m, s: True)
    row = converge(host, *ALL, **DIVIDED)
    assert row.problems == [
        "mig: want GPU 0: 7x 1g.5gb; GPU 1: 7x 1g.5gb, have GPU 0: off; GPU 1: off after: "
        "apply the MIG layout; read `journalctl -u rackwright-mig`; the layout before is in "
        "/var/lib/rackwright/mig-layout.previous"
    ]


def test_a_mode_that_is_pending_is_not_the_mode(converge):
    host = bare()
    runtime(host).gpus[0].pending = "Enabled"
    row = converge(host, *ALL)
    assert changes(row)[-1] == "apply the MIG layout"
    assert runtime(host).gpus[0].pending is None


def test_one_gpu_that_differs_is_named_alone(converge):
    host = converged(converge, **DIVIDED)
    runtime(host).gpus[1].devices.pop()
    row = converge(host, *ALL, audit=True, **DIVIDED)
    assert row.planned == ["mig | apply the MIG layout"]
    assert changes(converge(host, *ALL, **DIVIDED)) == ["apply the MIG layout"]


def test_a_new_unit_file_is_read_by_systemd_before_it_is_used(converge):
    host = converged(converge, **DIVIDED)
    put(host, mig.UNIT, "[Unit]\n# of an earlier release\n")
    runtime(host).daemon_reload(host)
    runtime(host).gpus[0].devices.pop()
    assert changes(converge(host, *ALL, **DIVIDED)) == [
        "install the boot unit", "apply the MIG layout",
    ]  # fmt: skip
    assert runtime(host).mig_unit.text == host.files[mig.UNIT].text


def test_rtm_13_a_unit_file_is_not_read_before_it_is_needed(converge):
    host = converged(converge, **DIVIDED)
    runtime(host).mig_unit.text = "older"
    assert converge(host, *ALL, **DIVIDED).planned == []
    runtime(host).gpus[0].devices.pop()
    assert changes(converge(host, *ALL, **DIVIDED)) == ["apply the MIG layout"]
    assert runtime(host).mig_unit.text == host.files[mig.UNIT].text


def test_mig_alone_without_a_driver_says_what_it_waits_for(converge):
    row = converge(bare(driver=False), preflight, mig)
    assert row.problems == [
        "mig: want the layout as declared, have nvidia-smi is not installed; "
        "waiting for the driver, which no step brings"
    ]


def test_drv_17_a_gpu_that_fell_off_the_bus_is_told_in_nvidias_words(converge):
    host = converged(converge)
    machine(host).lost_gpus = {"0001:42:00.0"}
    row = converge(host, preflight, mig)
    assert host.changes == []
    assert "Unable to determine the device handle for GPU1" in row.problems[0]
