"""Phases kubernetes, device_plugins and admission, on simulated hosts in a simulated cluster."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pyinfra.api import FunctionCommand

from claims.pods import NotTested, judge, probes
from claims.resources import differences
from cluster import CLOSED_TAINT, PASSED, VALIDATED_CONDITION, Condition, ProbeResult, Taint
from cluster.manifests import NVIDIA_NODE_LABEL, RDMA_NODE_LABEL
from deploys.phases import admission, device_plugins, kubernetes
from facts import readings
from facts.mig import Gpus, MigDevice
from facts.snapshot import MARK
from operations import admission as opening
from operations import device_plugins as plugins
from operations import kubeadm, node
from operations.report import RUN, Row
from tests.support.machine import (
    DRIVER,
    RDMA_PACKAGES,
    Package,
    bare,
    machine,
    spec,
)
from tests.support.simulated_cluster import (
    CNI_MISSING,
    EMPTY,
    SimulatedCluster,
    closed,
    connect,
    pod,
)
from tests.support.simulated_node import (
    SimulatedFile,
    SimulatedHost,
    Unreadable,
    boot,
    failed,
    run,
)

ALL = (kubernetes, device_plugins, admission)
NVIDIA_FILE, RDMA_FILE = device_plugins.NVIDIA_PATH, device_plugins.RDMA_PATH
ASKED = Taint("nvidia.com/gpu", "present", "NoSchedule")
KUBERNETES = ("kubelet", "kubeadm", "cri-tools", "kubernetes-cni")
CONTAINERD = """\
## dump
version = 4
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = true
## rc
0
"""
CONTAINERD_SERVICE = """\
ActiveState=active
UnitFileState=enabled
ExecMainStartTimestamp=Mon 2026-11-30 17:16:40.250000 UTC
NeedDaemonReload=no
LimitMEMLOCK=infinity
## files
1000.000000000
## done
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimulatedCluster:
    found = SimulatedCluster()
    monkeypatch.setattr(node.Cluster, "connect", lambda kubeconfig: found)
    monkeypatch.setattr(RUN, "rows", {})
    monkeypatch.setattr(RUN, "folder", tmp_path)
    # What the phases before and the preflight read besides is theirs to test.
    answered = {"Files", *ready_for_kubernetes(SimulatedCluster()).facts}
    monkeypatch.setattr(
        readings, "READINGS", tuple(f for f in readings.READINGS if f.__name__ in answered)
    )
    # Taking it costs a second per step; tests/test_node.py has it for real.
    held = FunctionCommand(lambda state, host: True, (), {})
    monkeypatch.setattr(node.lock, "take", lambda: held)
    monkeypatch.setattr(node.lock, "held", lambda host: True)
    for module, name, seconds in (
        (kubeadm, "POLL_S", 0), (kubeadm, "REPAIR_AFTER_S", 0.01),
        (kubeadm, "READY_TIMEOUT_S", 0.6), (kubeadm, "GONE_TIMEOUT_S", 0.02),
        (plugins, "POLL_S", 0), (plugins, "REPAIR_AFTER_S", 0.01), (plugins, "TIMEOUT_S", 0.6),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
    return found


@pytest.fixture
def host(cluster: SimulatedCluster) -> SimulatedHost:
    return ready_for_kubernetes(cluster)


def ready_for_kubernetes(cluster: SimulatedCluster, name: str = "gpu01") -> SimulatedHost:
    """A host that the phases before have finished."""
    persistenced = {
        "ActiveState": "active", "UnitFileState": "enabled",
        "argv": "/usr/bin/nvidia-persistenced --persistence-mode",
    }  # fmt: skip
    loaded = dict.fromkeys(("ib_uverbs", "ib_umad", "rdma_ucm", "br_netfilter"), 0)
    found = bare(
        name, loaded=DRIVER, library=DRIVER, persistenced=persistenced, persistence_mode=True,
        modules=loaded, packages={name: Package("50.0-1") for name in RDMA_PACKAGES},
    )  # fmt: skip
    found.facts |= {
        "Xids": lambda h: "## end",
        "Containerd": lambda h: CONTAINERD,
        "ContainerdService": lambda h: CONTAINERD_SERVICE,
    }
    return connect(cluster, found)


@pytest.fixture
def converge(monkeypatch: pytest.MonkeyPatch, cluster: SimulatedCluster):
    def go(*hosts: SimulatedHost, phases: tuple[ModuleType, ...] = ALL, **changes: Any) -> Row:
        specs = {host.name: spec(kube_node_name=host.name, **changes) for host in hosts}
        monkeypatch.setattr(node, "specs", lambda: specs)
        state = run(list(hosts), {}, lambda: node.converge(name="Converge", phases=list(phases)))
        # The exit code: a host that failed, or was kept closed, has failed for pyinfra too.
        bad = {name for name, row in RUN.rows.items() if row.state in ("failed", "closed")}
        assert failed(state) == bad
        return RUN.rows[hosts[0].name]

    return go


@pytest.fixture
def open_host(host: SimulatedHost, cluster: SimulatedCluster, converge) -> SimulatedHost:
    """A host that has been through it all."""
    row = converge(host)
    assert (row.state, row.problems) == ("open", [])
    for log in (host.log, host.stdin, cluster.log, cluster.probe_runs, cluster.closed_at_start):
        log.clear()
    return host


def changes(row: Row) -> list[str]:
    return [change.split(" | ")[1] for change in row.changes]


def condition(cluster: SimulatedCluster, name: str = "gpu01") -> Condition:
    return cluster.nodes[name].conditions[VALIDATED_CONDITION]


# --- all three --------------------------------------------------------------------------------


def test_fresh_host_joins_offers_and_is_opened(host, cluster, converge):
    row = converge(host)
    assert (row.state, row.problems) == ("open", [])
    assert changes(row) == [
        "add the kubernetes repository", "install kubelet and kubeadm", "join the cluster",
        "write the NVIDIA device plugin's file", "write the RDMA device plugin's file",
        "label the node for its device plugins", "apply the device plugins",
        "validate the node and open it",
    ]  # fmt: skip
    assert row.offers == {"nvidia.com/gpu": "2", "rdma/hca_shared": "63"}
    assert cluster.nodes["gpu01"].taints == (ASKED,)
    # The word first, the taint last: users come only to a node that says that it has passed.
    assert cluster.log[-3:] == [
        "condition True Validated", f"annotate ['{PASSED}']", f"untaint {CLOSED_TAINT.key}",
    ]  # fmt: skip
    assert cluster.probe_runs == [True]
    assert all(machine(host).packages[name].held for name in KUBERNETES)


def test_converged_host_costs_one_command_and_changes_nothing(open_host, cluster, converge):
    row = converge(open_host)
    assert (row.state, row.planned) == ("open", [])
    assert len(open_host.log) == 1
    assert MARK in open_host.log[0]
    assert cluster.log == []


def test_the_first_plan_names_what_is_to_come(host, converge):
    row = converge(host, audit=True)
    assert row.state == "audited"
    assert {
        "kubernetes | wait for the node to be Ready",
        "device_plugins | wait for the device plugins",
        "admission | validate the node and open it",
    } <= set(row.planned)  # fmt: skip


def test_a_run_that_dies_anywhere_is_finished_by_the_next(cluster, converge):
    """Cut after 0, 1, 2, ... commands and calls that change something, until none is left."""
    for after in range(100):
        cluster.__init__()
        host = ready_for_kubernetes(cluster)
        host.cut_after = after
        first = converge(host)
        dead = first.state != "open"
        there = cluster.nodes.get("gpu01")
        if dead and there is not None:
            assert closed(there), f"open without having passed, after {after}"
        left_over = dict(cluster.tokens)
        host.cut_after = None
        row = converge(host)
        assert (row.state, row.problems) == ("open", []), after
        assert cluster.tokens == {}, (after, left_over)
        assert not [p for p in cluster.pods if p.name.startswith("probe-")], after
        assert kubeadm.JOIN_FILE not in host.files, after
        assert converge(host).planned == [], after
        if not dead:
            break
    else:
        pytest.fail("never reached the end")
    assert after >= 20


@pytest.mark.parametrize(
    ("phase", "fact"),
    [
        *((kubernetes, name) for name in ("Kubelet", "Packages", "Files", "AptSources")),
        *((device_plugins, name) for name in ("Kubelet", "Files", "Infiniband", "PciDevices")),
    ],
)
def test_unreadable_is_not_absent(host, cluster, converge, phase, fact):
    answer(host, fact, Unreadable(124))
    row = converge(host, phases=(phase,))
    assert row.state == "failed"
    assert host.changes == cluster.log == []
    assert fact in row.problems[0]
    assert "timed out" in row.problems[0]


@pytest.mark.parametrize(
    "fact",
    ["Kubelet", "Machine", "PciDevices", "Xids", "Swap", "Infiniband", "NvidiaDriver",
     "NvidiaPersistenced", "Gpus", "Containerd", "ContainerdService"],
)  # fmt: skip
def test_a_claim_that_cannot_be_judged_does_not_hold(open_host, cluster, converge, fact):
    answer(open_host, fact, Unreadable(3))
    row = converge(open_host, phases=(admission,))
    assert any(fact in problem for problem in row.problems)
    if fact != "Kubelet":  # without it, not even the node's own name would be sure
        assert closed(cluster.nodes["gpu01"])
        assert fact in condition(cluster).message


def answer(host: SimulatedHost, fact: str, error: Exception) -> None:
    def unreadable(h: SimulatedHost) -> str:
        raise error

    host.facts[fact] = unreadable


@pytest.mark.parametrize(
    ("phase", "method"),
    [(kubernetes, "ca_hash"), (kubernetes, "join_token"), (device_plugins, "apply"),
     (device_plugins, "differs"), (admission, "probes"), (admission, "untaint")],
)  # fmt: skip
def test_an_api_that_refuses_fails_its_host_in_the_apis_words(
    host, cluster, converge, phase, method
):
    if phase is not kubernetes:
        converge(host, phases=(kubernetes,))
    if phase is admission:
        converge(host, phases=(kubernetes, device_plugins))
    cluster.fails = {method}
    row = converge(host, phases=ALL[: ALL.index(phase) + 1])
    assert row.state == "failed"
    assert row.problems == [f"kubernetes api: want {method}, have 503; look at the API server"]
    there = cluster.nodes.get("gpu01")
    assert there is None or closed(there)
    cluster.fails = set()
    assert converge(host).state == "open"


def test_two_nodes_share_the_daemonsets_and_keep_their_pods(cluster, converge):
    first, second = ready_for_kubernetes(cluster), ready_for_kubernetes(cluster, "gpu02")
    converge(first, second)
    assert {row.state for row in RUN.rows.values()} == {"open"}
    assert sorted(line for line in cluster.log if line.startswith("apply")) == [
        "apply nvidia-device-plugin", "apply rdma-shared-device-plugin",
    ]  # fmt: skip
    late = plugins.apply(cluster, [*cluster.applied.values()])  # planned before the others' was
    before = list(cluster.log)
    assert late.function(state=None, host=None)
    assert cluster.log == before
    theirs = [p.uid for p in cluster.pods if p.node == "gpu02"]
    machine(first).hcas = machine(first).hcas[:1]
    converge(first, second, hca_count=1, phases=(device_plugins,))
    assert "delete rdma-shared-device-plugin" not in cluster.log  # the same model: the same file
    first.files[RDMA_FILE].text += " "
    converge(first, second, phases=(device_plugins,))
    assert "restart the device plugins of this node" in changes(RUN.rows["gpu01"])
    assert RUN.rows["gpu02"].changes == []
    assert [p.uid for p in cluster.pods if p.node == "gpu02"] == theirs


# --- kubernetes -------------------------------------------------------------------------------


def test_pyi_10_no_token_in_a_command_line_a_log_or_the_result(
    host, cluster, converge, caplog, tmp_path, capsys
):
    cluster.join_fails = "error execution phase kubelet-start: token"
    converge(host)
    cluster.join_fails = ""
    assert converge(host).state == "open"
    (tmp_path / "result").write_text(json.dumps([vars(row) for row in RUN.rows.values()]))
    shown = "\n".join(
        [*host.log, *cluster.log, caplog.text, (tmp_path / "result").read_text(),
         *capsys.readouterr(), *(file.text for file in host.files.values())]
    )  # fmt: skip
    assert len(cluster.minted) == 2
    for token in cluster.minted:
        assert token not in shown
        assert token.partition(".")[2] not in shown
    assert cluster.tokens == {}


REFUSED = {
    "KAD-01 token": (
        'error: couldn\'t validate the identity of the API Server: token id "abcdef" is invalid '
        "for this cluster or it has expired",
        "run again, which makes a new token",
    ),
    "KAD-01 token that the cluster has not signed": (
        'error: could not find a JWS signature in the cluster-info ConfigMap for token ID "abcdef"',
        "run again, which makes a new token",
    ),
    "KAD-02 address": (
        "error: x509: certificate is valid for 10.96.0.1, 10.0.2.15, not 10.0.0.1",
        "compare the host's clock, kube_api_server, and the CA in kube_kubeconfig",
    ),
    "KAD-02 CA": (
        "error: cluster CA found in cluster-info ConfigMap is invalid: none of the public keys "
        '"sha256:ab" are pinned',
        "compare the host's clock, kube_api_server, and the CA in kube_kubeconfig",
    ),
    "KAD-04 bridge": (
        "[ERROR FileContent--proc-sys-net-bridge-bridge-nf-call-iptables]: "
        "/proc/sys/net/bridge/bridge-nf-call-iptables does not exist",
        "run `sysctl --system` on the host",
    ),
    "KAD-05 CRI": (
        "[ERROR CRI]: could not connect to the container runtime: failed to create new CRI runtime "
        'service: validate service connection: validate CRI v1 runtime API for endpoint "unix:///r'
        'un/containerd/containerd.sock": rpc error: unknown service runtime.v1.RuntimeService',
        "read `ctr plugins ls` and `journalctl -u containerd` on the host",
    ),
    "KAD-07 port": (
        "[ERROR Port-10250]: Port 10250 is in use",
        "look what holds it with `ss -ltnp` on the host",
    ),
    "KAD-07 file": (
        "[ERROR FileAvailable--etc-kubernetes-kubelet.conf]: /etc/kubernetes/kubelet.conf already "
        "exists",
        "run `kubeadm reset -f` on the host",
    ),
    "KAD-08 version": (
        "[ERROR KubeletVersion]: the kubelet version is higher than the control plane version.",
        "set kube_version to one that is not newer than the control plane",
    ),
    "KAD-09 program": (
        "[ERROR FileExisting-conntrack]: conntrack not found in system path",
        "install that program on the host",
    ),
    "KAD-12 cgroups": (
        "[ERROR SystemVerification]: cgroups v1 support was deprecated and will be removed",
        "boot the host with cgroup v2, or another kernel",
    ),
    "something else": ("error: the moon is full", "mend that, then run again"),
}


@pytest.mark.parametrize(("said", "remedy"), REFUSED.values(), ids=REFUSED)
def test_why_kubeadm_has_not_joined_is_told_with_what_to_do(host, cluster, converge, said, remedy):
    """kubeadm is never told to ignore it, and is not asked again with the same token."""
    cluster.join_fails = f"[preflight] ok\n\t{said}\n[preflight] x"
    (problem,) = converge(host, phases=(kubernetes,)).problems
    assert problem.startswith(f"kubernetes: want the host joined, have {said}")
    assert f"; {remedy}" in problem
    (joined,) = [line for line in host.log if "kubeadm join" in line]
    assert "--ignore-preflight-errors" not in joined
    assert cluster.tokens == {}


def test_kad_07_half_a_join_is_undone(host, cluster, converge):
    cluster.join_fails = "error: something"
    assert converge(host).state == "failed"
    assert cluster.tokens == {}
    cluster.join_fails = ""
    row = converge(host)
    assert row.state == "open"
    assert changes(row)[:2] == ["undo the join that was cut off", "join the cluster"]


def test_kad_09_what_the_joins_own_checks_look_for_is_installed_before_it(host, converge):
    assert converge(host, phases=(kubernetes,)).state == "done"
    installed = machine(host).packages
    assert {"conntrack", "socat", "iptables", "ethtool"} <= installed.keys()
    commands = [n for n, line in enumerate(host.log) if " conntrack " in line]
    assert commands[0] < next(n for n, line in enumerate(host.log) if "kubeadm join" in line)


def test_kad_10_the_container_runtime_is_always_named():
    config = yaml.safe_load(kubeadm.join_configuration(spec(), "abcdef.0", "sha256:0"))
    assert config["nodeRegistration"]["criSocket"] == "unix:///run/containerd/containerd.sock"


def test_a_node_object_that_is_there_already_is_closed_before_its_kubelet_starts(
    host, cluster, converge
):
    own = Taint("team", "blue", "NoSchedule")
    passed = {VALIDATED_CONDITION: Condition("True", "Validated", "", "")}
    cluster.nodes["gpu01"] = replace(EMPTY, name="gpu01", taints=(own,), conditions=passed)
    row = converge(host, phases=(kubernetes,))
    assert row.state == "done"
    assert cluster.closed_at_start == [True]
    assert set(cluster.nodes["gpu01"].taints) == {own, CLOSED_TAINT, ASKED}
    assert converge(host).state == "open"
    assert cluster.probe_runs == [True]


def test_undoing_half_a_join_leaves_joined_hosts_and_control_planes_alone(tmp_path):
    """The command itself, by a real shell, with kubeadm played by echo."""
    root = tmp_path / "host"
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    (root / "run").mkdir()
    script = kubeadm.reset().get_raw_value().replace("kubeadm reset", "echo reset")
    for path in ("/etc/kubernetes", "/var/lib/etcd", "/run/rackwright"):
        script = script.replace(path, f"{root}{path}")

    def undo() -> tuple[int, str]:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        return done.returncode, done.stdout

    assert undo() == (0, f"reset -f --cri-socket {kubeadm.CRI_SOCKET}\n")
    (root / "etc/kubernetes/manifests/etcd.yaml").touch()
    assert undo() == (1, "")
    (root / "etc/kubernetes/kubelet.conf").touch()  # the join that was waited for has ended well
    assert undo() == (0, "")


def test_kad_06_a_name_that_is_ready_is_waited_for_and_then_named(host, cluster, converge):
    cluster.nodes["gpu01"] = replace(EMPTY, name="gpu01", ready=True)
    row = converge(host)
    assert "want Node gpu01 given up before this host joins under its name" in row.problems[0]
    assert cluster.minted == []
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], ready=False)
    assert converge(host).state == "open"


