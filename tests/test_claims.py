"""Claims: a healthy host has none of the findings, and each fault has exactly its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyinfra.api import FactBase

from claims import CLAIMS, check
from facts.containerd import (
    Containerd,
    ContainerdService,
    ContainerdServiceState,
    ContainerdState,
    RuntimeState,
)
from facts.infiniband import Infiniband, InfinibandState
from facts.mig import Gpus, GpusState, MigDevice
from facts.nvidia import NvidiaDriver, NvidiaPersistenced
from facts.os import Machine
from facts.pci import PciDevices
from facts.snapshot import Readings
from facts.system import Swap
from facts.xid import Xid, Xids, XidsState
from tests.support.machine import DRIVER, machine
from tests.support.runtime import bare, open_node, spec

RUNC = "io.containerd.runc.v2"


def healthy() -> dict[type[FactBase[Any]], Any]:
    """What is read of a host that is as asked."""
    host = bare()
    machine(host).modules = {"ib_uverbs": 0, "ib_umad": 0, "rdma_ucm": 0}
    machine(host).persistenced = {
        "ActiveState": "active", "UnitFileState": "enabled",
        "argv": "/usr/bin/nvidia-persistenced --persistence-mode",
    }  # fmt: skip
    asked = (
        Xids, PciDevices, Infiniband, NvidiaDriver, NvidiaPersistenced, Gpus, Swap, Machine,
    )  # fmt: skip
    values: dict[type[FactBase[Any]], Any] = {
        fact: fact().process(host.facts[fact.__name__](host).splitlines()) for fact in asked
    }
    values[Containerd] = ContainerdState(
        installed=True, problem=None, config_version=3, cri_enabled=True, default_runtime="nvidia",
        runtimes={
            "nvidia": RuntimeState(RUNC, "/usr/bin/nvidia-container-runtime", True),
            "runc": RuntimeState(RUNC, "", True),
        },
        sandbox_image="registry.k8s.io/pause:3.10.2",
        registry_config_path="/etc/containerd/certs.d", cni_bin_dirs=("/opt/cni/bin",),
        cdi_enabled=True,
    )  # fmt: skip
    values[ContainerdService] = ContainerdServiceState(
        active=True, enabled=True, started_at_s=1000.5, needs_reload=False,
        memlock_unlimited=True, configured_at_s=1000.0,
    )  # fmt: skip
    return values


def found(
    values: dict[type[FactBase[Any]], Any], names: tuple[str, ...] = (), **asked: Any
) -> list[str]:
    readings = Readings({fact.__name__: value for fact, value in values.items()}, {})
    claims = names or tuple(name for name in CLAIMS if name not in OF_THE_NODE)
    return [
        str(finding) for name in claims for finding in CLAIMS[name](readings, None, spec(**asked))
    ]


OF_THE_NODE = ("ready", "of_this_host", "taints", "version", "resources")


def changed(fact: type[FactBase[Any]], **values: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        have[fact] = replace(have[fact], **values)

    return change


def device(index: int, **values: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        devices = list(have[PciDevices])
        devices[index] = replace(devices[index], **values)
        have[PciDevices] = tuple(devices)

    return change


def without_device(index: int) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        have[PciDevices] = (*have[PciDevices][:index], *have[PciDevices][index + 1 :])

    return change


def gpu(index: int, **values: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        gpus = list(have[Gpus].gpus)
        gpus[index] = replace(gpus[index], **values)
        have[Gpus] = replace(have[Gpus], gpus=tuple(gpus))

    return change


def port(**values: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        state: InfinibandState = have[Infiniband]
        first = state.devices[0]
        worse = replace(first, ports=(replace(first.ports[0], **values),))  # type: ignore[arg-type]
        have[Infiniband] = replace(state, devices=(worse, *state.devices[1:]))

    return change


def hca(**values: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        state: InfinibandState = have[Infiniband]
        worse = replace(state.devices[0], **values)  # type: ignore[arg-type]
        have[Infiniband] = replace(state, devices=(worse, *state.devices[1:]))

    return change


def reading(fact: type[FactBase[Any]], value: object) -> Callable[[dict[Any, Any]], None]:
    def change(have: dict[Any, Any]) -> None:
        have[fact] = value

    return change


def xid(number: int, text: str, *, whole: bool = True) -> Callable[[dict[Any, Any]], None]:
    return reading(Xids, XidsState((Xid("0001:41:00", number, text),), whole))


def runtimes(**states: RuntimeState | None) -> Callable[[dict[Any, Any]], None]:
    """Other entries in containerd's table of runtimes; ``None`` takes one out."""

    def change(have: dict[Any, Any]) -> None:
        table = {**have[Containerd].runtimes, **states}
        kept = {name: state for name, state in table.items() if state is not None}
        have[Containerd] = replace(have[Containerd], runtimes=kept)

    return change


