"""Preflight: every refusal with its message, and nothing changed by any of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyinfra.api import FunctionCommand, StringCommand

from cluster import NodeState
from deploys.phases import container_runtime, mig, nvidia_driver, preflight
from facts.kubernetes import CA as CA_FILE
from facts.snapshot import MARK
from operations import lock
from operations.report import RUN
from operations.step import Step
from tests.support import machine as system
from tests.support.machine import KERNEL
from tests.support.runtime import (
    OTHER_CA,
    Engine,
    bare,
    disk_free,
    make_engine,
    open_node,
    runtime,
)
from tests.support.simulated_cluster import CA
from tests.support.simulated_node import SimulatedFile, SimulatedHost, Unreadable

# A phase of this name makes a run one that may close a node.
admission: Any = SimpleNamespace(__name__="deploys.phases.admission", plan=lambda spec, have: ())
ALL: tuple[ModuleType, ...] = (preflight, container_runtime, mig, admission)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    return make_engine(monkeypatch, tmp_path)


@dataclass
class Case:
    """Something that is wrong with a host, or with its cluster."""

    name: str
    break_it: Callable[[SimulatedHost, Engine], object]
    message: str
    unfit: bool = False
    """Whether users must not be on such a node."""
    of_the_node: bool = False
    """Whether it says itself what the API tells of the Node object."""
    asked: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)


OFFERED = "Package: linux-headers-of-another"


def nothing(host: SimulatedHost, engine: Engine) -> None:
    pass


def reading(fact: str, *changes: tuple[str, str]) -> Callable[[SimulatedHost, Engine], None]:
    """Replace words in what a reading prints."""

    def break_it(host: SimulatedHost, engine: Engine) -> None:
        before = host.facts[fact]

        def answer(h: SimulatedHost) -> str:
            text = before(h)
            for old, new in changes:
                assert old in text, f"{fact}: no {old!r} in {text!r}"
                text = text.replace(old, new)
            return text

        host.facts[fact] = answer

    return break_it


def prints(fact: str, text: str) -> Callable[[SimulatedHost, Engine], None]:
    def break_it(host: SimulatedHost, engine: Engine) -> None:
        host.facts[fact] = lambda h: text

    return break_it


def hangs(host: SimulatedHost) -> str:
    raise Unreadable(124)


def cluster(**values: object) -> Callable[[SimulatedHost, Engine], None]:
    def break_it(host: SimulatedHost, engine: Engine) -> None:
        for name, value in values.items():
            assert hasattr(engine.cluster, name)
            setattr(engine.cluster, name, value)

    return break_it


def joined(server: str, ca: str | None) -> Callable[[SimulatedHost, Engine], None]:
    def break_it(host: SimulatedHost, engine: Engine) -> None:
        host.values["joined"] = f"server: {server}"
        if ca:
            host.files[CA_FILE] = SimulatedFile(ca)

    return break_it


def both(
    *breaks: Callable[[SimulatedHost, Engine], object],
) -> Callable[[SimulatedHost, Engine], None]:
    def break_it(host: SimulatedHost, engine: Engine) -> None:
        for each in breaks:
            each(host, engine)

    return break_it


def narrow(address: str) -> Callable[[SimulatedHost, Engine], None]:
    links = f"{address}/current_link_width:8\n{address}/max_link_width:16\n## links"
    return reading("PciDevices", ("## links", links))


LISTED = "## query\n{query}\n## rc\n0\n## list\n{more}## instances\n## profiles\n## done"


def nvswitch(bus: str) -> str:
    values = {"vendor": "0x10de", "device": "0x1af1", "class": "0x068000", "numa_node": "0"}
    return "".join(f"0000:{bus}:00.0/{name}:{value}\n" for name, value in values.items())


CASES = [
    Case(
        "wrong system",
        prints("OsRelease", 'ID=rocky\nVERSION_ID="9.5"\nPRETTY_NAME="Rocky Linux 9.5"'),
        "system: want one of debian 12, debian 13, ubuntu 22.04, ubuntu 24.04, "
        "have Rocky Linux 9.5; install one of these, or leave the host out",
    ),
    Case(
        "wrong architecture",
        reading("Machine", ("x86_64", "aarch64")),
        "system: want x86_64, have aarch64; leave the host out",
    ),
    Case(
        "KAD-12 cgroup v1",
        reading("Machine", ("cgroup2fs", "tmpfs")),
        "system: want cgroup v2 for Kubernetes 1.36.3, have cgroup v1; "
        "boot with systemd.unified_cgroup_hierarchy=1",
    ),
    Case(
        "DRV-17, DPL-04 missing GPU",
        nothing,
        "hardware: want 2 GPUs of A100-SXM4-40GB, have 1; "
        "look for the GPU with lspci and in the BMC's log, or correct gpu_count and gpu_model",
        unfit=True, machine={"gpus": ["0001:41:00.0"]},
    ),
    Case(
        "DRV-13 another GPU than declared",
        reading("PciDevices", ("device:0x20b0", "device:0x2330")),
        "hardware: want 2 GPUs of A100-SXM4-40GB, have 0 and 2 of H100-SXM5-80GB; "
        "look for the GPU with lspci and in the BMC's log, or correct gpu_count and gpu_model",
    ),
    Case(
        "more GPUs than declared: a slip of the inventory",
        nothing,
        "hardware: want 1 GPUs of A100-SXM4-40GB, have 2; "
        "look for the GPU with lspci and in the BMC's log, or correct gpu_count and gpu_model",
        asked={"gpu_count": 1},
    ),
    Case(
        "another HCA than declared: a slip of the inventory",
        reading("PciDevices", ("device:0x101b", "device:0x1021")),
        "hardware: want 2 HCAs of ConnectX-6, have 0; "
        "look for the adapter with lspci and in the BMC's log, or correct hca_count",
    ),
    Case(
        "DRV-17 every HCA missing but one for storage",
        reading("PciDevices", ("device:0x101b", "device:0x1021")),
        "hardware: want 2 HCAs of ConnectX-6, have 0; "
        "look for the adapter with lspci and in the BMC's log, or correct hca_count",
        unfit=True, machine={"hcas": ["0001:51:00.0"]},
    ),
    Case(
        "DRV-09 NVSwitches, and nobody who installs Fabric Manager",
        reading("PciDevices", ("## links", f"{nvswitch('07')}{nvswitch('08')}## links")),
        "hardware: want GPUs that need no Fabric Manager, have 2 NVSwitches; NVSwitches are not "
        "supported yet: no Fabric Manager is installed, and without it no CUDA program starts; "
        "leave the host out",
    ),
    Case(
        "DRV-09 NVSwitches that cannot be seen",
        reading("PciDevices", ("device:0x20b0", "device:0x2901")),
        "hardware: want GPUs that need no Fabric Manager, have B200 with NVLink 5; NVSwitches are "
        "not supported yet: no Fabric Manager is installed, and without it no CUDA program starts; "
        "leave the host out",
        asked={"gpu_model": "B200"},
    ),
    Case(
        "missing HCA",
        nothing,
        "hardware: want 2 HCAs of ConnectX-6, have 1; "
        "look for the adapter with lspci and in the BMC's log, or correct hca_count",
        unfit=True, machine={"hcas": ["0001:51:00.0"]},
    ),
    Case(
        "narrow link of a GPU",
        narrow("0001:41:00.0"),
        "hardware: want 0001:41:00.0 at x16, have x8; reseat the card, or have the slot repaired",
        unfit=True,
    ),
    Case(
        "narrow link of an HCA",
        narrow("0001:52:00.0"),
        "hardware: want 0001:52:00.0 at x16, have x8; reseat the card, or have the slot repaired",
        unfit=True,
    ),
    Case(
        "DRV-17 Xid of a GPU that has fallen off the bus",
        prints(
            "Xids",
            "NVRM: Xid (PCI:0001:41:00): 13, pid=7, name=python, Graphics Exception\n"
            "NVRM: Xid (PCI:0001:41:00): 79, pid='<unknown>', GPU has fallen off the bus.\n## end",
        ),
        "hardware: want no fatal Xid of GPU 0001:41:00 since the boot, "
        "have Xid 79: pid='<unknown>', GPU has fallen off the bus.; "
        "reboot the host; if it comes again, have the GPU replaced",
        unfit=True,
    ),
    Case(
        "DRV-15 Xid of a firmware that does not answer",
        prints(
            "Xids",
            "NVRM: Xid (PCI:0001:41:00): 119, pid=7, name=nvidia-smi, Timeout after 6s of waiting "
            "for RPC response from GPU0 GSP!\n## end",
        ),
        "hardware: want no fatal Xid of GPU 0001:41:00 since the boot, have Xid 119: pid=7, "
        "name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!; "
        "reboot the host; if it comes again, have the GPU replaced",
        unfit=True,
    ),
    Case(
        "DRV-15 nvidia-smi that hangs",
        lambda host, engine: host.facts.update(Gpus=hangs),
        "reading Gpus: want it made, have unknown (timed out); read `dmesg` on the host: a card or "
        "its driver that hangs needs a reboot, or repair",
        unfit=True,
    ),
    Case(
        "DRV-17 a GPU of which nvidia-smi has no answer",
        prints("Gpus", LISTED.format(query="[Unknown Error], [Unknown Error]", more="")),
        "reading Gpus: want it made, have unknown (nvidia-smi: no answer of a GPU in '[Unknown "
        "Error], [Unknown Error]'); read `dmesg` on the host: a card or its driver that hangs "
        "needs a reboot, or repair",
        unfit=True,
    ),
    Case(
        "nvidia-smi that fails",
        prints("Gpus", "## query\n## rc\n14"),
        "reading Gpus: want it made, have unknown (nvidia-smi: exit code 14); read `dmesg` on the "
        "host: a card or its driver that hangs needs a reboot, or repair",
        unfit=True,
    ),
    Case(
        "nvidia-smi with words that nobody knows",
        prints("Gpus", LISTED.format(query="", more="Note: this is new\n")),
        "reading Gpus: want it made, have unknown (no GPU and no MIG device in 'Note: this is "
        "new'); run `pyinfra INVENTORY fact facts.mig.Gpus` to see why",
    ),
    Case(
        "an Xid of a form that nobody knows",
        prints("Xids", "NVRM: GPU0 Xid (bus 41): number 79\n## end"),
        "reading Xids: want it made, have unknown (no Xid in 'NVRM: GPU0 Xid (bus 41): number "
        "79'); run `pyinfra INVENTORY fact facts.xid.Xids` to see why",
    ),
    Case(
        "RDMA devices of one namespace each",
        reading("Infiniband", ("\nY\n", "\nN\n")),
        "infiniband: want RDMA devices shared between network namespaces, have exclusive ones; "
        "run `rdma system set netns shared`, and remove netns_mode=0 from /etc/modprobe.d",
    ),
    Case(
        "DRV-02 Secure Boot",
        reading("Machine", ("## secure boot\nabsent", "## secure boot\n 6 0 0 0 1")),
        "secure boot: want it off, or modules that are signed, have it on, and DKMS modules; "
        "turn it off in the firmware, or enrol a key with `mokutil --import` and confirm it on "
        "the console; signed modules are not supported yet",
    ),
    Case(
        "DRV-01 headers that nobody has any more",
        prints(
            "KernelHeaders",
            f"## missing\n{KERNEL}\n## offered\nPackage: linux-headers-amd64\n## end",
        ),
        f"kernel: want headers of {KERNEL}, "
        f"have none on the host, and no linux-headers-{KERNEL} in apt's indexes; "
        "install a kernel whose headers apt has, and boot it; or let apt know a repository that "
        "still has them",
    ),
    Case(
        "disk full",
        prints("DiskFree", disk_free({"/": 20480, "/boot": 500, "/var": 10239})),
        "disk: want 10240 MiB free on /var, have 10239 MiB; make room, or set disk_free_min_gib",
    ),
    Case(
        "not a byte free, all on one file system",
        prints("DiskFree", disk_free({"/": 0, "/boot": 0, "/var": 0})),
        "disk: want 10240 MiB free on / and /var, have 0 MiB; make room, or set disk_free_min_gib",
        unfit=True,
    ),
    Case(
        "/boot full",
        prints("DiskFree", disk_free({"/": 20480, "/boot": 255, "/var": 20480})),
        "disk: want 256 MiB free on /boot, have 255 MiB; make room",
    ),
    Case(
        "KAD-03 clock behind the API server's",
        cluster(ahead_s=400.0),
        "clock: want within 30 s of the API server's, have -400 s; "
        "set the host's clock and see that it is kept: chrony or timesyncd",
    ),
    Case(
        "KAD-03 clock that both others contradict",
        lambda host, engine: host.facts.update(Clock=lambda h: f"{time.time() - 7200:.3f}"),
        "clock: want within 30 s of the API server's, have -7200 s; "
        "set the host's clock and see that it is kept: chrony or timesyncd",
        unfit=True,
    ),
    Case(
        "KAD-03 clock between two others that do not agree",
        both(
            lambda host, engine: host.facts.update(Clock=lambda h: f"{time.time() - 7200:.3f}"),
            cluster(ahead_s=-14400.0),
        ),
        "clock: want within 30 s of the API server's, have +7200 s; "
        "set the host's clock and see that it is kept: chrony or timesyncd",
    ),
    Case(
        "KAD-03 clock to which the API server's certificate is of the future",
        both(
            lambda host, engine: host.facts.update(Clock=lambda h: f"{time.time() - 7200:.3f}"),
            prints("ApiServer", "connects\nrc 60\ncurl: (60) certificate is not yet valid"),
        ),
        "clock: want within 30 s of the API server's, have -7200 s; "
        "set the host's clock and see that it is kept: chrony or timesyncd",
        unfit=True,
    ),
    Case(
        "no machine-id",
        reading("Machine", ("4c1e", "uninitialized")),
        "identity: want a machine-id, have none; run systemd-machine-id-setup on the host",
    ),
    Case(
        "API server unreachable from the host",
        prints("ApiServer", "refused"),
        "kubernetes api: want 10.0.0.1:6443 reachable from the host, have no connection; "
        "look at the network and firewalls between them",
    ),
    Case(
        "API server unreachable from the host, and so from its kubelet",
        both(prints("ApiServer", "refused"), joined("https://10.0.0.1:6443", None)),
        "kubernetes api: want 10.0.0.1:6443 reachable from the host, have no connection; "
        "look at the network and firewalls between them",
        unfit=True,
    ),
    Case(
        "KAD-02 API server of another CA",
        prints("ApiServer", "connects\nrc 60\ncurl: (60) SSL certificate problem"),
        "kubernetes api: want 10.0.0.1:6443 to prove itself by the pinned CA, "
        "have curl: (60) SSL certificate problem; "
        "look at kube_api_server, and at the CA in kube_kubeconfig",
    ),
    Case(
        "API server silent from here",
        cluster(problem="kubernetes api: want https://10.0.0.1:6443, have no route; check that"),
        "kubernetes api: want https://10.0.0.1:6443, have no route; check that",
        of_the_node=True,
    ),
    Case(
        "API server with words of its own",
        cluster(problem="something else"),
        "kubernetes api: want an answer, have something else; "
        "look at kube_kubeconfig, and at the server",
        of_the_node=True,
    ),
    Case(
        "KAD-07 host of another cluster",
        joined("https://10.9.9.9:6443", OTHER_CA),
        "kubernetes: want a host of https://10.0.0.1:6443, or of no cluster, "
        "have one of https://10.9.9.9:6443 with another certificate authority; "
        "remove it from that cluster first: kubeadm reset",
    ),
    Case(
        "KAD-07 host of an earlier cluster at the same address",
        joined("https://10.0.0.1:6443", OTHER_CA),
        "kubernetes: want a host of https://10.0.0.1:6443, or of no cluster, "
        "have one of https://10.0.0.1:6443 with another certificate authority; "
        "remove it from that cluster first: kubeadm reset",
    ),
    Case(
        "host of another cluster that has left no CA",
        joined("https://10.9.9.9:6443", None),
        "kubernetes: want a host of https://10.0.0.1:6443, or of no cluster, "
        "have one of https://10.9.9.9:6443; remove it from that cluster first: kubeadm reset",
    ),
    Case(
        "DRV-19 GPU Operator in charge",
        cluster(operator="ClusterPolicy of the NVIDIA GPU Operator: cluster-policy"),
        "cluster: want no other manager of GPUs, "
        "have ClusterPolicy of the NVIDIA GPU Operator: cluster-policy; "
        "decide for one: remove it, or leave these hosts to it",
    ),
    Case(
        "KAD-08 kubelet newer than the control plane",
        cluster(version="1.36.1"),
        "kubernetes: want a control plane of 1.36.3 or a later patch, have 1.36.1; "
        "set kube_version to a 1.36 that is not newer",
    ),
    Case(
        "kubelet of an older minor",
        cluster(version="1.37.0-vendor.1"),
        "kubernetes: want a control plane of 1.36.3 or a later patch, have 1.37.0; "
        "set kube_version to a 1.37 that is not newer",
    ),
    Case(
        "containerd too old for Kubernetes",
        nothing,
        "container runtime: want containerd 2.2.0 or later for Kubernetes 1.36.3, have 2.1.4; "
        "set containerd_version",
        asked={"containerd_version": "2.1.4"},
    ),
    Case(
        "KAD-06 name taken by another machine",
        cluster(nodes={"gpu01": open_node(machine_id="ffff", unschedulable=True)}),
        "identity: want Node gpu01 to be this machine (machine-id 4c1e, UUID 2f6c), "
        "have that of another (machine-id ffff, UUID unknown); the address leads to another "
        "machine, or the name is taken: correct ssh_hostname or kube_node_name; if that machine "
        "is gone, `kubectl delete node gpu01`",
        of_the_node=True,
    ),
    Case(
        "missing rights",
        cluster(rights=["patch nodes/status", "create secrets in kube-system"]),
        "kubernetes: want the rights of docs/rbac.yaml, "
        "have no right to patch nodes/status, create secrets in kube-system; "
        "apply docs/rbac.yaml, see docs/cluster-access.md",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused_with_its_message_before_any_change(engine: Engine, case: Case) -> None:
    host = bare(driver=False, **case.machine)
    case.break_it(host, engine)
    row = engine.converge(host, preflight, **case.asked)
    assert row.state == "failed"
    assert row.problems == [case.message]
    assert host.changes == []
    assert engine.cluster.log == []


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.of_the_node], ids=lambda case: case.name
)
def test_an_open_node_is_closed_if_it_is_unfit_and_only_then(engine: Engine, case: Case) -> None:
    host = bare(**case.machine)
    engine.cluster.nodes = {"gpu01": open_node()}
    case.break_it(host, engine)
    row = engine.converge(host, preflight, admission, **case.asked)
    assert row.state == "failed"
    assert case.message in row.problems[0].splitlines()
    assert host.changes == []
    closing = ["taint rackwright.io/not-validated:NoSchedule", "condition False NotFit"]
    assert engine.cluster.log == (closing if case.unfit else [])
    said = engine.cluster.nodes["gpu01"].conditions["RackwrightValidated"]
    assert said.message == (case.message if case.unfit else "")


def old(node: NodeState) -> NodeState:
    """As it is after its machine was installed anew."""
    return replace(node, ready=False, machine_id="before", system_uuid="2F6C")


CLOSED = {"taints": [{"key": "rackwright.io/not-validated", "effect": "NoSchedule"}]}
TOO_FULL = "disk: want 10240 MiB free on /var, have 10239 MiB; make room, or set disk_free_min_gib"


def test_a_closed_node_says_why_it_stays_so(engine: Engine) -> None:
    host = bare()
    engine.cluster.nodes = {"gpu01": open_node(**CLOSED)}
    prints("DiskFree", disk_free({"/": 20480, "/boot": 500, "/var": 10239}))(host, engine)
    row = engine.converge(host, preflight, admission)
    assert (row.state, row.problems) == ("failed", [TOO_FULL])
    assert engine.cluster.log == ["condition False RunFailed"]
    assert engine.cluster.nodes["gpu01"].conditions["RackwrightValidated"].message == TOO_FULL


@pytest.mark.parametrize(
    ("node", "status"),
    [
        (open_node(**CLOSED), "False"),
        (open_node(), "Unknown"),
        (replace(open_node(), conditions={}), "False"),
    ],
    ids=["closed", "in service", "open, and never passed"],
)
def test_a_step_that_fails_is_told_on_the_node(
    engine: Engine, node: NodeState, status: str
) -> None:
    """Also on one in service: if it has passed, it was changed since."""
    host = bare()
    engine.cluster.nodes = {"gpu01": node}
    phase = SimpleNamespace(
        __name__="deploys.phases.thing",
        plan=lambda spec, have: iter(
            [Step("do it", "it done", "nothing", lambda: iter([StringCommand("do it")]))]
        ),
    )
    host.on("^do it$", lambda h, m, s: (False, "E: it cannot be done"))
    row = engine.converge(host, preflight, phase, admission)
    told = "thing: want it done, have it cannot be done; look at the host, then run again"
    assert (row.state, row.problems) == ("failed", [told])
    said = engine.cluster.nodes["gpu01"].conditions["RackwrightValidated"]
    assert (said.status, said.reason, said.message) == (status, "RunFailed", told)
    # Whoever holds the lock has the last word on the node, not we.
    before = list(engine.cluster.log)
    refused = FunctionCommand(lambda state, host: False, (), {})
    engine.monkeypatch.setattr(lock, "take", lambda: refused)
    assert engine.converge(host, preflight, phase, admission).state == "failed"
    assert engine.cluster.log == before


def test_drv_02_with_secure_boot_not_even_nouveau_is_touched(engine: Engine) -> None:
    host = bare(driver=False, modules={"nouveau": 2}, gpu_driver="nouveau")
    reading("Machine", ("## secure boot\nabsent", "## secure boot\n 6 0 0 0 1"))(host, engine)
    row = engine.converge(host, preflight, nvidia_driver)
    assert "nvidia_driver | reboot without nouveau" in row.planned
    assert row.problems[0].startswith("secure boot: want it off, or modules that are signed, have")
    assert host.changes == []


def test_a_fit_host_is_refused_nothing_and_costs_one_command(engine: Engine) -> None:
    host = bare(driver=False)
    row = engine.converge(host, preflight)
    assert (row.state, row.problems, row.planned) == ("done", [], [])
    assert len(host.log) == 1
    assert MARK in host.log[0]


def test_all_refusals_are_told_at_once_and_later_phases_do_not_hide_them(engine: Engine) -> None:
    # nvidia_driver takes a known system for granted, and admission an API that answers.
    host = bare(driver=False, gpus=["0001:41:00.0"])
    reading("OsRelease", ("ID=debian", "ID=arch"))(host, engine)
    prints("DiskFree", disk_free({"/": 1, "/boot": 500, "/var": 20480}))(host, engine)
    engine.cluster.problem = "kubernetes api: want an answer, have none"
    row = engine.converge(host, preflight, nvidia_driver, container_runtime, mig)
    components = [line.split(":")[0] for line in row.problems[0].splitlines()]
    assert components == ["system", "hardware", "disk", "kubernetes api"]
    assert host.changes == []


def test_an_api_that_does_not_answer_hides_no_refusal_though_a_step_is_disruptive(
    engine: Engine,
) -> None:
    host = bare()
    prints("DiskFree", disk_free({"/": 20480, "/boot": 1, "/var": 20480}))(host, engine)
    engine.cluster.problem = "kubernetes api: want an answer, have none; look at it"
    row = engine.converge(host, preflight, mig, mig_config="all-1g.5gb", mig_strategy="single")
    assert "mig | apply the MIG layout" in row.planned
    assert row.problems[0].splitlines() == [
        "disk: want 256 MiB free on /boot, have 1 MiB; make room",
        "kubernetes api: want an answer, have none; look at it",
    ]


def test_audit_closes_no_node(engine: Engine) -> None:
    host = bare(gpus=["0001:41:00.0"])
    engine.cluster.nodes = {"gpu01": open_node()}
    row = engine.converge(host, *ALL, audit=True)
    assert row.state == "failed"
    assert "want 2 GPUs" in row.problems[0]
    assert engine.cluster.log == []


@pytest.mark.parametrize(
    ("twin", "message"),
    [
        (
            {},
            "identity: want a machine-id of its own, have the same as gpu01; these are clones: on "
            "each run `rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup`, "
            "then reboot it",
        ),
        (
            {"4c1e": "5d2f"},
            "identity: want a product UUID of its own, have the same as gpu01; correct it in the "
            "firmware",
        ),
    ],
    ids=["machine-id", "product UUID"],
)  # fmt: skip
def test_clones_in_the_fleet_are_named(engine: Engine, twin, message) -> None:
    first, second = bare("gpu01", driver=False), bare("gpu02", driver=False)
    if twin:
        reading("Machine", *twin.items())(second, engine)
    else:
        reading("Machine", ("2f6c", "3a7d"))(second, engine)
    engine.converge([first, second], preflight)
    # Which of two hosts is read first is not ours to say; one is refused, the other is not.
    states = {name: RUN.rows[name] for name in ("gpu01", "gpu02")}
    (refused,) = [name for name, row in states.items() if row.state == "failed"]
    other = "gpu02" if refused == "gpu01" else "gpu01"
    assert states[refused].problems == [message.replace("gpu01", other)]
    assert states[other].state == "done"


def test_a_clone_of_a_node_of_an_earlier_run_is_named(engine: Engine) -> None:
    engine.cluster.twin_of = "gpu07"
    row = engine.converge(bare(driver=False), preflight)
    assert row.problems == [
        "identity: want a machine-id and a product UUID that no node has, have one that Node gpu07 "
        "has; the address leads to gpu07: correct ssh_hostname; or one is a clone of the other: "
        "give it an identity of its own; or it was called so: then `kubectl delete node gpu07`"
    ]


@pytest.mark.parametrize(
    ("node", "asked"),
    [({"gpu01": open_node()}, False), ({}, True), ({"gpu01": old(open_node())}, True)],
    ids=["its own", "none", "from before it was installed anew"],
)
def test_a_host_that_has_joined_is_compared_with_the_nodes_unless_its_own_is_there(
    engine: Engine, node, asked
) -> None:
    """An address that leads to another node, which is joined as well."""
    host = bare(driver=False)
    joined("https://10.0.0.1:6443", CA)(host, engine)
    engine.cluster.nodes, engine.cluster.twin_of = node, "gpu07"
    problems = engine.converge(host, preflight).problems
    assert any("one that Node gpu07 has" in problem for problem in problems) is asked


def test_kad_03_a_clock_like_the_api_servers_is_right_whatever_ours_says(engine: Engine) -> None:
    host = bare(driver=False)
    host.facts["Clock"] = lambda h: f"{time.time() + 400:.3f}"
    engine.cluster.ahead_s = 400.0
    assert engine.converge(host, preflight).state == "done"


def test_kad_03_without_the_api_server_the_clock_is_judged_by_ours(engine: Engine) -> None:
    host = bare(driver=False)
    prints("Clock", "1000.0")(host, engine)
    engine.cluster.problem = "kubernetes api: want an answer, have none"
    problems = engine.converge(host, preflight).problems[0].splitlines()
    assert problems[0].startswith("clock: want within 30 s of this machine's, have -")


@pytest.mark.parametrize(
    ("break_it", "asked"),
    [
        (joined("https://api.example.com:6443", CA), {}),
        (joined("https://10.0.0.1:6443", CA.replace("\n", "\r\n")), {}),
        (joined("https://10.0.0.1:6443", OTHER_CA + CA), {}),
        (joined("https://10.0.0.1:6443", None), {}),
        (cluster(version="1.36.9"), {}),
        (cluster(nodes={"gpu01": open_node()}), {}),
        (cluster(nodes={"gpu01": open_node(machine_id="ffff", ready="Unknown")}), {}),
        (prints("KernelHeaders", f"## missing\n{KERNEL}\n## end"), {}),
        (
            prints("KernelHeaders", f"## missing\n{KERNEL}\n## offered\n{OFFERED}\n## end"),
            {"debian_repository_url": "http://mirror.test/debian"},
        ),
        (
            prints(
                "KernelHeaders",
                f"## missing\n{KERNEL}\n## offered\nPackage: linux-headers-{KERNEL}\n## end",
            ),
            {},
        ),
        (prints("KernelHeaders", f"## missing\n6.1.0-9\n## offered\n{OFFERED}\n## end"), {}),
        (prints("Xids", "NVRM: Xid (PCI:0001:41:00): 13, pid=7, name=python\n## end"), {}),
        (reading("Machine", ("2f6c", "")), {}),
    ],
    ids=[
        "another address of the same cluster", "CA with other line ends", "CA being rotated",
        "joined before the CA was kept", "later patch of the control plane", "its own Node object",
        "the Node object of a machine that is gone",
        "apt was never updated", "the mirror is not set up yet", "headers can be had",
        "no headers for a kernel that is not going to run", "an Xid of an application",
        "no product UUID",
    ],
)  # fmt: skip
def test_not_refused(engine: Engine, break_it, asked) -> None:
    host = bare(driver=False)
    break_it(host, engine)
    assert engine.converge(host, preflight, **asked).problems == []


def test_rights_are_asked_for_once(engine: Engine) -> None:
    asked = []
    engine.cluster.missing_rights = lambda namespace: asked.append(namespace) or []  # type: ignore[method-assign,func-returns-value]
    host = bare()
    assert engine.converge(host, *ALL[:2]).state == "done"
    assert runtime(host).restarts
    assert len(asked) <= 2  # the plan that is shown, and the one under the lock


def test_hosts_without_gpus_and_hcas_are_asked_for_neither(engine: Engine) -> None:
    host = bare(driver=False, gpus=[], hcas=[])
    reading("Machine", ("## secure boot\nabsent", "## secure boot\n 6 0 0 0 1"))(host, engine)
    asked = {"gpu_count": 0, "gpu_model": None, "hca_count": 0, "hca_model": None}
    row = engine.converge(host, preflight, **asked, hca_rate_gbps=None)
    assert row.problems == []
    assert system.machine(host).gpus == []
