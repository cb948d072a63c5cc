"""The system: release, kernels, identity, clock, space, boot."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.grub import LINK, default_kernel
from facts.value import ABSENT, FactValue, each, grep_where_there, listable, sections, where_there


@dataclass(frozen=True, slots=True)
class OsReleaseState(FactValue):
    id: str
    """``debian``, ``ubuntu``, ``rocky`` ..."""
    version: str
    """``13``, ``24.04``; empty where there is none (Debian testing)."""
    codename: str
    """``trixie``, ``noble``; empty where there is none."""
    name: str
    """For people."""


class OsRelease(FactBase[OsReleaseState]):
    """
    ``/etc/os-release``.

    .. code:: python

        OsReleaseState("debian", "13", "trixie", name="Debian GNU/Linux 13 (trixie)")
    """

    def command(self) -> str:
        return "cat /etc/os-release"

    def process(self, output: list[str]) -> OsReleaseState:
        return parse_os_release(output)


SETTING = re.compile(r"\s*(\w+)=(.*)")


def parse_os_release(lines: list[str]) -> OsReleaseState:
    """Read ``KEY=value`` lines, quoted as a shell would. Source: os-release(5)."""
    values: dict[str, str] = {}
    settings = [line for line in lines if line.strip() and not line.startswith("#")]
    for match in each(settings, SETTING, "setting of os-release"):
        try:
            values[match[1]] = " ".join(shlex.split(match[2]))
        except ValueError:
            raise FactProcessError(f"a quote is not closed in {match[0]!r}") from None
    if "ID" not in values:
        raise FactProcessError("os-release has no ID")
    return OsReleaseState(
        id=values["ID"],
        version=values.get("VERSION_ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        name=values.get("PRETTY_NAME", values["ID"]),
    )


@dataclass(frozen=True, slots=True)
class MachineState(FactValue):
    architecture: str
    """``x86_64``, ``aarch64``."""
    machine_id: str | None
    """``None`` if the host has none: it then gets another one at every boot."""
    product_uuid: str | None
    """Of the firmware, lower case; ``None`` if it has none."""
    boot_id: str
    uptime_s: float
    secure_boot: bool | None
    """``None`` without UEFI."""
    cgroup_v2: bool
    cpus: int
    memory_mib: int


class Machine(FactBase[MachineState]):
    """
    What this machine is, and since when it runs.

    .. code:: python

        MachineState(architecture="x86_64", machine_id="4c1e...", secure_boot=False, ...)
    """

    def command(self) -> str:
        # Four bytes of attributes, then the value. Source: UEFI 2.10, sections 3.3 and 8.2.
        secure = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        return (
            "uname -m && cat /proc/sys/kernel/random/boot_id /proc/uptime && "
            f"echo '## machine-id' && {where_there('/etc/machine-id', 'cat')} && echo '## uuid' && "
            f"{where_there('/sys/class/dmi/id/product_uuid', 'cat')} && echo '## secure boot' && "
            f"{{ if [ ! -d /sys/firmware/efi ]; then echo {ABSENT}; elif [ -e {secure} ]; then "
            f"od -An -t u1 {secure}; else echo 0; fi; }} && "
            "echo '## cgroup' && stat -fc %T /sys/fs/cgroup && echo '## size' && nproc && "
            "grep MemTotal: /proc/meminfo"
        )

    def process(self, output: list[str]) -> MachineState:
        return parse_machine(output)


def parse_machine(output: list[str]) -> MachineState:
    """Read what ``Machine.command`` printed."""
    parts = sections(["## first", *output])
    try:
        architecture, boot_id, uptime = parts["first"]
        secure = parts["secure boot"][0].split()
        return MachineState(
            architecture=_word(architecture),
            machine_id=_identity(parts["machine-id"]),
            product_uuid=_identity(parts["uuid"]),
            boot_id=_word(boot_id),
            uptime_s=float(uptime.split()[0]),
            secure_boot=None if secure == [ABSENT] else int(secure[-1]) == 1,
            cgroup_v2=_word(*parts["cgroup"]) == "cgroup2fs",
            cpus=int(parts["size"][0]),
            memory_mib=int(parts["size"][1].split()[1]) // 1024,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise FactProcessError(f"no machine in {output!r}: {error}") from error


def _word(text: str) -> str:
    (word,) = text.split()
    return word


def _identity(lines: list[str]) -> str | None:
    text = _word(lines[0]).lower() if lines and lines[0].strip() else ""
    # An image that asks for a new id at its first boot says so. Source: machine-id(5).
    return None if text in ("", "uninitialized") else text


@dataclass(frozen=True, slots=True)
class ClockState(FactValue):
    epoch_s: float
    """The host's clock."""
    offset_s: float
    """How far it is ahead of ours, as far as that can be told: reading and answer take time."""