SWITCH = "look at the cable and at the switch's port"
HIDES = (
    "another file hides ours: compare `containerd config dump` with the files in "
    "/etc/containerd/conf.d, which are read in the order of their names"
)
# The devices of the simulated host: GPUs 41 and 42, HCAs 51 and 52, in the order of addresses.
FAULTS: list[tuple[str, Callable[[dict[Any, Any]], None], str]] = [
    (
        "gpus_present", without_device(1),
        "hardware: want 2 GPUs of A100-SXM4-40GB, have 1; look for the GPU with lspci and in the "
        "BMC's log, or correct gpu_count and gpu_model",
    ),
    (
        "gpus_present", device(1, device="2330"),
        "hardware: want 2 GPUs of A100-SXM4-40GB, have 1 and 1 of H100-SXM5-80GB; look for the GPU "
        "with lspci and in the BMC's log, or correct gpu_count and gpu_model",
    ),
    (
        "gpus_present", device(1, device="ffff"),
        "hardware: want 2 GPUs of A100-SXM4-40GB, have 1 and 1 of 10de:ffff; look for the GPU "
        "with lspci and in the BMC's log, or correct gpu_count and gpu_model",
    ),
    (
        "hcas_present", without_device(3),
        "hardware: want 2 HCAs of ConnectX-6, have 1; look for the adapter with lspci and in the "
        "BMC's log, or correct hca_count",
    ),
    (
        "hcas_present", device(3, virtual_function=True),
        "hardware: want 2 HCAs of ConnectX-6, have 1; look for the adapter with lspci and in the "
        "BMC's log, or correct hca_count",
    ),
    (
        "links_at_full_width", device(0, link_width=4, link_width_max=16),
        "hardware: want 0001:41:00.0 at x16, have x4; reseat the card, or have the slot repaired",
    ),
    (
        "no_fatal_xid", xid(79, "fallen off the bus"),
        "hardware: want no fatal Xid of GPU 0001:41:00 since the boot, have Xid 79: fallen off the "
        "bus; reboot the host; if it comes again, have the GPU replaced",
    ),
    *(
        (
            "no_fatal_xid",
            xid(number, "Timeout waiting for RPC from GSP", whole=False),
            "hardware: want no fatal Xid of GPU 0001:41:00 since the boot, have Xid "
            f"{number}: Timeout waiting for RPC from GSP; reboot the host; if it comes again, have "
            "the GPU replaced",
        )
        for number in (95, 119, 120)
    ),
    (
        "no_swap", changed(Swap, active=("/dev/vda5",)),
        "swap: want none, have /dev/vda5; run deploys/gpu_node.py",
    ),
    (
        "ports", port(state="INIT"),
        "infiniband: want mlx5_0 port 1 ACTIVE, have INIT: no subnet manager has configured it; "
        "start a subnet manager on the fabric",
    ),
    (
        "ports", port(state="DOWN", phys_state="Polling"),
        f"infiniband: want mlx5_0 port 1 ACTIVE, have DOWN (Polling); {SWITCH}",
    ),
    (
        "ports", port(rate_gbps=100.0),
        f"infiniband: want mlx5_0 port 1 at 200 Gbit/s, have 100; {SWITCH}",
    ),
    (
        "ports", port(link_layer="ethernet"),
        "infiniband: want mlx5_0 port 1 as infiniband, have ethernet; "
        "set LINK_TYPE with mlxconfig and reboot, or correct hca_link_layer",
    ),
    (
        "ports", hca(pci_address=None),
        "infiniband: want an RDMA device for 0001:51:00.0, have none; "
        "read the kernel's log for mlx5_core",
    ),
    (
        "ports", hca(uverbs=None),
        "infiniband: want uverbs and umad device files of mlx5_0, have not both; "
        "load ib_uverbs and ib_umad",
    ),
    (
        "ports", hca(umad=()),
        "infiniband: want uverbs and umad device files of mlx5_0, have not both; "
        "load ib_uverbs and ib_umad",
    ),
    (
        "ports", changed(Infiniband, rdma_cm=False),
        "infiniband: want /dev/infiniband/rdma_cm, have none; load rdma_ucm",
    ),
    (
        "driver", changed(NvidiaDriver, version=None),
        f"nvidia driver: want {DRIVER} loaded, have none; run deploys/gpu_node.py",
    ),
    (
        "driver", changed(NvidiaDriver, version="580.159.03"),
        f"nvidia driver: want {DRIVER} loaded, have 580.159.03; run deploys/gpu_node.py",
    ),
    (
        "driver", changed(NvidiaDriver, open_module=False),
        f"nvidia driver: want the open module {DRIVER}, have the proprietary one; "
        "run deploys/gpu_node.py",
    ),
    (
        "driver", changed(NvidiaDriver, library="580.159.03"),
        f"nvidia driver: want libnvidia-ml {DRIVER}, have 580.159.03; "
        "run deploys/gpu_node.py: something has changed the packages",
    ),
    (
        "driver", changed(NvidiaDriver, library=None),
        f"nvidia driver: want libnvidia-ml {DRIVER}, have none; "
        "run deploys/gpu_node.py: something has changed the packages",
    ),
    (
        "driver", changed(NvidiaDriver, gpus=("0001:41:00.0",)),
        "nvidia driver: want every GPU driven, have none for 0001:42:00.0; "
        "read the kernel's log for NVRM",
    ),
    (
        "management_library", reading(Gpus, GpusState(False, "NVML: Unknown Error", ())),
        "nvml: want an answer, have NVML: Unknown Error; run deploys/gpu_node.py",
    ),
    (
        "management_library", gpu(1, uuid="GPU-0"),
        "nvml: want a UUID of its own for every GPU, have several of GPU-0; "
        "pods are given GPUs by UUID: have the cards' firmware looked at",
    ),
    *(
        (
            "management_library", gpu(1, pci_address=address),
            f"nvml: want each GPU that is on the bus, once, have {address} not so; "
            "read the kernel's log for NVRM, and reboot the host",
        )
        for address in ("0001:41:00.0", "0001:99:00.0")
    ),
    (
        "persistence", gpu(1, persistence_mode=False),
        "nvidia-persistenced: want running, persistence mode on, have off for GPU 1; "
        "read `journalctl -u nvidia-persistenced`",
    ),
    (
        "persistence", changed(NvidiaPersistenced, active=False),
        "nvidia-persistenced: want running, persistence mode on, have not running; "
        "read `journalctl -u nvidia-persistenced`",
    ),
    (
        "mig", gpu(1, mig_mode=True, mig_mode_pending=True),
        "mig: want GPU 1 whole, have no devices, mode on; read `journalctl -u rackwright-mig`",
    ),
    (
        "mig", gpu(0, mig_mode_pending=True),
        "mig: want GPU 0 whole, have no devices, mode off, and to change with the next reset; "
        "read `journalctl -u rackwright-mig`",
    ),
    (
        "runtime_configuration", changed(Containerd, problem="config.toml: unknown key"),
        "container runtime: want a configuration that loads, have config.toml: unknown key; "
        + HIDES,
    ),
    (
        "runtime_configuration",
        runtimes(nvidia=RuntimeState("", "/usr/bin/nvidia-container-runtime", True)),
        f"container runtime: want a type for every runtime, have none for nvidia; {HIDES}",
    ),
    (
        "runtime_configuration", runtimes(runc=None),
        f"container runtime: want runtime runc beside it, have none; {HIDES}",
    ),
    (
        "runtime_configuration", runtimes(nvidia=None),
        "container runtime: want runtime nvidia to run /usr/bin/nvidia-container-runtime, "
        f"have no such runtime; {HIDES}",
    ),
    (
        "runtime_configuration", runtimes(runc=RuntimeState(RUNC, "", False)),
        "container runtime: want systemd cgroups for every runtime, have cgroupfs for runc; "
        f"{HIDES}",
    ),
    (
        "runtime_configuration", changed(Containerd, default_runtime="runc"),
        f"container runtime: want nvidia as the default runtime, have runc; {HIDES}",
    ),
    (
        "runtime_configuration", changed(Containerd, cdi_enabled=False),
        f"container runtime: want CDI, have it disabled; {HIDES}",
    ),
    (
        "runtime", changed(ContainerdService, active=False),
        "containerd: want running, have not; read `journalctl -u containerd`",
    ),
    (
        "runtime", changed(ContainerdService, enabled=False),
        "containerd: want it to start at boot, have it disabled; run deploys/gpu_node.py",
    ),
    (
        "runtime", changed(ContainerdService, configured_at_s=1000.5),
        "containerd: want a daemon newer than its configuration, have an older one; "
        "run deploys/gpu_node.py, and find out what has written to /etc/containerd",
    ),
    (
        "runtime", changed(ContainerdService, memlock_unlimited=False),
        "containerd: want unlimited locked memory, have a limit; run deploys/gpu_node.py",
    ),
]  # fmt: skip