def test_joined_but_not_ready_is_repaired_by_one_restart_of_the_kubelet(host, cluster, converge):
    cluster.csinode_fails = True
    row = converge(host)
    assert row.state == "open"
    assert "wait for the node to be Ready" in changes(row)
    assert sum("restart kubelet" in line for line in host.log) == 1


def test_a_kubelet_that_has_just_joined_is_given_time_to_make_its_node(
    host, cluster, converge, monkeypatch
):
    monkeypatch.setattr(kubeadm, "REPAIR_AFTER_S", 10)
    cluster.late = 3
    assert converge(host).state == "open"
    assert not any("restart kubelet" in line for line in host.log)


def test_a_join_whose_run_was_killed_is_waited_for_without_a_restart(
    host, cluster, converge, monkeypatch
):
    monkeypatch.setattr(kubeadm, "REPAIR_AFTER_S", 10)
    for after in range(20):
        host.cut_after = after
        converge(host, phases=(kubernetes,))
        if host.values["kubelet"].joins:
            break
    assert "kubeadm join" in host.log[-1]
    host.cut_after, cluster.late = None, 3
    assert converge(host).state == "open"
    assert not any("restart kubelet" in line for line in host.log)


def test_a_token_that_outlived_its_run_is_gone_before_the_node_is_ready(host, cluster, converge):
    cluster.csinode_fails = True
    for after in range(20):
        host.cut_after = after
        converge(host, phases=(kubernetes,))
        if "kubeadm join" in host.log[-1] and cluster.tokens:
            break
    host.cut_after = None
    assert cluster.tokens
    assert converge(host, phases=(kubernetes,)).state == "done"
    assert cluster.tokens == {}


