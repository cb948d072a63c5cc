"""NVIDIA driver: one exact version, installed, built, loaded, and the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyinfra.api import StringCommand, deploy

from deploys.phases import ofed, preflight
from facts.files import Files
from facts.mig import NO_DEVICES, Gpus
from facts.modules import KernelModules
from facts.nvidia import NvidiaDriver, NvidiaModules, NvidiaPersistenced
from facts.os import Kernels, OsRelease
from facts.packages import Packages
from facts.pci import PciDevices
from nodespec import NodeSpec
from operations import boot, node, nvidia, packages, repositories
from operations.files import put, written
from operations.have import Have
from operations.step import Commands, Refusal, Step
from operations.systems import System, system

HEADER = "# Written by Rackwright (deploys/phases/nvidia_driver.py). Local changes are lost.\n"
NOUVEAU = "/etc/modprobe.d/rackwright-nouveau.conf"
MODULES_LOAD = "/etc/modules-load.d/rackwright-nvidia.conf"
DROP_IN = "/etc/systemd/system/nvidia-persistenced.service.d/50-rackwright.conf"
UNINSTALLER = "/usr/bin/nvidia-uninstall"

LOST = (
    "look for Xid and `fallen off the bus` in dmesg; a card that is lost needs a power cycle, not "
    "another driver"
)
# By a word of what nvidia-smi says.
REMEDIES = {
    "mismatch": "find what has changed it: `dpkg --verify libnvidia-ml1`; reinstall that package, "
    "and reboot if it stays",
    "lost": LOST,
    NO_DEVICES: "read `dmesg` for RmInitAdapter and GSP: if the firmware of the loaded version is "
    "in /lib/firmware/nvidia, the host needs its power off and on again, not another driver",
}


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (
        NOUVEAU, MODULES_LOAD, DROP_IN, UNINSTALLER, nvidia.LOOKED_AT,
        *repositories.files("cuda"),
    )  # fmt: skip


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    if not spec.gpu_count:
        return
    if have[Files][UNINSTALLER] is not None:
        yield Refusal(
            "nvidia driver", "one that packages brought",
            f"one that NVIDIA's .run installer brought ({UNINSTALLER})",
            f"run `{UNINSTALLER}` on the host, reboot it, then run again",
        )  # fmt: skip
        return
    on_host = system(have[OsRelease])
    assert on_host is not None, "preflight refuses other systems"

    yield from repositories.present("cuda", spec, have)
    if step := written("keep nouveau out", NOUVEAU, nvidia.BLACKLIST, have[Files]):
        yield step
    installs = list(packages_of(on_host, spec, have))
    yield from installs
    builds = list(built(spec, have))
    if not installs:
        yield from builds
    yield from nouveau_out(have)
    pending = "the packages" if installs else "the modules" if builds else None
    loads = list(loaded(spec, have, pending))
    yield from loads
    pending = pending or ("the module" if loads else None)
    yield from persistent(have, pending)
    if pending is None:
        yield from judged(spec, have)


def packages_of(on_host: System, spec: NodeSpec, have: Have) -> Iterator[Step]:
    """The driver's packages, all of one version and held."""
    version, installed, kernels = spec.nvidia_driver_version, have[Packages], have[Kernels]
    missing = nvidia.headers(on_host, kernels.relevant, kernels.headers, installed)
    if install := packages.installed(
        "install the driver",
        nvidia.wants(on_host, version, installed),
        have,
        hold=True,
        disrupts=have[NvidiaDriver].version is not None,
        before=nvidia.before(on_host, version, installed, missing),
        explain=nvidia.EXPLAIN,
        # Its other branches, the distribution's build of it: they conflict, or are renamed.
        replaces=nvidia.FAMILY.pattern,
    ):
        yield install
        return
    if missing and (
        headers := packages.installed(
            "install the kernel headers", dict.fromkeys(missing), have, hold=False
        )
    ):
        yield headers
    rest = {name: now for name, now in nvidia.family(installed).items() if now == version}
    if hold := packages.installed("hold the rest of the driver", rest, have, hold=True):
        yield hold


