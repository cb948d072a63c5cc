"""Preflight: nothing is changed, and whatever would fail half-way is refused now, all at once."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator

from packaging.version import Version
from pyinfra.api import deploy

from claims import hardware
from cluster import ClusterError
from facts.files import Files
from facts.headers import KernelHeaders
from facts.infiniband import Infiniband
from facts.kubernetes import CA, Kubelet
from facts.mig import Gpus
from facts.network import ApiServer
from facts.nvidia import NvidiaDriver
from facts.os import Clock, DiskFree, Kernels, Machine, OsRelease
from facts.pci import PciDevices
from facts.repositories import AptSources
from facts.snapshot import registered
from facts.xid import Xids
from nodespec import NodeSpec
from operations import fleet, node, repositories
from operations.have import Have
from operations.step import Refusal, Step
from operations.systems import SYSTEMS, system

ARCHITECTURE = "x86_64"
BOOT_FREE_MIB = 256
"""/boot holds kernels and initramfs; what is asked of it is room for one more."""

NVLINK_5 = {"B200", "B300"}
"""Their boards have NVSwitches that are no functions of NVIDIA's on the PCI bus.
Source: NVIDIA/gpu-driver-container ubuntu24.04/nvidia-driver, which looks for SW_MNG in the vital
product data of mlx5 devices (read 2026-11-30)."""

FULL_MIB = 64
"""With less than that on a file system, logs and containers' files are cut off."""


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (CA,)


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    yield from unread(have)
    checks: tuple[Callable[[NodeSpec, Have], Iterator[Refusal]], ...] = (
        supported, expected_hardware, fabric, space, clock, kernel, identity, cluster,
    )  # fmt: skip
    for check in checks:
        # A check whose reading is missing is told above, once.
        if not need(check) & have.readings.unread.keys():
            yield from check(spec, have)


NEEDS: dict[str, set[type]] = {
    "supported": {OsRelease, Machine},
    "expected_hardware": {PciDevices, Xids, Infiniband},
    "fabric": {PciDevices},
    "space": {DiskFree},
    "clock": {Clock},
    "kernel": {Kernels, KernelHeaders, Machine, OsRelease, AptSources},
    "identity": {Machine},
    "cluster": {ApiServer, Kubelet, Machine, Files},
}

OF_THE_HARDWARE = {fact.__name__ for fact in (PciDevices, Xids, Infiniband, NvidiaDriver, Gpus)}
"""Readings that hang or fail when the hardware does: users must not be on such a node. That of
another, or an answer that was not understood, stops the run, and closes no node that serves: a new
driver may have words that no parser knows, and users may write into the kernel's log."""


def need(check: Callable[..., object]) -> set[str]:
    return {fact.__name__ for fact in NEEDS[check.__name__]}


def unread(have: Have) -> Iterator[Refusal]:
    """Unknown is not absent: nothing is decided on a reading that was not made."""
    modules = {fact.__name__: fact.__module__ for fact in registered()}
    for name, reason in sorted(have.readings.unread.items()):
        broken = name in OF_THE_HARDWARE and name in have.readings.failed
        yield Refusal(
            f"reading {name}", "it made", f"unknown ({reason})",
            "read `dmesg` on the host: a card or its driver that hangs needs a reboot, or repair"
            if broken
            else f"run `pyinfra INVENTORY fact {modules[name]}.{name}` to see why",
            unfit=broken,
        )  # fmt: skip