def test_a_kubelet_that_stays_not_ready_is_told_with_its_own_errors(host, cluster, converge):
    cluster.stuck = "PLEG is not healthy"
    row = converge(host)
    assert row.state == "failed"
    assert "have KubeletNotReady: PLEG is not healthy" in row.problems[0]
    assert "no luck" in row.problems[0]
    assert closed(cluster.nodes["gpu01"])


def test_a_missing_cni_is_named_and_no_kubelet_restarted_for_it(host, cluster, converge):
    cluster.cni_missing = True
    row = converge(host)
    assert CNI_MISSING in row.problems[0]
    assert "look at the cluster's CNI DaemonSet" in row.problems[0]
    assert not any("restart kubelet" in line for line in host.log)


def test_a_node_object_that_was_deleted_under_its_host_comes_back_closed(
    open_host, cluster, converge
):
    del cluster.nodes["gpu01"]
    open_host.now_s += 2 * kubeadm.REGISTERS_S
    row = converge(open_host)
    assert row.state == "open"
    assert open_host.log.count("systemctl restart kubelet.service") == 1
    assert cluster.closed_at_start == [True]
    assert cluster.probe_runs == [True]


def test_a_kubelet_that_was_stopped_is_started_and_enabled(open_host, cluster, converge):
    kubelet = open_host.values["kubelet"]
    kubelet.active = kubelet.enabled = False
    row = converge(open_host)
    assert (row.state, kubelet.active, kubelet.enabled) == ("open", True, True)


