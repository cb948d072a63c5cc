"""The readings' commands themselves, by a real shell on a made-up host: unknown is not absent."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import FactBase

from facts.files import Files
from facts.infiniband import Infiniband, InfinibandDevice, InfinibandPort
from facts.modules import KernelModules
from facts.nvidia import NvidiaDriver
from facts.os import Kernels
from facts.system import Swap, Sysctls
from facts.xid import Xids, XidsState

PORT = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand"}
PORT |= {"rate": "200 Gb/sec (4X HDR)"}
ADAPTER = "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0"
PORT_1 = f"{ADAPTER}/infiniband/mlx5_0/ports/1"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root folder of a host with one adapter, a driver, and modules that are built in."""
    release = os.uname().release
    texts = {
        f"{ADAPTER}/infiniband/mlx5_0/node_guid": "0011:2233:4455:6677",
        **{f"{PORT_1}/{name}": text for name, text in PORT.items()},
        f"{ADAPTER}/net/ib0/flags": "0x1003",
        "sys/class/infiniband_verbs/abi_version": "6",
        "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
        "sys/class/infiniband_mad/abi_version": "5",
        "sys/class/infiniband_mad/umad0/ibdev": "mlx5_0",
        "sys/class/infiniband_mad/issm0/ibdev": "mlx5_0",
        "sys/module/ib_core/parameters/netns_mode": "Y",
        "dev/infiniband/uverbs0": "",
        "dev/infiniband/umad0": "",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
        "580.178.04  Release Build",
        "proc/modules": "nvidia 100 2 - Live 0x0",
        "proc/sys/net/ipv4/ip_forward": "1",
        f"lib/modules/{release}/modules.builtin": "kernel/fs/ext4/ext4.ko",
        f"lib/modules/{release}/modules.symbols": "alias symbol:other ib_core",
        "boot/grub/grub.cfg": "nothing",
        "boot/grub/grubenv": "saved_entry=0",
        "proc/version": f"Linux version {release} (x) (gcc (Debian 14.2.0-19) 14.2.0, GNU ld)",
        "proc/swaps": "Filename Type Size Used Priority",
        "etc/fstab": "/dev/sda3 none swap sw 0 0",
    }
    for name, text in texts.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text and f"{text}\n")
    (tmp_path / "sys/class/infiniband").mkdir()
    device = tmp_path / ADAPTER / "infiniband/mlx5_0"
    (tmp_path / "sys/class/infiniband/mlx5_0").symlink_to(device)
    (device / "device").symlink_to(tmp_path / ADAPTER)
    return tmp_path


def ask(root: Path, fact: FactBase[Any]) -> Any:
    """What is read of the host below *root*; ``None`` if the command ends with an error."""
    script = str(fact.command()).replace(
        "systemctl list-units --type=swap --all --plain --no-legend --no-pager", "true"
    )
    for folder in (
        "/sys/class",
        "/sys/module",
        "/dev/infini",
        "/lib/modules",
        "/proc/",
        "/etc/",
        "/boot",
    ):
        script = script.replace(folder, f"{root}{folder}")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    if done.returncode:
        return None
    return fact.process([line.replace(str(root), "") for line in done.stdout.splitlines() if line])


def test_rdma_devices_are_read_from_their_files(host):
    have = ask(host, Infiniband())
    port = InfinibandPort(1, "ACTIVE", "LinkUp", "infiniband", 200.0)
    assert have.devices == (
        InfinibandDevice(
            "mlx5_0", "0000:41:00.0", "0011:2233:4455:6677", (port,), ("ib0",), "uverbs0",
            ("umad0",),
        ),
    )  # fmt: skip
    assert (have.rdma_cm, have.netns_shared) == (False, True)
    assert have.settled_s in range(60)


UNREADABLE = (
    (Infiniband, f"{ADAPTER}/infiniband/mlx5_0/node_guid"),
    *((Infiniband, f"{PORT_1}/{name}") for name in PORT),
    (Infiniband, "sys/class/infiniband_verbs/uverbs0/ibdev"),
    (Infiniband, "sys/class/infiniband_mad/umad0/ibdev"),
    (Infiniband, "sys/module/ib_core/parameters/netns_mode"),
    (KernelModules, f"lib/modules/{os.uname().release}/modules.builtin"),
    *((Kernels, f"boot/grub/{name}") for name in ("grub.cfg", "grubenv")),
    (Kernels, f"lib/modules/{os.uname().release}/modules.symbols"),
    (NvidiaDriver, "proc/driver/nvidia/version"),
    (Sysctls, "proc/sys/net/ipv4/ip_forward"),
    (Swap, "etc/fstab"),
)


@pytest.mark.parametrize(
    ("fact", "name"), UNREADABLE, ids=lambda value: getattr(value, "__name__", str(value)[-30:])
)
def test_a_file_that_is_there_and_cannot_be_read_makes_the_reading_fail(host, fact, name):
    assert ask(host, fact()) is not None
    (host / name).unlink()
    (host / name).mkdir()  # which root cannot read as a file either
    assert ask(host, fact()) is None