KNOWN = {
    "DRV-05": "want libnvidia-ml 580.178.04, have 580.159.03",
    "DRV-15": "Timeout waiting for RPC from GSP",
    "DRV-17": "want every GPU driven, have none for 0001:42:00.0",
    "DPL-01": "want libnvidia-ml 580.178.04, have none",
    "RTM-01": "have no such runtime",
    "RTM-03": "want a type for every runtime",
    "RTM-06": "want runtime runc beside it, have none",
    "RTM-07": "have cgroupfs for runc",
    "RTM-09": "want a daemon newer than its configuration",
    "RTM-10": "want nvidia as the default runtime, have runc",
    "OFD-08": "want /dev/infiniband/rdma_cm, have none",
    "OFD-11": "want mlx5_0 port 1 as infiniband, have ethernet",
    "OFD-16": "want unlimited locked memory, have a limit",
}
"""Words of the findings that stand for known failures, by id."""


def id_of(finding: str) -> str:
    return "".join(f"{known} " for known, words in KNOWN.items() if words in finding)


def test_every_known_failure_is_a_fault_here() -> None:
    told = [finding for _, _, finding in FAULTS]
    assert [known for known, words in KNOWN.items() if not any(words in f for f in told)] == []


@pytest.mark.parametrize(
    ("name", "fault", "finding"), FAULTS,
    ids=[
        f"{id_of(finding)}{name}: {finding.partition('have ')[2][:40]}"
        for name, _, finding in FAULTS
    ],
)  # fmt: skip
def test_a_fault_is_told_in_one_sentence(name, fault, finding) -> None:
    have = healthy()
    fault(have)
    assert found(have, (name,)) == [finding]