def test_a_word_from_before_the_boot_is_not_ready(open_host, cluster, converge):
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], boot_id="an earlier one")
    row = converge(open_host)
    assert row.state == "open"
    assert cluster.nodes["gpu01"].boot_id == "boot-1"


@pytest.mark.parametrize("left", ["ours", "kubeadm's"])
def test_a_file_with_a_token_that_a_killed_join_left_is_removed(open_host, converge, left):
    if left == "ours":
        open_host.files[kubeadm.JOIN_FILE] = SimulatedFile("token: x\n", "0600")
    open_host.values["kubelet"].bootstrapping = left != "ours"
    row = converge(open_host)
    assert changes(row) == ["remove what the join has left", "validate the node and open it"]
    assert kubeadm.JOIN_FILE not in open_host.files
    assert not open_host.values["kubelet"].bootstrapping


def test_a_kubelet_older_than_its_package_is_restarted(open_host, cluster, converge):
    """The package does not do it: a run that died after it would leave the old one for ever."""
    cluster.taint("gpu01", CLOSED_TAINT)
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], kubelet_version="v1.36.2")
    row = converge(open_host)
    assert row.state == "open"
    assert changes(row)[0] == "restart the kubelet into its version"


def test_a_kubelet_of_a_node_in_service_is_not_restarted(open_host, cluster, converge):
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], kubelet_version="v1.36.2")
    row = converge(open_host)
    assert open_host.changes == []
    assert "restart the kubelet into its version" in row.problems[0]


def test_labels_and_taints_that_drift_come_back_and_others_stay(open_host, cluster, converge):
    own = Taint("team", "blue", "NoExecute")
    state = cluster.nodes["gpu01"]
    labels = {"rack": "r02", "mine": "yes", NVIDIA_NODE_LABEL: "true"}
    cluster.nodes["gpu01"] = replace(
        state, labels=labels, taints=(own, replace(ASKED, value="other"))
    )
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert changes(row) == [
        "label the node", "taint the node as asked", "label the node for its device plugins",
        "validate the node and open it",
    ]  # fmt: skip
    assert cluster.nodes["gpu01"].labels == {**labels, "rack": "r01", RDMA_NODE_LABEL: "true"}
    assert set(cluster.nodes["gpu01"].taints) == {own, ASKED}
    assert converge(open_host, kube_labels={"rack": "r01"}).planned == []


def test_a_taint_that_evicts_is_not_put_on_a_node_in_service(open_host, cluster, converge):
    row = converge(open_host, kube_taints=["gone=now:NoExecute"])
    assert cluster.log == []
    assert "taint the node as asked" in row.problems[0]


def test_a_plugins_label_leaves_with_its_devices(open_host, cluster, converge):
    converge(open_host, phases=(device_plugins,), rdma_required=False)
    assert RDMA_NODE_LABEL not in cluster.nodes["gpu01"].labels
    assert NVIDIA_NODE_LABEL in cluster.nodes["gpu01"].labels


# --- device plugins ---------------------------------------------------------------------------


def test_a_plugin_that_does_not_start_is_told_with_its_pods_reason(host, cluster, converge):
    cluster.pod_waits = "ImagePullBackOff: not found"
    cluster.pod_warns = "Failed: no such host"
    row = converge(host)
    assert row.state == "failed"
    assert "nvidia.com/gpu none instead of 2" in row.problems[0]
    assert "nvidia-device-plugin" in row.problems[0]
    assert "ImagePullBackOff: not found, Failed: no such host; read its log" in row.problems[0]
    assert closed(cluster.nodes["gpu01"])


