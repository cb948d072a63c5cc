"""Mechanics of the NVIDIA driver: its packages as a family, DKMS, initramfs, persistence daemon."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from pyinfra.api import StringCommand

from facts.packages import PackagesState
from operations import packages
from operations.systems import System

FAMILY = re.compile(
    r"^(nvidia-|libnvidia-|libcuda|libnvcuvid|libxnvctrl|cuda-drivers|xserver-xorg-video-nvidia|"
    r"firmware-nvidia|linux-modules-nvidia)"
)
DRIVER_VERSION = re.compile(r"^(?:\d+:)?(\d{3}\.\d{2,3}(?:\.\d{2})?)-")
PINNING = "nvidia-driver-pinning-"

# Debian's and NVIDIA's DKMS trees; the newest log is the one of the build that failed.
EXPLAIN = (
    "f=$(ls -t /var/lib/dkms/nvidia*/*/build/make.log 2>/dev/null | head -n 1); "
    '[ -z "$f" ] || { echo "nvidia driver: want its modules built, have errors in $f:"; '
    "grep -m 3 -nE 'error:|Error [0-9]|unrecognized|No rule|No such file|check failed' \"$f\"; "
    'echo "kernel built with: $(cat /proc/version)"; '
    'echo "compiler here: $(cc --version | head -n 1)"; '
    "} ; :"
)

BLACKLIST = (
    "# Written by Rackwright (deploys/phases/nvidia_driver.py). Local changes are lost.\n"
    '# Source: NVIDIA Driver Installation Guide 620, "Disabling nouveau" (read 2026-11-30).\n'
    "blacklist nouveau\n"
    "options nouveau modeset=0\n"
)

LOOKED_AT = "/var/lib/rackwright/initramfs-without-nouveau"
"""On the host: ``KERNEL MTIME`` of each initramfs that was found, or made, without nouveau."""


def of_the_driver(name: str) -> bool:
    """Whether a package belongs to the driver, by its name."""
    return FAMILY.match(name) is not None and "container" not in name


def family(installed: PackagesState) -> dict[str, str]:
    """Installed packages of the driver, and the driver version that each is of."""
    found: dict[str, str] = {}
    for name, package in installed.packages.items():
        match = DRIVER_VERSION.match(package.version)
        if match and of_the_driver(name):
            found[name] = match[1]
    return found


def wants(system: System, version: str, installed: PackagesState) -> dict[str, str | None]:
    """
    Packages that have to be of *version*: those of the driver, and others of it that are there.

    Two versions among them make a driver that works until the next reboot, or not even that.
    """
    pinning = system.driver_pinning.format(version=version)
    others = [
        name
        for name, now in family(installed).items()
        if now != version and not name.startswith(PINNING)
    ]
    return dict.fromkeys([pinning, *system.driver_packages, *others], version)


def before(system: System, version: str, installed: PackagesState, headers: Sequence[str]) -> str:
    """Shell that has to come before the driver: headers to build against, and apt pinned to it."""
    pinning = system.driver_pinning.format(version=version)
    stale = [name for name in installed.packages if name.startswith(PINNING) and name != pinning]
    remove = f"{packages.apt(f'purge {packages.words(stale)}')} && " if stale else ""
    names = packages.words([packages.argument(pinning, version), *headers])
    return f"{remove}{packages.install(f'install {names}')}"


def headers(
    system: System, kernels: Sequence[str], with_headers: Sequence[str], installed: PackagesState
) -> list[str]:
    """Packages of kernel headers that are missing, for *kernels* and for those to come."""
    names = [
        system.headers.format(kernel=kernel) for kernel in kernels if kernel not in with_headers
    ]
    names += [
        meta
        for image, meta in system.headers_meta.items()
        if installed.version(image) and not installed.version(meta)
    ]
    return names


def build(version: str, kernels: Sequence[str]) -> StringCommand:
    """Build and install the modules for *kernels*, saying why if it cannot be done."""
    steps = " && ".join(
        f"dkms install --force -m nvidia -v {shlex.quote(version)} -k {shlex.quote(kernel)}"
        for kernel in kernels
    )
    return packages.command(steps, explain=EXPLAIN)


def load(modules: Sequence[str]) -> StringCommand:
    """Load modules, with the kernel's own words if one is refused."""
    names = packages.words(modules)
    return StringCommand(
        f"modprobe -a {names} || {{ code=$?; dmesg | grep -iE 'nvidia|nvrm|rejected|symbol' | "
        "tail -n 15 >&2; exit $code; }"
    )


def restart_persistenced(*, new_unit: bool) -> StringCommand:
    """
    Let the daemon run, at boot too; in its own words if it cannot.

    + new_unit: whether systemd has to read its units anew, which can take the GPUs from pods
    """
    unit = "nvidia-persistenced.service"
    # systemd's own lines say only that it failed.
    return StringCommand(
        f"{'systemctl daemon-reload && ' if new_unit else ''}"
        f"systemctl enable --no-reload {unit} && systemctl restart {unit} || "
        f"{{ code=$?; journalctl -u {unit} -n 20 --no-pager -o cat | grep -iE 'fail|error|unable' "
        "| grep -v -e 'Failed with result' -e 'Failed to start' | tail -n 1 >&2; exit $code; }"
    )


def without_nouveau(kernels: Sequence[str]) -> StringCommand:
    """Rebuild the initramfs of each kernel that has nouveau in it; note what was looked at."""
    names = packages.words(kernels)
    # Looking is some seconds, rebuilding minutes: most initramfs have no graphics driver.
    script = (
        f"failed=; for k in {names}; do i=/boot/initrd.img-$k; "
        # One that cannot be listed, for want of its compressor, is not one without.
        "if ! list=$(lsinitramfs $i) || printf '%s\\n' \"$list\" | grep -q '/nouveau\\.ko'; then "
        'update-initramfs -u -k $k || failed=1; fi; done; [ -z "$failed" ] && '
        f'for k in {names}; do echo "$k $(stat -c %Y /boot/initrd.img-$k)"; done '
        f">{LOOKED_AT}.new && "
        f"mv -f {LOOKED_AT}.new {LOOKED_AT}"
    )
    return packages.command(script)


def looked_at(text: str | None) -> Mapping[str, int]:
    """Read ``LOOKED_AT``."""
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def persistenced_drop_in(command: str) -> str:
    """
    Drop-in that makes the daemon turn persistence mode on, and systemd start it at boot.

    Ubuntu's unit is static and runs with ``--no-persistence-mode``.

    + command: of the unit as it is
    """
    words = [word for word in command.split() if not word.endswith("persistence-mode")]
    return (
        "# Written by Rackwright (deploys/phases/nvidia_driver.py). Local changes are lost.\n"
        f"[Service]\nExecStart=\nExecStart={' '.join(words)} --persistence-mode\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
