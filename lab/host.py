"""What the lab host must have: programs, and libvirt's daemons."""

from __future__ import annotations

import grp
import os
import shutil
import time
from pathlib import Path

from rich.console import Console

from lab.command import CommandError, run
from lab.errors import LabError
from lab.progress import step

URI = "qemu:///system"
DAEMON_TIMEOUT_S = 30.0

# Program -> the Debian package that has it.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "libvirtd": "libvirt-daemon-system",
    "virtlogd": "libvirt-daemon-system",
    "virsh": "libvirt-clients",
    "dnsmasq": "dnsmasq-base",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gpg": "gnupg",
    "apt-ftparchive": "apt-utils",
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "iptables": "iptables",  # libvirt's networks
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
}

# File -> the Debian package that has it: what others only recommend, or what is no program.
FILES = {
    "/usr/include/stdlib.h": "libc6-dev",
    "/usr/include/seccomp.h": "libseccomp-dev",
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so": (
        "libvirt-daemon-driver-qemu"
    ),
}
SUPERUSER_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def missing_packages() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{SUPERUSER_PATH}"
    programs = {p for program, p in PROGRAMS.items() if not shutil.which(program, path=path)}
    files = {package for file, package in FILES.items() if not Path(file).exists()}
    return sorted(programs | files)


def check(console: Console, *, install: bool) -> None:
    """Root, and the programs; those missing are installed only if asked."""
    if os.geteuid() != 0:
        raise LabError("lab: want root, for the bridge and the image, have a user; run it by sudo")
    missing = missing_packages()
    if not missing:
        return
    argv = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if not install:
        raise LabError(
            f"lab: want {', '.join(missing)} installed, have them missing; "
            f"run: {' '.join(argv)} (or: python -m lab up --install)"
        )
    with step(console, f"install {' '.join(missing)}"):
        run(["apt-get", "update"], timeout_s=600)
        run(argv, timeout_s=1200, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
        if "docker-registry" in missing and Path("/run/systemd/system").is_dir():
            # The package starts a registry of its own, on the port of every address.
            run(["systemctl", "disable", "--now", "docker-registry.service"])


def virsh(*arguments: str | Path, timeout_s: float = 60.0) -> str:
    return run(["virsh", "--connect", URI, "--quiet", *arguments], timeout_s=timeout_s)


def libvirt_answers() -> bool:
    try:
        virsh("uri", timeout_s=10)
    except CommandError:
        return False
    return True


def give_kvm_to_its_group() -> None:
    """Do what udev does, where there is none.

    libvirt asks whether QEMU's user may open the device, and its trial run of QEMU, with more
    rights, finds that it may: the two contradict each other, and libvirt repeats the trial, which
    takes seconds, at nearly every call.
    """
    device = Path("/dev/kvm")
    if not device.exists() or Path("/run/udev/control").exists():
        return
    try:
        group = grp.getgrnam("kvm")
    except KeyError:
        return
    os.chown(device, 0, group.gr_gid)
    device.chmod(0o660)


def start_libvirt() -> None:
    """Its daemons, by the init system where there is one."""
    give_kvm_to_its_group()
    if libvirt_answers():
        return
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "virtlogd.socket", "libvirtd.socket", "libvirtd.service"])
    else:
        for daemon in ("virtlogd", "libvirtd"):
            try:
                run([f"/usr/sbin/{daemon}", "--daemon"])
            except CommandError as error:
                # One that already runs holds its pid file locked; its socket is what counts.
                if "pidfile" not in str(error):
                    raise
    deadline = time.monotonic() + DAEMON_TIMEOUT_S
    while not libvirt_answers():
        if time.monotonic() > deadline:
            raise LabError(
                f"libvirt: want {URI} to answer within {DAEMON_TIMEOUT_S:g} s, have no answer; "
                "see /var/log/syslog, or run libvirtd in the foreground"
            )
        time.sleep(0.2)