def test_dpl_05_a_plugin_that_runs_and_offers_nothing_is_restarted_once(host, cluster, converge):
    cluster.offers_nothing_until_restart = True
    assert converge(host).state == "open"
    assert cluster.log.count("delete nvidia-device-plugin") == 1


@pytest.mark.parametrize(
    ("resource", "plugin", "offered"),
    [
        ("nvidia.com/gpu", "nvidia-device-plugin", "1"),
        ("nvidia.com/gpu", "nvidia-device-plugin", "0"),
        ("rdma/hca_shared", "rdma-shared-device-plugin", "0"),
    ],
    ids=[
        "DPL-02 a GPU that was unhealthy once", "DPL-03 none since the kubelet's restart",
        "RDM-05 no share since the kubelet's restart",
    ],
)  # fmt: skip
def test_a_plugin_that_offers_less_than_there_is_is_restarted_once(
    open_host, cluster, converge, resource, plugin, offered
):
    """It looks at its devices when it starts, and some never again."""
    state = cluster.nodes["gpu01"]
    less = {**state.allocatable, resource: offered}
    cluster.nodes["gpu01"] = replace(state, allocatable=less)
    assert converge(open_host).state == "open"
    assert cluster.log.count(f"delete {plugin}") == 1
    assert cluster.nodes["gpu01"].allocatable == state.allocatable


def test_dpl_02_gpus_that_are_offered_though_the_driver_does_not_answer_are_closed(
    open_host, cluster, converge
):
    open_host.facts["Gpus"] = lambda h: (
        "## query\nFailed to initialize NVML: Unknown Error\n## rc\n255"
    )
    row = converge(open_host)
    assert "nvml: want an answer, have Failed to initialize NVML: Unknown Error" in row.problems[0]
    assert closed(cluster.nodes["gpu01"])


def test_a_plugin_that_never_offers_fails_after_one_restart(host, cluster, converge):
    host.values["gpus_offered"] = {"nvidia.com/gpu": "1"}
    row = converge(host)
    assert "nvidia.com/gpu 1 instead of 2" in row.problems[0]
    assert "the plugins run: read their logs" in row.problems[0]
    assert cluster.log.count("delete nvidia-device-plugin") == 1


def test_another_image_reaches_the_node_that_is_converged(open_host, cluster, converge):
    old = {p.uid for p in cluster.pods}
    row = converge(open_host, nvidia_device_plugin_image="nvcr.io/nvidia/k8s-device-plugin:v0.21.0")
    assert changes(row) == [
        "apply the device plugins", "restart the device plugins of this node",
        "validate the node and open it",
    ]  # fmt: skip
    assert len({p.uid for p in cluster.pods} - old) == 1


def test_a_pod_that_is_not_ready_counts_also_while_its_devices_are_still_listed(
    open_host, cluster, converge
):
    cluster.pods = [replace(p, ready=False) if "nvidia" in p.name else p for p in cluster.pods]
    row = converge(open_host)
    assert "not ready" in row.problems[0]
    cluster.pods = [p for p in cluster.pods if "nvidia" not in p.name]
    row = converge(open_host)
    assert "no pod of nvidia-device-plugin" in row.problems[0]
    assert "nvidia-device-plugin has no pod here: look at its DaemonSet's events" in row.problems[0]


def test_rdm_06_two_pods_of_one_plugin_are_a_fault(open_host, cluster, converge):
    twin = next(p for p in cluster.pods if "rdma" in p.name)
    cluster.pods.append(replace(twin, uid="twin", name="twin"))
    assert "2 pods of rdma-shared-device-plugin" in converge(open_host).problems[0]


def test_a_pod_of_somebodys_daemonset_with_the_usual_label_is_left_alone(
    open_host, cluster, converge
):
    theirs = pod(
        "theirs", "gpu01", namespace="team", owner_kind="DaemonSet", owner_name="nvdp",
        labels={"app.kubernetes.io/name": "nvidia-device-plugin"},
    )  # fmt: skip
    cluster.pods.append(theirs)
    assert converge(open_host).state == "open"
    assert theirs in cluster.pods


def test_rdm_04_a_thousand_shares_are_1k_in_the_apis_words(host, converge):
    row = converge(host, rdma_resource_max=1000)
    assert row.state == "open"
    assert row.offers["rdma/hca_shared"] == "1k"
    assert differences(
        spec(rdma_resource_max=999), {"nvidia.com/gpu": "2", "rdma/hca_shared": "1k"}
    )


def test_rdm_01_no_port_for_pods_is_told_and_writes_no_file(host, cluster, converge):
    machine(host).port.state = "1: DOWN"
    row = converge(host, phases=(kubernetes, device_plugins))
    assert "have no port that pods could use" in row.problems[0]
    assert RDMA_FILE not in host.files


# --- admission --------------------------------------------------------------------------------


def test_a_claim_that_fails_closes_an_open_node_with_the_reason_on_it(open_host, cluster, converge):
    machine(open_host).swaps = ["/dev/vda5"]
    row = converge(open_host)
    assert (row.state, row.phases["admission"]) == ("closed", "failed")
    assert row.problems == ["swap: want none, have /dev/vda5; run deploys/gpu_node.py"]
    assert closed(cluster.nodes["gpu01"])
    assert (condition(cluster).status, condition(cluster).message) == ("False", row.problems[0])
    assert cluster.probe_runs == []
    machine(open_host).swaps = []
    assert converge(open_host).state == "open"
    assert cluster.probe_runs == [True]


def test_what_did_not_pass_keeps_its_reason_while_something_else_is_changed(
    open_host, cluster, converge
):
    machine(open_host).swaps = ["/dev/vda5"]
    converge(open_host)
    row = converge(open_host, phases=(kubernetes,), kube_labels={"rack": "r01"})
    assert changes(row) == ["label the node"]
    assert condition(cluster).reason == "ValidationFailed"