class Clock(FactBase[ClockState]):
    """
    The host's clock beside ours.

    .. code:: python

        ClockState(epoch_s=1796058000.5, offset_s=-0.2)
    """

    def command(self) -> str:
        return "date +%s.%N"

    def process(self, output: list[str]) -> ClockState:
        try:
            epoch_s = float(output[0])
        except ValueError:
            raise FactProcessError(f"no time in {output[0]!r}") from None
        return ClockState(epoch_s=epoch_s, offset_s=round(epoch_s - time.time(), 1))


class DiskFree(FactBase[dict[str, int]]):
    """
    Free space for root in MiB, by the folder it was asked for.

    .. code:: python

        {"/": 51200, "/boot": 700, "/var": 51200}
    """

    FOLDERS = ("/", "/boot", "/var")

    def command(self) -> str:
        return f"df -Pm {' '.join(self.FOLDERS)}"

    def process(self, output: list[str]) -> dict[str, int]:
        return parse_disk_free(output)


def parse_disk_free(output: list[str]) -> dict[str, int]:
    """Read POSIX ``df`` output, whose lines come in the order in which the folders were named."""
    lines = output[1:]
    if len(lines) != len(DiskFree.FOLDERS):
        raise FactProcessError(f"want {len(DiskFree.FOLDERS)} file systems, have {output!r}")
    try:
        return {
            folder: int(line.split()[3])
            for folder, line in zip(DiskFree.FOLDERS, lines, strict=True)
        }
    except (ValueError, IndexError):
        raise FactProcessError(f"no free space in {output!r}") from None


@dataclass(frozen=True, slots=True)
class KernelsState(FactValue):
    running: str
    next_boot: str | None
    """What the boot loader would start now, ``None`` if that could not be told."""
    installed: tuple[str, ...]
    """Versions with an image in ``/boot``."""
    headers: tuple[str, ...]
    """Versions with headers to build modules against."""
    initramfs_changed_at_s: dict[str, int]
    """Time of each version's initramfs."""
    compiler: str | None
    """That built the running kernel, as in ``gcc-14 14.2.0``."""
    peer_memory: bool
    """Whether the kernel offers the peer-memory API now (``ib_register_peer_memory_client``)."""

    @property
    def relevant(self) -> tuple[str, ...]:
        """Kernels that have to work: the running one and the next boot's, or all of them."""
        if self.next_boot is None:
            return tuple(dict.fromkeys([self.running, *self.installed]))
        return tuple(dict.fromkeys([self.running, self.next_boot]))


MENU_LINES = "grep -hE '^[[:space:]]*(set default=|menuentry |submenu |linux|function |})'"
STAMPS = "stat -c '%Y %n'"
CHOICES = "grep -a '_entry='"
PEER_MEMORY = "grep -c 'symbol:ib_register_peer_memory_client '"


