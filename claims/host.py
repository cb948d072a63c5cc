"""The host's software is as asked, and what runs is what is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from claims.finding import Finding
from claims.hardware import gpus, hcas
from cluster import NodeState
from facts.containerd import NVIDIA_RUNTIME, Containerd, ContainerdService
from facts.infiniband import Infiniband
from facts.mig import Gpus
from facts.nvidia import NvidiaDriver, NvidiaPersistenced
from facts.pci import PciDevices
from facts.snapshot import Readings
from facts.system import Swap
from nodespec import NodeSpec, mig_layout


def driver(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """Loaded, library and asked at one version, for every GPU."""
    if not spec.gpu_count:
        return
    state, want = have.of(NvidiaDriver), spec.nvidia_driver_version
    if state.version != want:
        yield Finding(
            "nvidia driver", f"{want} loaded", state.version or "none", "run deploys/gpu_node.py"
        )
        return
    if not state.open_module:
        yield Finding(
            "nvidia driver",
            f"the open module {want}",
            "the proprietary one",
            "run deploys/gpu_node.py",
        )
    if state.library != want:
        yield Finding(
            "nvidia driver", f"libnvidia-ml {want}", state.library or "none",
            "run deploys/gpu_node.py: something has changed the packages",
        )  # fmt: skip
    expected = {device.address for device in gpus(have.of(PciDevices), spec)}
    if missing := sorted(expected - set(state.gpus)):
        yield Finding(
            "nvidia driver", "every GPU driven", f"none for {', '.join(missing)}",
            "read the kernel's log for NVRM",
        )  # fmt: skip


def management_library(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """NVML answers, for each GPU that there is, and tells one from another."""
    if not spec.gpu_count:
        return
    state = have.of(Gpus)
    if not state.usable:
        yield Finding("nvml", "an answer", state.reason or "none", "run deploys/gpu_node.py")
        return
    if len(state.gpus) != spec.gpu_count:
        yield Finding(
            "nvml", f"{spec.gpu_count} GPUs", str(len(state.gpus)), "read the kernel's log for NVRM"
        )
    on_bus = {device.address for device in have.of(PciDevices) if device.is_gpu}
    listed = Counter(gpu.pci_address for gpu in state.gpus)
    if strange := sorted({gpu for gpu in listed if gpu not in on_bus or listed[gpu] > 1}):
        yield Finding(
            "nvml", "each GPU that is on the bus, once", f"{', '.join(strange)} not so",
            "read the kernel's log for NVRM, and reboot the host",
        )  # fmt: skip
    uuids = Counter(gpu.uuid for gpu in state.gpus)
    if doubled := sorted(uuid for uuid in uuids if uuids[uuid] > 1):
        yield Finding(
            "nvml", "a UUID of its own for every GPU", f"several of {', '.join(doubled)}",
            "pods are given GPUs by UUID: have the cards' firmware looked at",
        )  # fmt: skip


def persistence(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    if not spec.gpu_count:
        return
    daemon = have.of(NvidiaPersistenced)
    off = [str(gpu.index) for gpu in have.of(Gpus).gpus if not gpu.persistence_mode]
    if not daemon.active or off:
        yield Finding(
            "nvidia-persistenced", "running, persistence mode on",
            "not running" if not daemon.active else f"off for GPU {', '.join(off)}",
            "read `journalctl -u nvidia-persistenced`",
        )  # fmt: skip


def mig(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """Mode and devices of every GPU as declared."""
    by_index = {gpu.index: gpu for gpu in have.of(Gpus).gpus}
    for want in mig_layout(spec):
        gpu = by_index.get(want.index)
        if gpu is None:
            continue  # told by the management library's claim
        profiles = sorted(device.profile for device in gpu.mig_devices)
        pending = gpu.mig_mode != gpu.mig_mode_pending
        if bool(gpu.mig_mode) != want.enabled or pending or profiles != sorted(want.profiles):
            yield Finding(
                "mig", f"GPU {want.index} {'divided as declared' if want.enabled else 'whole'}",
                f"{', '.join(profiles) or 'no devices'}, mode {'on' if gpu.mig_mode else 'off'}"
                + (", and to change with the next reset" if pending else ""),
                "read `journalctl -u rackwright-mig`",
            )  # fmt: skip


def ports(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """A port of every HCA active, at the declared link layer and rate, with its device files."""
    if not spec.rdma_required:
        return
    state = have.of(Infiniband)
    for pci in hcas(have.of(PciDevices), spec):
        device = state.at(pci.address)
        if device is None:
            yield Finding(
                "infiniband", f"an RDMA device for {pci.address}", "none",
                "read the kernel's log for mlx5_core",
            )  # fmt: skip
            continue
        for port in device.ports:
            name = f"{device.name} port {port.number}"
            if port.link_layer != spec.hca_link_layer:
                yield Finding(
                    "infiniband", f"{name} as {spec.hca_link_layer}", port.link_layer,
                    "set LINK_TYPE with mlxconfig and reboot, or correct hca_link_layer",
                )  # fmt: skip
            elif port.state == "INIT":
                yield Finding(
                    "infiniband", f"{name} ACTIVE", "INIT: no subnet manager has configured it",
                    "start a subnet manager on the fabric",
                )  # fmt: skip
            elif port.state != "ACTIVE":
                yield Finding(
                    "infiniband", f"{name} ACTIVE", f"{port.state} ({port.phys_state})",
                    "look at the cable and at the switch's port",
                )  # fmt: skip
            elif spec.hca_rate_gbps and port.rate_gbps < spec.hca_rate_gbps:
                yield Finding(
                    "infiniband", f"{name} at {spec.hca_rate_gbps} Gbit/s",
                    f"{port.rate_gbps:g}", "look at the cable and at the switch's port",
                )  # fmt: skip
        if device.uverbs is None or (spec.hca_link_layer == "infiniband" and not device.umad):
            yield Finding(
                "infiniband", f"uverbs and umad device files of {device.name}", "not both",
                "load ib_uverbs and ib_umad",
            )  # fmt: skip
    if spec.hca_count and not state.rdma_cm:
        yield Finding("infiniband", "/dev/infiniband/rdma_cm", "none", "load rdma_ucm")


def runtime_configuration(
    have: Readings, node: NodeState | None, spec: NodeSpec
) -> Iterator[Finding]:
    """nvidia is the default runtime, by `containerd config dump`, which merges every file."""
    config = have.of(Containerd)
    nvidia = config.runtimes.get("nvidia")
    if not config.installed or config.problem is not None:
        checks = [("a configuration that loads", False, config.problem or "no containerd")]
    else:
        cgroupfs = [name for name, state in config.runtimes.items() if not state.systemd_cgroup]
        untyped = [name for name, state in config.runtimes.items() if not state.runtime_type]
        checks = [
            ("the CRI plugin", config.cri_enabled, "it disabled"),
            (
                "nvidia as the default runtime", config.default_runtime == "nvidia",
                config.default_runtime or "none",
            ),
            (
                f"runtime nvidia to run {NVIDIA_RUNTIME}",
                nvidia is not None and nvidia.binary == NVIDIA_RUNTIME,
                nvidia.binary or "runc" if nvidia else "no such runtime",
            ),
            # Without it containerd loads the file, and refuses every container.
            # Source: NVIDIA/nvidia-container-toolkit issue 1956.
            ("a type for every runtime", not untyped, f"none for {', '.join(untyped)}"),
            (
                "systemd cgroups for every runtime", not cgroupfs,
                f"cgroupfs for {', '.join(cgroupfs)}",
            ),
            ("runtime runc beside it", "runc" in config.runtimes, "none"),
            ("CDI", config.cdi_enabled, "it disabled"),
            (
                f"pause image {spec.pause_image}", config.sandbox_image == spec.pause_image,
                config.sandbox_image or "none",
            ),
        ]  # fmt: skip
    for want, good, found in checks:
        if not good:
            yield Finding(
                "container runtime", want, found,
                "another file hides ours: compare `containerd config dump` with the files in "
                "/etc/containerd/conf.d, which are read in the order of their names",
            )  # fmt: skip


def runtime(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """The daemon that runs has read its configuration, and will be there after a reboot."""
    service = have.of(ContainerdService)
    if not service.active:
        yield Finding("containerd", "running", "not", "read `journalctl -u containerd`")
        return
    if not service.enabled:
        yield Finding("containerd", "it to start at boot", "it disabled", "run deploys/gpu_node.py")
    if service.stale:
        yield Finding(
            "containerd", "a daemon newer than its configuration", "an older one",
            "run deploys/gpu_node.py, and find out what has written to /etc/containerd",
        )  # fmt: skip
    if not service.memlock_unlimited:
        yield Finding("containerd", "unlimited locked memory", "a limit", "run deploys/gpu_node.py")


def no_swap(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    if active := have.of(Swap).active:
        yield Finding("swap", "none", ", ".join(active), "run deploys/gpu_node.py")