@pytest.mark.parametrize(
    ("kind", "result", "log", "problem"),
    [
        ("gpu", {"phase": "Failed", "reason": "UnexpectedAdmissionError: x"}, None, "Error: x"),
        ("gpu", {}, ("GPU-1)", "GPU-1)\nGPU 1: A100 (UUID: GPU-2)"), "exactly one GPU, have 2"),
        ("bare", {}, ("## gpu-files", "## gpu-files\n/dev/nvidia0"), "no GPU in a pod that asked"),
        ("bare", {}, ("## rdma-files", "## rdma-files\n/dev/infiniband/uverbs0"), "no RDMA device"),
        ("rdma", {}, ("/dev/infiniband/rdma_cm\n", ""), "want /dev/infiniband/rdma_cm*"),
        ("rdma", {}, ("unlimited", "8192"), "have 8192 KiB"),
        ("bare", {}, ("## end", ""), "a whole log"),
        ("gpu", {}, ("GPU-1)", "GPU-7)"), "want a GPU that the host has, have GPU-7"),
        ("gpu", {"node": "gpu02"}, None, "want it to run on gpu01, have it on gpu02"),
        ("bare", {"node": "gpu02", "phase": "Failed"}, None, "want it to run on gpu01, have it on"),
    ],
)
def test_a_pod_that_sees_something_else_keeps_the_node_closed(
    host, cluster, converge, kind, result, log, problem
):
    converge(host, phases=(kubernetes, device_plugins))
    if log:
        cluster.pods.append(pod("x", "gpu01", labels={"rackwright.io/probe": kind}))
        cluster.probe_logs[kind] = cluster._result(cluster.pods.pop()).log.replace(*log)
    cluster.probe_results[kind] = result
    row = converge(host)
    assert row.state == "closed"
    assert problem in row.problems[0]
    assert problem in condition(cluster).message
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "ValidationFailed")
    assert closed(cluster.nodes["gpu01"])
    cluster.probe_logs, cluster.probe_results = {}, {}
    assert converge(host).state == "open"


NO_ROOM = {
    "phase": "Pending", "log": "", "scheduled": False,
    "reason": "Unschedulable: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu.",
}  # fmt: skip


def test_a_closed_node_without_room_stays_closed_and_says_who_is_in_the_way(
    host, cluster, converge
):
    converge(host, phases=(kubernetes, device_plugins))
    cluster.pods.append(pod("job", "gpu01", namespace="team", requests={"nvidia.com/gpu": "2"}))
    cluster.probe_results["gpu"] = NO_ROOM
    row = converge(host)
    assert row.state == "closed"
    assert row.problems == [
        "a pod with one nvidia.com/gpu: want room to run it, have Unschedulable: 0/2 nodes are "
        "available: 1 Insufficient nvidia.com/gpu.; end what is in its way (here: team/job), "
        "then run again"
    ]
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "NotTested")
    assert closed(cluster.nodes["gpu01"])


def test_a_node_full_of_users_pods_is_opened_again_and_says_what_was_not_tested(
    open_host, cluster, converge
):
    cluster.pods.append(pod("job", "gpu01", namespace="team", requests={"nvidia.com/gpu": "2"}))
    cluster.probe_results["gpu"] = NO_ROOM
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert row.state == "open"
    assert condition(cluster).status == "True"
    assert "2 pods and all claims passed; not tested: a pod with one nvidia.com/gpu" in (
        condition(cluster).message
    )


@pytest.mark.parametrize(
    ("kinds", "jobs"),
    [
        (["gpu"], {}),
        (["gpu"], {"rdma/hca_shared": "1"}),
        (["bare", "gpu"], {"nvidia.com/gpu": "2"}),
    ],
    ids=["nobody has them", "other devices", "and one that asks for none"],
)
def test_a_pod_without_room_that_no_user_explains_keeps_the_node_closed(
    open_host, cluster, converge, kinds, jobs
):
    """A scheduler that is down, a taint of the disk's."""
    cluster.pods.append(pod("job", "gpu01", namespace="team", requests=jobs))
    silent = {**NO_ROOM, "reason": "still Pending after 300 s"}
    cluster.probe_results = dict.fromkeys(kinds, silent)
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert (row.state, condition(cluster).reason) == ("closed", "NotTested")
    cluster.probe_results = {}
    assert converge(open_host, kube_labels={"rack": "r01"}).state == "open"


def test_an_api_that_hiccups_while_a_full_node_is_validated_again_keeps_nobody_out(
    open_host, cluster, converge
):
    cluster.pods.append(pod("job", "gpu01", namespace="team", requests={"nvidia.com/gpu": "2"}))
    cluster.probe_results["gpu"] = NO_ROOM
    cluster.fails = {"probes"}
    assert converge(open_host, kube_labels={"rack": "r01"}).state == "failed"
    assert closed(cluster.nodes["gpu01"])
    cluster.fails = set()
    assert converge(open_host, kube_labels={"rack": "r01"}).state == "open"


def test_a_pod_without_room_is_neither_pass_nor_fail():
    asked = probes(spec())
    with pytest.raises(NotTested, match="Insufficient"):
        list(judge(spec(), asked[1], ProbeResult(name="x", **NO_ROOM), GPUS))


GPUS = Gpus().process(machine(bare(loaded=DRIVER, library=DRIVER)).smi().splitlines())
LOST_LOG = {"log": None, "reason": "kubernetes api: want .../log, have 502 Bad Gateway; look"}


def test_a_pod_whose_log_is_lost_is_neither_pass_nor_fail(open_host, cluster, converge):
    """The way from the API server to the kubelet is at fault, and not the node."""
    cluster.probe_results["bare"] = LOST_LOG
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert (row.state, condition(cluster).status) == ("open", "True")
    assert "2 pods and all claims passed; not tested: a pod without devices: want its log" in (
        condition(cluster).message
    )


def test_a_node_that_never_passed_is_not_opened_without_the_log_of_a_pod(host, cluster, converge):
    cluster.probe_results["gpu"] = LOST_LOG
    row = converge(host)
    assert (row.state, condition(cluster).reason) == ("closed", "NotTested")
    assert row.problems == [
        "a pod with one nvidia.com/gpu: want its log, have kubernetes api: want .../log, have 502 "
        "Bad Gateway; look; look at the way from the API server to the kubelet's port"
    ]