def built(spec: NodeSpec, have: Have) -> Iterator[Step]:
    """Modules on disk for the running kernel and for that of the next boot, whatever DKMS says."""
    version, modules, kernels = spec.nvidia_driver_version, have[NvidiaModules], have[Kernels]
    wrong: dict[str, str] = {}
    for kernel in kernels.relevant:
        on_disk = modules.on_disk.get(kernel)
        if on_disk is None:
            state = modules.dkms.get(version, {}).get(kernel, "not built")
            wrong[kernel] = f"none for {kernel} ({state} in DKMS)"
        elif on_disk.version != version or not on_disk.open_module:
            flavour = "open" if on_disk.open_module else "proprietary"
            wrong[kernel] = f"{flavour} {on_disk.version} for {kernel}"
    if not wrong:
        return

    def apply() -> Commands:
        yield nvidia.build(version, list(wrong))

    yield Step(
        "build the modules", f"open {version} for {', '.join(wrong)}", ", ".join(wrong.values()),
        apply, remedy="read make.log below /var/lib/dkms/nvidia on the host",
    )  # fmt: skip


def nouveau_out(have: Have) -> Iterator[Step]:
    """nouveau neither in the initramfs, where it would be first, nor loaded."""
    kernels, config = have[Kernels], have[Files][NOUVEAU]
    marks = have[Files][nvidia.LOOKED_AT]
    seen = nvidia.looked_at(marks.text if marks else None)
    old = [
        kernel
        for kernel in kernels.relevant
        if (made := kernels.initramfs_changed_at_s.get(kernel)) is not None
        and seen.get(kernel) != made
        and (config is None or made <= config.changed_at_s)
    ]
    if old:

        def rebuild() -> Commands:
            yield nvidia.without_nouveau(old)

        yield Step(
            "take nouveau out of the initramfs", "an initramfs without nouveau",
            f"an older one for {', '.join(old)}", rebuild,
            waits_for="the file that keeps it out" if config is None else None,
            remedy=f"read {packages.LOG}, and `grep -r nouveau /etc/initramfs-tools` on the host",
        )  # fmt: skip
    uses = have[KernelModules].loaded.get("nouveau")
    if uses is None:
        return
    bound = [device.address for device in have[PciDevices] if device.driver == "nouveau"]
    waits_for = "the initramfs" if old else None
    if bound or uses:

        def reboot() -> Commands:
            yield boot.reboot("nouveau holds the GPUs", have.spec.reboot_timeout_s)

        yield Step(
            "reboot without nouveau", "nouveau not loaded",
            f"nouveau on {', '.join(bound) or 'no GPU'}, used {uses} times", reboot,
            disrupts=True, reboots=True, waits_for=waits_for,
            remedy="look for what loads it: `journalctl -b -g nouveau`",
        )  # fmt: skip
        return

    def unload() -> Commands:
        yield StringCommand("modprobe", "-r", "nouveau")

    yield Step(
        "unload nouveau", "nouveau not loaded", "nouveau loaded, on no GPU", unload,
        waits_for=waits_for, remedy="look what uses it: `lsmod`, `fuser -v /dev/dri/*`",
    )  # fmt: skip


def loaded(spec: NodeSpec, have: Have, pending: str | None) -> Iterator[Step]:
    """The wanted module loaded, now and at every boot; another one leaves only with a reboot."""
    version, driver = spec.nvidia_driver_version, have[NvidiaDriver]
    peermem = bool(spec.hca_count) and ofed.gpudirect_mode(spec, have) == "peermem"
    wanted = ("nvidia", "nvidia_uvm", *(("nvidia_peermem",) if peermem else ()))
    text = HEADER + "".join(f"{name}\n" for name in wanted)
    if driver.version is not None and (driver.version, driver.open_module) != (version, True):
        flavour = "open" if driver.open_module else "proprietary"

        def reboot() -> Commands:
            yield boot.reboot(
                f"driver {driver.version} is loaded, {version} is installed", spec.reboot_timeout_s
            )

        yield Step(
            "reboot into the new driver", f"open {version} loaded",
            f"{flavour} {driver.version} loaded", reboot, disrupts=True, reboots=True,
            waits_for=pending, remedy="look at `modinfo nvidia` and `dkms status` on the host",
        )  # fmt: skip
        return
    now = {"nvidia": driver.version is not None, "nvidia_uvm": driver.uvm}
    now["nvidia_peermem"] = driver.peermem
    missing = [name for name in wanted if not now[name]]
    at_boot = written("", MODULES_LOAD, text, have[Files])
    if not missing and at_boot is None:
        return

    def apply() -> Commands:
        if missing:
            yield nvidia.load(missing)
        # Only a module that loads is asked for at boot: one that does not fails the boot's unit.
        if at_boot is not None:
            yield put(MODULES_LOAD, text)

    yield Step(
        "load the driver", f"{', '.join(wanted)} loaded, now and at boot",
        f"no {', '.join(missing)}" if missing else f"{MODULES_LOAD} differs", apply,
        waits_for=pending, diff=at_boot.diff if at_boot else None,
        remedy="look at `dmesg` on the host",
    )  # fmt: skip


