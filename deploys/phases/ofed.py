"""OFED: the RDMA stack, its modules and character devices, and the way to GPU memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyinfra import logger
from pyinfra.api import StringCommand, deploy

from deploys.phases import preflight
from facts import gpudirect
from facts.files import Files
from facts.infiniband import Infiniband, InfinibandDevice, InfinibandPort, InfinibandState
from facts.modules import KernelModules
from facts.os import Kernels, Machine, OsRelease
from facts.pci import PciDevice, PciDevices
from nodespec import NodeSpec
from nodespec.catalogue import hca
from operations import node, packages
from operations.files import written
from operations.have import Have
from operations.step import Commands, Refusal, Step
from operations.systems import system

HEADER = "# Written by Rackwright (deploys/phases/ofed.py). Local changes are lost.\n"
MODULES_LOAD = "/etc/modules-load.d/rackwright-rdma.conf"

# rdma-core loads ib_umad only where it sees an InfiniBand port, and the RDMA device plugin needs
# umad, uverbs and rdma_cm on RoCE hosts too. Source: linux-rdma/rdma-core kernel-boot/modules at
# 691953d8; Mellanox/k8s-rdma-shared-dev-plugin pkg/resources/rdma_device_spec.go at 410b0f3.
MODULES = ("ib_umad", "ib_uverbs", "rdma_cm", "rdma_ucm")

SETTLE_S = 90
"""How long ports may take to become active after their driver was loaded, or after a boot."""


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (MODULES_LOAD,)


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    if not spec.hca_count:
        return
    yield from way_to_gpu_memory(spec, have)
    hcas = asked_for(spec, have[PciDevices])
    wrong = list(wrong_ports(spec, have, hcas))
    if spec.rdma_required:
        yield from wrong

    pending = None
    release = system(have[OsRelease])
    assert release is not None, "preflight refuses other systems"
    install = packages.installed(
        "install the RDMA stack", dict.fromkeys(release.rdma_packages), have, hold=False,
        disrupts=True,  # it brings units, for which systemd reads all anew (failures RTM-13)
    )  # fmt: skip
    if install:
        pending = "the packages"
        yield install
    for step in modules(spec, have):
        pending = pending or "the modules"
        yield step
    if spec.rdma_required:
        yield from usable(have, hcas, pending)
    elif pending is None:
        for lack in (*wrong, *lacking(have[Infiniband], hcas)):
            # Nobody is promised RDMA there: it is told, and holds nothing up.
            logger.warning("[%s] not required, and not there: %s", spec.kube_node_name, lack)


def asked_for(spec: NodeSpec, devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The HCAs that the inventory means: others may be there for storage or for the management."""
    ids = hca(spec.hca_model).pci_device_ids if spec.hca_model else ()
    return tuple(device for device in devices if device.is_hca and device.device in ids)


def wanted_modules(spec: NodeSpec) -> tuple[str, ...]:
    ipoib = spec.ipoib and spec.hca_link_layer == "infiniband"
    return (*MODULES, "ib_ipoib") if ipoib else MODULES


def modules(spec: NodeSpec, have: Have) -> Iterator[Step]:
    wanted = wanted_modules(spec)
    text = HEADER + "".join(f"{name}\n" for name in wanted)
    if step := written("load the RDMA modules at boot", MODULES_LOAD, text, have[Files]):
        yield step
    missing = [name for name in wanted if not have[KernelModules].has(name)]
    if missing:

        def load() -> Commands:
            # Character devices are made by udev, after modprobe has come back.
            yield StringCommand("modprobe", "-a", *missing, "&&", "udevadm", "settle", "-t", "30")

        yield Step(
            "load the RDMA modules", ", ".join(wanted), f"no {', '.join(missing)}", load,
            remedy="the kernel's cloud flavours leave them out: boot the generic one",
        )  # fmt: skip