HALF = {
    "mig_strategy": "mixed",
    "mig_config": "half",
    "mig_layouts": {
        "half": [
            {"devices": [0], "mig-enabled": False},
            {"devices": [1], "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "1g.5gb+me": 1}},
        ]
    },
}
LISTED = """\
## visible
## nvidia-smi
GPU 0: NVIDIA A100-SXM4-40GB (UUID: {gpu})
{mig}
## nvidia-smi-exit
0
## gpu-files
/dev/nvidia0
## rdma-files
## memlock
unlimited
## end
"""
MIG = "  MIG {}     Device  0: (UUID: {})"


def test_every_kind_of_device_of_a_mixed_node_is_tried():
    asked = probes(spec(**HALF))
    resources = ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me"]
    assert [probe.resource for probe in asked if probe.kind == "gpu"] == resources
    assert len({probe.manifest["metadata"]["name"] for probe in asked}) == len(asked)


@pytest.mark.parametrize(
    ("resource", "gpu", "device", "problem"),
    [
        ("gpu", "GPU-0", None, None),
        ("gpu", "GPU-1", None, "want a GPU that the host has, have GPU-1"),
        ("mig-1g.5gb", "GPU-1", ("1g.5gb", "MIG-1"), None),
        ("mig-1g.5gb.me", "GPU-1", ("1g.5gb+me", "MIG-3"), None),
        ("mig-1g.5gb", "GPU-1", None, "want exactly one MIG device, have 0"),
        (
            "mig-1g.5gb",
            "GPU-1",
            ("1g.5gb+me", "MIG-3"),
            "want a MIG device that the host has, of 1g.5gb, have MIG-3 of 1g.5gb+me",
        ),
        (
            "mig-1g.5gb",
            "GPU-1",
            ("1g.5gb", "MIG-9"),
            "want a MIG device that the host has, of 1g.5gb, have MIG-9 of 1g.5gb",
        ),
    ],
)
def test_a_pod_has_the_kind_of_device_that_it_asked_for_and_one_of_the_host(
    resource, gpu, device, problem
):
    devices = (
        MigDevice("1g.5gb", "MIG-1"), MigDevice("1g.5gb", "MIG-2"), MigDevice("1g.5gb+me", "MIG-3")
    )  # fmt: skip
    whole, divided = GPUS.gpus
    divided = replace(divided, mig_mode=True, mig_mode_pending=True, mig_devices=devices)
    asked = spec(**HALF)
    (probe,) = [each for each in probes(asked) if each.resource == f"nvidia.com/{resource}"]
    log = LISTED.format(gpu=gpu, mig=MIG.format(*device) if device else "")
    result = ProbeResult("x", "Succeeded", log, "", True, "gpu01")
    found = list(judge(asked, probe, result, replace(GPUS, gpus=(whole, divided))))
    assert [str(finding) for finding in found] == (
        [
            f"pod with nvidia.com/{resource}: {problem}; "
            "look at the device plugin's log and the CDI specification"
        ]
        if problem
        else []
    )


def test_an_open_node_that_was_changed_is_validated_again_and_closed_meanwhile(
    open_host, cluster, converge
):
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert changes(row) == ["label the node", "validate the node and open it"]
    assert cluster.log[:3] == [
        "condition Unknown Changing", "label ['rack']", f"taint {CLOSED_TAINT}",
    ]  # fmt: skip
    assert cluster.probe_runs == [True]
    assert row.state == "open"


def test_a_run_that_dies_while_an_open_node_is_validated_again(open_host, cluster, converge):
    labels = {f"rack{n}": "x" for n in range(20)}
    for after in range(2, 20):
        asked = dict([*labels.items()][: after - 1])
        open_host.cut_after = after
        dead = converge(open_host, kube_labels=asked).state != "open"
        # Until the first call of the validation it has only been changed, and says so.
        said = condition(cluster).status
        assert not dead or closed(cluster.nodes["gpu01"]) or (after, said) == (2, "Unknown")
        open_host.cut_after = None
        assert converge(open_host, kube_labels=asked).state == "open"
        if not dead:
            return
    pytest.fail("never reached the end")


def test_pods_of_a_killed_admission_are_deleted_and_those_of_a_validation_left_alone(
    open_host, cluster, converge
):
    labels = {"rackwright.io/probe": "gpu", "rackwright.io/node": "gpu01"}
    ours = pod("ours", "gpu01", labels={**labels, "rackwright.io/run": f"{opening.OURS}1f2e"})
    theirs = pod("theirs", "gpu01", labels={**labels, "rackwright.io/run": "1f2e3d4c"})
    cluster.pods += [ours, theirs]
    converge(open_host, kube_labels={"rack": "r01"})
    assert ours not in cluster.pods
    assert theirs in cluster.pods


def test_admission_alone_opens_no_node_without_the_taints_that_are_asked_for(
    open_host, cluster, converge
):
    """A Node object that was made anew by hand."""
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], taints=(CLOSED_TAINT,))
    row = converge(open_host, phases=(admission,), kube_taints=["team=a:NoSchedule"])
    assert row.state == "closed"
    assert row.problems == [
        "kubernetes: want the taint team=a:NoSchedule, have none; run deploys/gpu_node.py"
    ]
    assert converge(open_host, kube_taints=["team=a:NoSchedule"]).state == "open"


def test_a_node_of_another_machine_is_not_opened(open_host, cluster, converge):
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], machine_id="another")
    row = converge(open_host, phases=(admission,))
    assert "one with machine-id another" in row.problems[0]
    assert (row.state, cluster.log) == ("failed", [])  # nor is it closed: that is not ours to do


def test_admission_alone_on_a_host_that_has_not_joined(host, converge):
    row = converge(host, phases=(admission,))
    assert row.state == "failed"
    assert "waiting for the node to be Ready, which no step brings" in row.problems[0]


XID_79 = "NVRM: Xid (PCI:0001:42:00): 79, GPU has fallen off the bus."


def lost_gpu(host: SimulatedHost, cluster: SimulatedCluster) -> None:
    host.facts["Xids"] = lambda h: f"{XID_79}\n## end"


def booted(host: SimulatedHost, cluster: SimulatedCluster) -> None:
    boot(host)


def made_anew(host: SimulatedHost, cluster: SimulatedCluster) -> None:
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], uid="another")


def taken_over(host: SimulatedHost, cluster: SimulatedCluster) -> None:
    """Deleted; another machine has joined under its name."""
    cluster.nodes["gpu01"] = replace(
        EMPTY, name="gpu01", uid="theirs", machine_id="theirs", system_uuid="theirs", ready=True,
        taints=(CLOSED_TAINT,),
    )  # fmt: skip