def persistent(have: Have, pending: str | None) -> Iterator[Step]:
    """Persistence mode on: the daemon runs, runs at boot, and really turns it on."""
    daemon, config = have[NvidiaPersistenced], have[Files][DROP_IN]
    gpus = have.known(Gpus)
    off = [gpu.pci_address for gpu in gpus.gpus if not gpu.persistence_mode] if gpus else []
    if daemon.installed and daemon.command is None:
        daemon_command = "/usr/bin/nvidia-persistenced"
    else:
        daemon_command = daemon.command or ""
    drop_in = nvidia.persistenced_drop_in(daemon_command)
    # Of a unit that is not there yet it is not known what it lacks.
    differs = daemon.installed and (
        config is not None or daemon.static or not daemon.persistence_on
    )
    config_step = written("", DROP_IN, drop_in, have[Files]) if differs else None
    if not daemon.installed:
        lacks = ["not installed"]
    else:
        lacks = [
            *(["a unit that leaves it off"] if config_step else []),
            *([] if daemon.enabled else ["not enabled"]),
            *([] if daemon.active else ["not running"]),
            *([f"off on {', '.join(off)}"] if off else []),
        ]
    if not lacks:
        return
    # A run may have died between the drop-in and systemd's reading of it.
    new_unit = config_step is not None or daemon.static or not daemon.persistence_on

    def apply() -> Commands:
        if config_step is not None:
            yield put(DROP_IN, drop_in)
        yield nvidia.restart_persistenced(new_unit=new_unit)

    yield Step(
        "turn persistence mode on", "nvidia-persistenced enabled, running, mode on",
        ", ".join(lacks), apply,
        disrupts=new_unit,  # systemd reads all units anew (failures RTM-13)
        waits_for=pending or (None if daemon.installed else "the packages"),
        diff=config_step.diff if config_step else None,
        remedy="read `journalctl -u nvidia-persistenced`",
    )  # fmt: skip


def judged(spec: NodeSpec, have: Have) -> Iterator[Refusal]:
    """Loaded, installed and wanted are one version, and every GPU is there."""
    driver, gpus = have[NvidiaDriver], have[Gpus]
    if driver.library != spec.nvidia_driver_version:
        yield Refusal(
            "nvidia driver", f"libnvidia-ml {spec.nvidia_driver_version}",
            driver.library or "none", "look which package, or what else, brought it", unfit=True,
        )  # fmt: skip
    present = sorted(device.address for device in have[PciDevices] if device.is_gpu)
    if len(driver.gpus) < spec.gpu_count:
        lost = sorted(set(present) - set(driver.gpus))
        yield Refusal(
            "nvidia driver", f"{spec.gpu_count} GPUs driven",
            f"{len(driver.gpus)}" + (f", without {', '.join(lost)}" if lost else ""),
            LOST, unfit=True,
        )  # fmt: skip
    elif not gpus.usable:
        yield Refusal(
            "nvidia driver", "a library that talks to the driver", gpus.reason or "unknown",
            next(
                (remedy for word, remedy in REMEDIES.items() if word in (gpus.reason or "")),
                "run `nvidia-smi` on the host, and look at `dmesg`",
            ),
            unfit=True,
        )  # fmt: skip


@deploy("NVIDIA driver")
def nvidia_driver() -> None:
    node.converge(name="Converge the NVIDIA driver", phases=[preflight, sys.modules[__name__]])