def way_to_gpu_memory(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    if spec.gpu_count and gpudirect_mode(spec, have) is None:
        kernel = have[Kernels].running
        yield Refusal(
            "gpudirect", spec.gpudirect,
            f"kernel {kernel} without the peer-memory API"
            if spec.gpudirect == "peermem"
            else f"kernel {kernel}, and DMA-BUF needs 5.12",
            "boot a newer kernel, set gpudirect to none, or install an OFED that brings the API",
        )  # fmt: skip


def gpudirect_mode(spec: NodeSpec, have: Have) -> gpudirect.Mode | None:
    kernels = have[Kernels]
    return gpudirect.mode(
        spec.gpudirect,
        kernel=kernels.running,
        open_module=spec.nvidia_kernel_module == "open",
        peer_memory=kernels.peer_memory,
    )


def wrong_ports(spec: NodeSpec, have: Have, hcas: tuple[PciDevice, ...]) -> Iterator[Refusal]:
    """What no waiting changes: a port of the other link layer, too slow, or devices split up."""
    rdma = have[Infiniband]
    for pci, device in ((pci, rdma.at(pci.address)) for pci in hcas):
        if device is None:
            continue
        for port in device.ports:
            where = place(pci, device, port)
            if port.link_layer != spec.hca_link_layer:
                number = 1 if spec.hca_link_layer == "infiniband" else 2
                yield Refusal(
                    "rdma", f"link layer {spec.hca_link_layer} on {where}", port.link_layer,
                    f"run `mstconfig -d {pci.address} set LINK_TYPE_P{port.number}={number}`, "
                    "then reboot",
                    unfit=True,
                )  # fmt: skip
            elif (
                port.state == "ACTIVE"
                and spec.hca_rate_gbps is not None
                and port.rate_gbps < spec.hca_rate_gbps
            ):
                yield Refusal(
                    "rdma", f"{spec.hca_rate_gbps} Gbit/s on {where}", f"{port.rate_gbps:g} Gbit/s",
                    "look at the cable, the transceiver and the switch's port",
                    unfit=True,
                )  # fmt: skip


def usable(
    have: Have, hcas: tuple[PciDevice, ...], pending: str | None
) -> Iterator[Step | Refusal]:
    """Every HCA with its character devices and active ports; given a moment after they came."""
    lacks = lacking(have[Infiniband], hcas)
    settled_s = have[Infiniband].settled_s
    # Of a clock that was set meanwhile it is only known that the devices are not new.
    age_s = have[Machine].uptime_s if settled_s is None else abs(settled_s)
    if pending is None and min(age_s, have[Machine].uptime_s) > 3 * SETTLE_S:
        yield from lacks
        return
    if not lacks:
        return

    def wait() -> Commands:
        yield StringCommand(
            f"udevadm settle -t 30; n=0; while [ $n -lt {SETTLE_S} ] && "
            "cat /sys/class/infiniband/*/ports/*/state | grep -qv ACTIVE; "
            "do sleep 3; n=$((n + 3)); done; true"
        )

    yield Step(
        "wait for the RDMA ports", "; ".join(lack.want for lack in lacks),
        "; ".join(lack.have for lack in lacks), wait, waits_for=pending,
        remedy="; ".join(dict.fromkeys(lack.remedy for lack in lacks)),
    )  # fmt: skip


def lacking(rdma: InfinibandState, hcas: tuple[PciDevice, ...]) -> list[Refusal]:
    """What each HCA lacks to be used."""
    found = list[Refusal]()
    for pci in hcas:
        device = rdma.at(pci.address)
        if device is None:
            found.append(Refusal(
                "rdma", f"an RDMA device of {pci.address}", f"none, driver {pci.driver or 'none'}",
                f"look for {pci.address} in dmesg", unfit=True,
            ))  # fmt: skip
            continue
        nodes = [*(["uverbs"] if device.uverbs is None else [])]
        nodes += ["umad"] if len(device.umad) < len(device.ports) else []
        if nodes:
            found.append(Refusal(
                "rdma", f"character devices of {device.name} ({pci.address})",
                f"no {' and no '.join(nodes)}", "look at `ls /dev/infiniband` and dmesg",
                unfit=True,
            ))  # fmt: skip
        for port in device.ports:
            if port.state != "ACTIVE":
                found.append(Refusal(
                    "rdma", f"{place(pci, device, port)} active",
                    f"{port.state} ({port.phys_state}{cause(port)})", remedy(port), unfit=True,
                ))  # fmt: skip
    if hcas and not rdma.rdma_cm:
        found.append(Refusal(
            "rdma", "/dev/infiniband/rdma_cm", "none", "look at `lsmod` for rdma_ucm", unfit=True
        ))  # fmt: skip
    return found


def place(pci: PciDevice, device: InfinibandDevice, port: InfinibandPort) -> str:
    return f"{device.name} port {port.number} ({pci.address})"


def cause(port: InfinibandPort) -> str:
    no_manager = port.state in ("INIT", "ARMED") and port.link_layer == "infiniband"
    return ", no subnet manager has spoken" if no_manager else ""


def remedy(port: InfinibandPort) -> str:
    if cause(port):
        return "start a subnet manager on the fabric, on a switch or with opensm on one host"
    return "look at the cable, the transceiver and the switch's port"


@deploy("OFED")
def ofed() -> None:
    node.converge(name="Converge OFED", phases=[preflight, sys.modules[__name__]])