class Kernels(FactBase[KernelsState]):
    """
    Kernels: running, next to be booted, installed; with their headers and initramfs.

    .. code:: python

        KernelsState(running="6.12.57+deb13-amd64", next_boot="6.12.57+deb13-amd64", ...)
    """

    def command(self) -> str:
        return (
            "uname -r && cat /proc/version && echo '## images' && "
            # A pattern stands for itself where nothing is of its form.
            f"{listable('/boot')} && {{ ls -1d /boot/vmlinuz-* || true; }} && echo '## link' && "
            "{ readlink /vmlinuz || readlink /boot/vmlinuz || true; } && echo '## headers' && "
            f"{listable('/lib/modules')} && {{ ls -1d /lib/modules/*/build/. || true; }} && "
            "echo '## initramfs' && for f in /boot/initrd.img-*; do "
            f"{where_there('$f', STAMPS)} || exit; done && echo '## grub' && "
            f"{grep_where_there('/boot/grub/grub.cfg', MENU_LINES)} && echo '## grubenv' && "
            f"{grep_where_there('/boot/grub/grubenv', CHOICES)} && echo '## peer memory' && "
            # Not /proc/kallsyms: to print its 200,000 lines takes seconds.
            f"{grep_where_there('/lib/modules/$(uname -r)/modules.symbols', PEER_MEMORY)} && "
            "echo '## end'"
        )

    def process(self, output: list[str]) -> KernelsState:
        return parse_kernels(output)


IMAGE = re.compile(r"/boot/vmlinuz-(\S+)")
LINKED = re.compile(r"(?:\S*/)?vmlinuz-\S+")
CHOICE = re.compile(r"\w*_entry=.*")
HEADERS = re.compile(r"/lib/modules/([^/]+)/build/\.")
# What the command's grep lets through.
MENU = re.compile(r"\s*(?:set default=|menuentry |submenu |linux|function |}).*")


def parse_kernels(output: list[str]) -> KernelsState:
    """Read what ``Kernels.command`` printed."""
    parts = sections(["## first", *output])
    if "end" not in parts or len(parts["first"]) != 2:
        raise FactProcessError("the list of kernels ended early")
    running, version = parts["first"][0].strip(), parts["first"][1]
    if version.split()[:3] != ["Linux", "version", running]:
        raise FactProcessError(f"kernel {running!r} and {version!r} are two")
    images = tuple(match[1] for match in each(parts["images"], IMAGE, "kernel"))
    each(parts["link"], LINKED, "kernel")
    each(parts["grub"], MENU, "line of the boot menu")
    each(parts["grubenv"], CHOICE, "choice of the boot menu")
    stamps = (line.split(" ", 1) for line in parts["initramfs"])
    return KernelsState(
        running=running,
        next_boot=_next_boot(parts, images),
        installed=images,
        headers=tuple(match[1] for match in each(parts["headers"], HEADERS, "headers")),
        initramfs_changed_at_s={path.partition("initrd.img-")[2]: int(at) for at, path in stamps},
        compiler=_compiler(version),
        peer_memory=any(int(count) for count in parts["peer memory"]),
    )


def _next_boot(parts: dict[str, list[str]], images: tuple[str, ...]) -> str | None:
    """The boot loader's word, where it has a menu; else Debian's link to the newest kernel."""
    if parts["grub"]:
        kernel = default_kernel(parts["grub"], parts["grubenv"])
        if kernel != LINK:
            return kernel if kernel in images else None
    if parts["link"]:
        kernel = parts["link"][0].rpartition("vmlinuz-")[2]
        return kernel if kernel in images else None
    return images[0] if len(images) == 1 else None


# Linux version 6.12.57+deb13-amd64 (...) (x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, GNU
# Linux version 6.8.0-45-generic (...) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23) 13.2.0, GNU ld
# Linux version 5.14.0-503.el9 (...) (gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-2), GNU ld
COMPILER = re.compile(
    r"\((?:\S*?-)?(gcc(?:-\d+)?|clang) (?:version )?(?:\([^)]*\) )?(\d+\.\d+\.\d+)"
)


def _compiler(version: str) -> str | None:
    match = COMPILER.search(version)
    return f"{match[1]} {match[2]}" if match else None