@pytest.mark.parametrize("folder", ["boot", "lib/modules"])
def test_kernels_in_a_folder_that_cannot_be_listed_are_unknown(host, folder):
    release = os.uname().release
    (host / f"lib/modules/{release}/build").mkdir()
    for name in ("vmlinuz", "initrd.img"):
        (host / f"boot/{name}-{release}").touch()
    have = ask(host, Kernels())
    assert (have.installed, have.headers) == ((release,), (release,))
    assert have.initramfs_changed_at_s.keys() == {release}
    shutil.rmtree(host / folder)
    assert not (ask(host, Kernels()).headers if "lib" in folder else ask(host, Kernels()).installed)
    (host / folder).touch()  # which root cannot list either
    assert ask(host, Kernels()) is None


def test_a_port_none_of_whose_files_can_be_read_is_not_taken_for_absent(host):
    for name in PORT:
        (host / PORT_1 / name).unlink()
    assert ask(host, Infiniband()) is None


@pytest.mark.parametrize("fact", [Infiniband, KernelModules, Kernels, NvidiaDriver, Sysctls, Swap])
def test_what_is_not_there_is_read_as_absent(tmp_path, fact):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").touch()
    (tmp_path / "proc/swaps").touch()
    (tmp_path / "proc/version").write_text(f"Linux version {os.uname().release} x\n")
    assert ask(tmp_path, fact()) is not None


def test_ib_core_without_a_device(tmp_path):
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    have = ask(tmp_path, Infiniband())
    assert (have.devices, have.settled_s, have.netns_shared) == ((), None, None)


def test_a_star_stands_for_the_files_that_are_there_and_for_no_other(tmp_path):
    (tmp_path / "it's one").mkdir()
    (tmp_path / "it's one/hosts.toml").write_text("a = 1\n")
    (tmp_path / "empty").mkdir()
    pattern = f"{tmp_path}/*/hosts.toml"
    script = Files().command(files=(pattern, "/etc/passwd*x", "/none"))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    have = Files().process(done.stdout.splitlines())
    there = {path: file.text for path, file in have.items() if file}
    assert there == {f"{tmp_path}/it's one/hosts.toml": "a = 1\n"}


BANNER = "Linux version 6.12.57 (x) (gcc)"
FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
DOUBLE_BIT = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=x, DBE (double bit error) in bank 3"
OF_USERS = [f"NVRM: Xid (PCI:0000:3b:00): 31, pid={n}, name=python3, MMU Fault" for n in range(999)]
# prctl(PR_SET_NAME), then a segmentation fault in a file of any name.
OF_PROCESSES = [
    "NVRM: Xid[4242]: segfault at 0 ip 0 sp 0 error 4 in x[5581+1000]",
    "NVRM: Xid (PCI:[4242]: segfault at 0 ip 0 sp 0 error 4 in 0000:3b:00): 79, [5581+1000]",
    "Linux version 6[4242]: segfault at 0 ip 0 sp 0 error 4 in x[5581+1000]",
    "audit: type=1400 comm=NVRM: Xid (PCI:0000:3b:00): 79, x",
    "Out of memory: Killed process 7 (NVRM: Xid (PCI:) total-vm:1kB",
]


@pytest.fixture
def xids(tmp_path: Path) -> Callable[..., XidsState | None]:
    """What is read of a ring buffer and a journal; ``None``: there is no such thing."""
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "cat", "awk"):
        there = shutil.which(tool)
        assert there is not None
        (tmp_path / "bin" / tool).symlink_to(there)

    def read(ring: list[str] | None, journal: list[str] | None = None) -> XidsState | None:
        for tool, lines in (("dmesg", ring), ("journalctl", journal)):
            if lines is None:
                continue
            (tmp_path / tool).write_text("".join(f"{line}\n" for line in lines))
            (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\ncat {tmp_path / tool}\n")
            (tmp_path / "bin" / tool).chmod(0o755)
        script = ["sh", "-c", Xids().command()]
        path = {"PATH": str(tmp_path / "bin"), "LC_ALL": "C"}
        done = subprocess.run(script, capture_output=True, text=True, env=path)
        return None if done.returncode else Xids().process(done.stdout.splitlines())

    return read


def numbers(state: XidsState | None) -> tuple[set[int], bool] | None:
    return state and ({xid.number for xid in state.errors}, state.whole)


@pytest.mark.parametrize(
    ("ring", "journal", "want"),
    [
        ([BANNER], None, (set(), True)),
        (["microcode: updated early", BANNER, DOUBLE_BIT, *OF_USERS], None, ({48, 31}, True)),
        ([BANNER, *OF_PROCESSES, FALLEN, "NVRM: loading"], None, ({79}, True)),
        ([f"[    T1] {BANNER}", f"[   T77] {FALLEN}"], None, ({79}, True)),
        (OF_USERS, [BANNER, DOUBLE_BIT, *OF_USERS], ({31, 48}, True)),
        ([FALLEN], [BANNER], ({79}, True)),
        (OF_USERS, ["usb 1-1: new", DOUBLE_BIT], ({31, 48}, False)),
        (OF_USERS, None, ({31}, False)),
        ([*OF_PROCESSES, FALLEN], [], ({79}, False)),
        (None, [BANNER], None),
    ],
    ids=[
        "none", "DRV-15 washed away by users'", "lines of processes", "lines with their thread",
        "DRV-15 only in the journal", "not in the journal yet", "journal without its beginning",
        "no journal", "empty journal", "no dmesg",
    ],
)  # fmt: skip
def test_xids_are_read_from_the_boot_on_and_only_the_drivers(xids, ring, journal, want) -> None:
    assert numbers(xids(ring, journal)) == want