def test_a_healthy_host_has_no_findings() -> None:
    assert found(healthy()) == []


def test_every_claim_of_the_host_has_a_fault_here() -> None:
    assert {name for name, _, _ in FAULTS} == set(CLAIMS) - set(OF_THE_NODE)


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        # At rest a GPU lowers the speed of its link, and a device behind a virtual bridge has none.
        (device(0, link_speed_gts=2.5, link_speed_max_gts=16.0), ("links_at_full_width",)),
        (device(0, link_width=None, link_width_max=16), ("links_at_full_width",)),
        (xid(13, "of an application"), ("no_fatal_xid",)),
        # A host that has served for long: its log begins later than it does.
        (reading(Xids, XidsState((), whole=False)), ("no_fatal_xid",)),
    ],
    ids=["speed at rest", "no link", "Xid of an application", "log without its beginning"],
)
def test_no_finding(fault, names) -> None:
    have = healthy()
    fault(have)
    assert found(have, names) == []


def test_a_host_without_gpus_or_hcas_has_no_findings_of_them() -> None:
    have = healthy()
    have[PciDevices] = ()
    have[NvidiaDriver] = replace(have[NvidiaDriver], version=None, library=None, gpus=())
    have[Gpus] = GpusState(False, "nvidia-smi is not installed", ())
    have[Infiniband] = InfinibandState((), settled_s=None, rdma_cm=False, netns_shared=None)
    asked = {"gpu_count": 0, "gpu_model": None, "hca_count": 0, "hca_model": None}
    assert found(have, (), **asked, hca_rate_gbps=None) == []


def test_where_rdma_is_not_required_a_port_that_is_down_is_no_finding() -> None:
    have = healthy()
    port(state="DOWN")(have)
    assert found(have, ("ports",)) != []
    assert found(have, ("ports",), rdma_required=False) == []


def test_mig_as_declared() -> None:
    have = healthy()
    asked = {"mig_config": "all-3g.20gb", "mig_strategy": "single"}
    devices = (MigDevice("3g.20gb", "MIG-1"), MigDevice("3g.20gb", "MIG-2"))
    divided = {"mig_mode": True, "mig_mode_pending": True, "gpu_instances": ("3g.20gb",) * 2}
    gpu(0, mig_devices=devices, **divided)(have)
    gpu(1, mig_devices=devices[:1], **divided)(have)
    assert found(have, ("mig",), **asked) == [
        "mig: want GPU 1 divided as declared, have 3g.20gb, mode on; "
        "read `journalctl -u rackwright-mig`"
    ]


def test_roce_needs_no_umad() -> None:
    have = healthy()
    devices = tuple(
        replace(each, umad=(), ports=tuple(replace(p, link_layer="ethernet") for p in each.ports))
        for each in have[Infiniband].devices
    )
    have[Infiniband] = replace(have[Infiniband], devices=devices)
    assert found(have, ("ports",), hca_link_layer="ethernet") == []


@pytest.mark.parametrize("fact", healthy(), ids=lambda fact: fact.__name__)
def test_unknown_is_a_finding_of_every_claim_that_needs_it_and_of_no_other(fact) -> None:
    have = healthy()
    del have[fact]
    readings = Readings(
        {each.__name__: value for each, value in have.items()}, {fact.__name__: "timed out"}
    )
    findings = [str(finding) for finding in check(readings, open_node(), spec())]
    unknown = [line for line in findings if line.startswith("claim ")]
    assert unknown
    reason = f"{fact.__name__}: want it read, have unknown (timed out)"
    assert all(reason in line for line in unknown)
    assert len(unknown) < len(CLAIMS)