def deleted(host: SimulatedHost, cluster: SimulatedCluster) -> None:
    del cluster.nodes["gpu01"]


@pytest.mark.parametrize(
    ("happens", "state", "problem"),
    [
        (lost_gpu, "closed", "have Xid 79"),
        (booted, "closed", "boot: want the one that the pods have run on, have a later one"),
        (made_anew, "closed", "node object: want the one that the pods have run on, have another"),
        (taken_over, "failed", "node object: want the one that the pods have run on, have another"),
        (deleted, "failed", "node object: want the one that the pods have run on, have none"),
    ],
)
def test_what_happens_while_the_pods_run_keeps_the_node_closed(
    open_host, cluster, converge, monkeypatch, happens, state, problem
):
    probing, after = cluster.probes, []

    def probe(*given):
        results = probing(*given)
        happens(open_host, cluster)
        after.append(dict(cluster.nodes))
        return results

    monkeypatch.setattr(cluster, "probes", probe)
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert row.state == state
    assert any(problem in told for told in row.problems)
    assert "condition True Validated" not in cluster.log
    assert f"untaint {CLOSED_TAINT.key}" not in cluster.log
    if state == "closed":
        assert closed(cluster.nodes["gpu01"])
        assert problem in condition(cluster).message
    else:  # not ours any more
        assert cluster.nodes == after[0]


@pytest.mark.parametrize("moment", [0, 1], ids=["before it is looked at again", "meanwhile"])
def test_a_run_that_lost_its_lock_while_the_pods_ran_writes_nothing_on_the_node(
    open_host, cluster, converge, monkeypatch, moment
):
    """The operator's laptop slept; another run has the host now, and changes it."""
    answers = [True] * moment
    monkeypatch.setattr(node.lock, "held", lambda host: bool(answers and answers.pop()))
    probing, after = cluster.probes, []

    def probe(*given):
        results = probing(*given)
        changing = Condition("False", "Changing", "a run is changing this node", "")
        state = replace(cluster.nodes["gpu01"], conditions={VALIDATED_CONDITION: changing})
        cluster.nodes["gpu01"] = state
        after.append(state)
        return results

    monkeypatch.setattr(cluster, "probes", probe)
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert (row.state, row.phases["admission"]) == ("failed", "failed")
    assert "held while the pods ran, have it lost" in row.problems[0]
    assert cluster.nodes["gpu01"] == after[0]


def test_a_node_that_cannot_be_looked_at_again_stays_closed(
    open_host, cluster, converge, monkeypatch
):
    probing = cluster.probes

    def probe(*given):
        results = probing(*given)
        open_host.sudo_says = "sudo: a password is required"
        return results

    monkeypatch.setattr(cluster, "probes", probe)
    row = converge(open_host, kube_labels={"rack": "r01"})
    assert "want it read, have a sudo that wants a password" in row.problems[0]
    assert closed(cluster.nodes["gpu01"])
    assert condition(cluster).reason == "RunFailed"


def test_audit_says_what_is_wrong_and_closes_nothing(open_host, cluster, converge):
    machine(open_host).swaps = ["/dev/vda5"]
    row = converge(open_host, audit=True)
    assert (row.state, row.planned) == ("audited", ["admission | close the node"])
    assert cluster.log == []


# --- the bridge of an earlier cluster's pod network -------------------------------------------


def bridge(address: str, *ports: str) -> str:
    lines = "".join(f"{port}\n" for port in ports)
    return (
        f"## addresses\n5: cni0    inet {address} brd 10.0.0.255 scope global cni0\\ valid_lft\n"
        f"## ports\n{lines}## done"
    )


def test_kad_11_the_bridge_of_an_earlier_cluster_is_gone_before_the_join(host, converge):
    host.values["bridge"] = bridge("10.244.9.1/24")
    row = converge(host)
    assert (row.state, row.problems) == ("open", [])
    steps = changes(row)
    assert steps.index("remove the pod bridge of an earlier cluster") == (
        steps.index("join the cluster") - 1
    )


def test_kad_11_the_network_of_an_earlier_cluster_is_set_aside_before_the_join(host, converge):
    kubelet = host.values["kubelet"]
    kubelet.cni = ["05-old.conflist", ".kubernetes-cni-keep", "10-older.conf", "x.disabled"]
    row = converge(host)
    assert (row.state, row.problems) == ("open", [])
    steps = changes(row)
    assert steps.index("set the pod network of an earlier cluster aside") < (
        steps.index("join the cluster")
    )
    assert kubelet.cni == [".kubernetes-cni-keep", "x.disabled"]


def test_kad_11_the_network_of_a_node_that_has_joined_is_left_alone(open_host, converge):
    open_host.values["kubelet"].cni = ["05-site.conflist", "10-other.conf"]
    assert converge(open_host).planned == []


def test_kad_11_a_join_over_the_old_bridge_is_mended_afterwards(open_host, cluster, converge):
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], pod_cidr="10.244.1.0/24")
    open_host.values["bridge"] = bridge("10.244.9.1/24")
    row = converge(open_host)
    assert (row.state, changes(row)[0]) == ("open", "remove the pod bridge of an earlier cluster")
    assert "bridge" not in open_host.values


@pytest.mark.parametrize(
    ("cidr", "have"),
    [
        ("10.244.1.0/24", bridge("10.244.1.1/24")),
        ("10.244.1.0/24", bridge("10.99.0.1/16", "veth1")),  # a plugin with addresses of its own
        ("", bridge("10.244.9.1/24")),  # not known what the node is given
    ],
)
def test_kad_11_a_bridge_that_works_is_left_alone(open_host, cluster, converge, cidr, have):
    cluster.nodes["gpu01"] = replace(cluster.nodes["gpu01"], pod_cidr=cidr)
    open_host.values["bridge"] = have
    assert converge(open_host).planned == []


def test_kad_11_pods_of_an_earlier_cluster_are_not_cut_off(host, converge):
    host.values["bridge"] = bridge("10.244.9.1/24", "veth1", "veth2")
    row = converge(host)
    assert row.changes == []
    assert row.problems == [
        "kubernetes: want a host on which no pod of an earlier cluster runs, have 2 attached to "
        "cni0; run `kubeadm reset -f` on the host, and look what runs there with `crictl pods`"
    ]