def supported(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    os, machine = have[OsRelease], have[Machine]
    if (os.id, os.version) not in SYSTEMS:
        known = ", ".join(f"{name} {version}" for name, version in SYSTEMS)
        yield Refusal(
            "system", f"one of {known}", os.name, "install one of these, or leave the host out"
        )
    if machine.architecture != ARCHITECTURE:
        yield Refusal("system", ARCHITECTURE, machine.architecture, "leave the host out")
    # Source: kubernetes/kubelet config/v1beta1/types.go at 63b3249, failCgroupV1: true since 1.35.
    if not machine.cgroup_v2 and Version(spec.kube_version) >= Version("1.35"):
        yield Refusal(
            "system", f"cgroup v2 for Kubernetes {spec.kube_version}", "cgroup v1",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )  # fmt: skip


def expected_hardware(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """
    What no software can mend: the same claims that the node is validated by.

    More cards than declared, or others in their place, are a slip of the inventory, which may
    stand in the data of a whole group: no node in service is closed for that.
    """
    slips = hardware.slips(have[PciDevices], spec)
    for claim in (
        hardware.gpus_present, hardware.hcas_present, hardware.links_at_full_width,
        hardware.no_fatal_xid,
    ):  # fmt: skip
        for finding in claim(have.readings, None, spec):
            yield Refusal(
                finding.component, finding.want, finding.have, finding.remedy,
                unfit=claim.__name__ not in slips,
            )  # fmt: skip
    netns_shared = have[Infiniband].netns_shared
    if spec.hca_count and spec.rdma_required and netns_shared is False:
        yield Refusal(
            "infiniband", "RDMA devices shared between network namespaces", "exclusive ones",
            "run `rdma system set netns shared`, and remove netns_mode=0 from /etc/modprobe.d",
        )  # fmt: skip


def fabric(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """
    GPUs behind NVSwitches wait for Fabric Manager, which no phase installs.

    Without it everything looks well, and every CUDA program ends with error 802. Somebody else may
    run it, so a node in service stays open: if nobody did, its users would have noticed.
    """
    if not spec.gpu_count:
        return
    devices = have[PciDevices]
    switches = sum(device.is_nvswitch for device in devices)
    models = {hardware.model_name(device) for device in devices if device.is_gpu} & NVLINK_5
    if switches or models:
        yield Refusal(
            "hardware", "GPUs that need no Fabric Manager",
            f"{switches} NVSwitches" if switches else f"{', '.join(sorted(models))} with NVLink 5",
            "NVSwitches are not supported yet: no Fabric Manager is installed, and without it no "
            "CUDA program starts; leave the host out",
        )  # fmt: skip


def space(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """Room for what is to come; where nobody can write any more, users cannot either."""
    free, asked = have[DiskFree], spec.disk_free_min_gib * 1024
    short: dict[int, list[str]] = {}
    for folder, mib in sorted(free.items()):
        if folder != "/boot" and mib < asked:
            # Folders of one file system have the same number of bytes left.
            short.setdefault(mib, []).append(folder)
    for mib, folders in short.items():
        yield Refusal(
            "disk", f"{asked} MiB free on {' and '.join(folders)}", f"{mib} MiB",
            "make room, or set disk_free_min_gib", unfit=mib < FULL_MIB,
        )  # fmt: skip
    boot = free.get("/boot")
    if boot is not None and boot < BOOT_FREE_MIB and boot not in short:
        yield Refusal("disk", f"{BOOT_FREE_MIB} MiB free on /boot", f"{boot} MiB", "make room")


def clock(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """By the API server's clock, since that one judges certificates and tokens; else by ours."""
    tolerance_s = spec.clock_tolerance_s
    by_ours_s = offset_s = have[Clock].offset_s
    whose, doubt_s, agreed = "this machine's", 0.0, False
    try:
        asked = time.time()
        theirs = have.cluster.server_time().timestamp()
        answered = time.time()
        # The moment lies between question and answer; its Date header has whole seconds.
        ahead_s = (asked + answered) / 2 - (theirs + 0.5)
        doubt_s = (answered - asked) / 2 + 0.5
        offset_s += ahead_s
        whose, agreed = "the API server's", abs(ahead_s) - doubt_s <= tolerance_s
    except ClusterError:
        pass  # told by the check of the cluster
    if abs(offset_s) - doubt_s > tolerance_s:
        yield Refusal(
            "clock", f"within {tolerance_s} s of {whose}",
            f"{offset_s:+.0f} s",
            "set the host's clock and see that it is kept: chrony or timesyncd",
            # Two that agree against one; else another may be wrong, and all nodes right.
            unfit=agreed and abs(by_ours_s) > tolerance_s,
        )  # fmt: skip


def kernel(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """A module can be built for the kernel that runs, and may be loaded into it."""
    if spec.gpu_count and have[Machine].secure_boot:
        yield Refusal(
            "secure boot", "it off, or modules that are signed", "it on, and DKMS modules",
            "turn it off in the firmware, or enrol a key with `mokutil --import` and confirm it on "
            "the console; signed modules are not supported yet",
        )  # fmt: skip
    on_host, headers = system(have[OsRelease]), have[KernelHeaders]
    if not spec.gpu_count or on_host is None or headers.offered is None:
        return
    if spec.debian_repository_url and not any(
        source.path == repositories.sources_path("debian") for source in have[AptSources]
    ):
        return  # the repository that is to have them is not known to apt yet
    for version in have[Kernels].relevant:
        package = on_host.headers.format(kernel=version)
        if version in headers.missing and package not in headers.offered:
            yield Refusal(
                "kernel", f"headers of {version}",
                f"none on the host, and no {package} in apt's indexes",
                "install a kernel whose headers apt has, and boot it; or let apt know a repository "
                "that still has them",
            )  # fmt: skip


def identity(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """No two hosts of a fleet are one machine, or clones of one."""
    machine = have[Machine]
    for title, value in (
        ("machine-id", machine.machine_id),
        ("product UUID", machine.product_uuid),
    ):
        if value is None and title == "machine-id":
            yield Refusal(
                "identity", "a machine-id", "none", "run systemd-machine-id-setup on the host"
            )
        if value is None:
            continue
        if other := fleet.claim_identity(title, value, spec.kube_node_name):
            yield Refusal(
                "identity", f"a {title} of its own", f"the same as {other}",
                "these are clones: on each run `rm -f /etc/machine-id /var/lib/dbus/machine-id; "
                "systemd-machine-id-setup`, then reboot it"
                if title == "machine-id" else "correct it in the firmware",
            )  # fmt: skip


def cluster(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """The cluster answers, from here and from the host; it fits, and nobody else is in charge."""
    api, kubelet = have[ApiServer], have[Kubelet]
    if api.asked and not api.connects:
        yield Refusal(
            "kubernetes api", f"{spec.kube_api_server} reachable from the host", api.problem,
            "look at the network and firewalls between them",
            # Its kubelet goes there too. To another address than that, the inventory may be wrong.
            unfit=kubelet.api_server == f"https://{spec.kube_api_server}",
        )  # fmt: skip
    # To a wrong clock every certificate is of another time, and the clock is told already.
    elif api.asked and not api.trusted and not (have.known(Clock) and any(clock(spec, have))):
        yield Refusal(
            "kubernetes api", f"{spec.kube_api_server} to prove itself by the pinned CA",
            api.problem or "no proof", "look at kube_api_server, and at the CA in kube_kubeconfig",
        )  # fmt: skip
    if kubelet.api_server is not None and (other := other_cluster(spec, have, kubelet.api_server)):
        yield Refusal(
            "kubernetes", f"a host of https://{spec.kube_api_server}, or of no cluster", other,
            "remove it from that cluster first: kubeadm reset",
        )  # fmt: skip
    try:
        yield from fits(spec, have, kubelet.joined)
    except ClusterError as error:
        yield told_by(error)


# kubernetes api: want https://10.0.0.1:6443 to answer, have no route to host; check the network
TOLD = re.compile(r"(.+?): want (.+?), have (.+?); (.+)", re.DOTALL)


def told_by(error: ClusterError) -> Refusal:
    """A refusal in the words of the cluster's error, which have the same form."""
    if words := TOLD.fullmatch(str(error)):
        component, want, found, remedy = words.groups()
        return Refusal(component, want, found, remedy)
    return Refusal(
        "kubernetes api", "an answer", str(error), "look at kube_kubeconfig, and at the server"
    )


def other_cluster(spec: NodeSpec, have: Have, api_server: str) -> str | None:
    """
    The cluster that the host has joined, if it is another one.

    A cluster is known by its CA: it may have several addresses, and kubeadm takes the one that
    cluster-info names; at the same address there may be a new cluster.
    """
    file = have[Files][CA]
    theirs = authorities(file.text or "") if file else set()
    if not theirs:
        return None if api_server == f"https://{spec.kube_api_server}" else f"one of {api_server}"
    if theirs & authorities(have.cluster.ca_pem.decode()):
        return None
    return f"one of {api_server} with another certificate authority"


def authorities(pem: str) -> set[str]:
    """Certificates in PEM, without what editors and tools do to white space."""
    found = re.findall(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", pem, re.DOTALL)
    return {"".join(body.split()) for body in found}


def fits(spec: NodeSpec, have: Have, joined: bool) -> Iterator[Refusal]:
    # Some builds add what is no version of Python's kind: 1.36.3-vendor.1
    server = Version(re.split(r"[-+]", have.cluster.server_version())[0])
    want = Version(spec.kube_version)
    if want > server or (want.major, want.minor) != (server.major, server.minor):
        yield Refusal(
            "kubernetes", f"a control plane of {spec.kube_version} or a later patch", str(server),
            f"set kube_version to a {server.major}.{server.minor} that is not newer",
        )  # fmt: skip
    # Source: containerd RELEASES.md, "Kubernetes Support", commit 301026e5 (read 2026-11-30):
    # 1.36 and later need 2.2.0 and later.
    if (want.major, want.minor) >= (1, 36) and Version(spec.containerd_version) < Version("2.2.0"):
        yield Refusal(
            "container runtime", f"containerd 2.2.0 or later for Kubernetes {spec.kube_version}",
            spec.containerd_version, "set containerd_version",
        )  # fmt: skip
    if other := have.cluster.operator_in_charge():
        yield Refusal(
            "cluster", "no other manager of GPUs", other,
            "decide for one: remove it, or leave these hosts to it",
        )  # fmt: skip
    there, machine = have.node, have[Machine]
    if there is not None and have.of_another(there):
        yield Refusal(
            "identity",
            f"Node {there.name} to be this machine "
            f"({told(machine.machine_id, machine.product_uuid)})",
            f"that of another ({told(there.machine_id, there.system_uuid)})",
            "the address leads to another machine, or the name is taken: correct ssh_hostname or "
            f"kube_node_name; if that machine is gone, `kubectl delete node {there.name}`",
        )  # fmt: skip
    ours = there is not None and there.of_machine(machine.machine_id, None)
    if (joined and ours) or not have.asks:
        return
    # Some twenty questions to the API, and all its nodes: once, before the first change.
    if not joined and (rights := have.cluster.missing_rights(spec.kube_namespace)):
        yield Refusal(
            "kubernetes", "the rights of docs/rbac.yaml", f"no right to {', '.join(rights)}",
            "apply docs/rbac.yaml, see docs/cluster-access.md",
        )  # fmt: skip
    elif other := have.cluster.twin(
        spec.kube_node_name, machine.machine_id or "", machine.product_uuid or ""
    ):
        yield Refusal(
            "identity", "a machine-id and a product UUID that no node has",
            f"one that Node {other} has",
            f"the address leads to {other}: correct ssh_hostname; or one is a clone of the other: "
            "give it an identity of its own; or it was called so: then "
            f"`kubectl delete node {other}`",
        )  # fmt: skip


def told(machine_id: str | None, system_uuid: str | None) -> str:
    return f"machine-id {machine_id or 'unknown'}, UUID {system_uuid or 'unknown'}"


@deploy("Preflight")
def preflight() -> None:
    node.converge(name="Check the node", phases=[sys.modules[__name__]])
