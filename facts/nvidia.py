"""The NVIDIA driver: the module that is loaded, those on disk, the library, the daemon."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, sections

# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...
NVRM_VERSION = re.compile(r"^NVRM version: .*?\s(\d+\.\d+(?:\.\d+)?)\s")

LIBRARY = "libnvidia-ml.so."


@dataclass(frozen=True, slots=True)
class NvidiaDriverState(FactValue):
    version: str | None
    """Version of the kernel module now loaded, ``None`` if it is not loaded."""
    open_module: bool
    """Whether the loaded module is the open GPU kernel module."""
    uvm: bool
    """Whether ``nvidia_uvm`` is loaded."""
    peermem: bool
    """Whether ``nvidia_peermem`` is loaded."""
    gpus: tuple[str, ...] = ()
    """PCI addresses of the GPUs that the module drives."""
    library: str | None = None
    """Version of ``libnvidia-ml.so.1``, ``None`` if it is not installed."""


class NvidiaDriver(FactBase[NvidiaDriverState]):
    """
    The NVIDIA driver now loaded, and the management library that would talk to it.

    .. code:: python

        NvidiaDriverState(version="580.178.04", open_module=True, library="580.178.04", ...)
    """

    def command(self) -> str:
        return (
            f"cat /proc/driver/nvidia/version || echo {ABSENT}; "
            "echo '## modules'; ls -1d /sys/module/nvidia_uvm /sys/module/nvidia_peermem || true; "
            "echo '## gpus'; ls -1 /proc/driver/nvidia/gpus || true; "
            # A soname's target carries the version; Debian's packages go over /etc/alternatives.
            "echo '## library'; for d in /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib; do "
            f"readlink -e $d/{LIBRARY}1 && break; done; echo '## end'"
        )

    def process(self, output: list[str]) -> NvidiaDriverState:
        return parse_driver(output)


def parse_driver(output: list[str]) -> NvidiaDriverState:
    """Read what ``NvidiaDriver.command`` printed."""
    parts = sections(["## version", *output])
    if "end" not in parts or not parts["version"]:
        raise FactProcessError("the state of the driver ended early")
    version, open_module = None, False
    if parts["version"][0] != ABSENT:
        match = NVRM_VERSION.search(parts["version"][0])
        if match is None:
            raise FactProcessError(f"no driver version in {parts['version'][0]!r}")
        version, open_module = match[1], "Open Kernel Module" in parts["version"][0]
    library = parts["library"][0].rpartition(LIBRARY)[2] if parts["library"] else None
    return NvidiaDriverState(
        version=version,
        open_module=open_module,
        uvm="/sys/module/nvidia_uvm" in parts["modules"],
        peermem="/sys/module/nvidia_peermem" in parts["modules"],
        gpus=tuple(address.lower() for address in parts["gpus"]),
        library=library or None,
    )


@dataclass(frozen=True, slots=True)
class NvidiaModule(FactValue):
    version: str
    open_module: bool


@dataclass(frozen=True, slots=True)
class NvidiaModulesState(FactValue):
    on_disk: dict[str, NvidiaModule]
    """What ``modprobe nvidia`` would load, by kernel. A kernel without it is not in here."""
    dkms: dict[str, dict[str, str]] = field(default_factory=dict)
    """State per driver version and kernel: ``built`` or ``installed``; a version that was only
    added has no kernels."""


class NvidiaModules(FactBase[NvidiaModulesState]):
    """
    The driver's kernel modules on disk, for every kernel, and DKMS's view of them.

    .. code:: python

        NvidiaModulesState(on_disk={"6.12.57+deb13-amd64": NvidiaModule("580.178.04", True)}, ...)
    """

    # modinfo may have to unpack a compressed module of 100 MB, once per kernel.
    timeout_s = 60

    def command(self) -> str:
        # dkms(8) itself takes seconds; its tree says the same: VERSION/KERNEL/ARCH is built, the
        # link kernel-KERNEL-ARCH to it is installed. Source: dkms 3.0 and 3.2, dkms.in.
        return (
            "echo '## disk'; for d in /lib/modules/*/modules.dep; do [ -e $d ] || continue; "
            "grep -q '/nvidia\\.ko' $d || continue; k=${d%/modules.dep}; k=${k##*/}; "
            'echo "$k $(modinfo -k $k -F version nvidia) $(modinfo -k $k -F license nvidia)"; '
            "done; "
            "echo '## dkms'; cd /var/lib/dkms/nvidia && ls -1d */ */*/*/ && "
            "ls -ld kernel-*; echo '## end'"
        )

    def process(self, output: list[str]) -> NvidiaModulesState:
        return parse_modules(output)


def parse_modules(output: list[str]) -> NvidiaModulesState:
    """Read what ``NvidiaModules.command`` printed."""
    parts = sections(output)
    if "end" not in parts:
        raise FactProcessError("the list of modules ended early")
    on_disk: dict[str, NvidiaModule] = {}
    for line in parts["disk"]:
        kernel, version, licence = [*line.split(" ", 2), "", ""][:3]
        if not version:
            raise FactProcessError(f"{kernel}: modinfo knows no version of nvidia")
        # Source: NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv.c at df1c9a3d.
        on_disk[kernel] = NvidiaModule(version, open_module="GPL" in licence)
    dkms: dict[str, dict[str, str]] = {}
    for line in parts["dkms"]:
        link, arrow, target = line.partition(" -> ")
        if arrow:
            # kernel-6.12.57+deb13-amd64-x86_64 -> 580.178.04/6.12.57+deb13-amd64/x86_64
            version, kernel, _ = target.rstrip("/").split("/")[-3:]
            dkms.setdefault(version, {})[kernel] = "installed"
            continue
        match link.rstrip("/").split("/"):
            case [version] if version[:1].isdigit():
                dkms.setdefault(version, {})
            case [version, kernel, _] if kernel not in ("build", "source"):
                dkms.setdefault(version, {}).setdefault(kernel, "built")
    return NvidiaModulesState(on_disk, dkms)


@dataclass(frozen=True, slots=True)
class NvidiaPersistencedState(FactValue):
    installed: bool
    active: bool
    enabled: bool
    """Whether it starts at boot."""
    static: bool
    """Whether its unit cannot be enabled, for want of an ``[Install]`` section."""
    command: str | None
    """Of its unit with all drop-ins: ``/usr/bin/nvidia-persistenced --user nvidia``."""

    @property
    def persistence_on(self) -> bool:
        """Whether it turns persistence mode on. Ubuntu's unit does not."""
        return self.command is not None and "--no-persistence-mode" not in self.command.split()


class NvidiaPersistenced(FactBase[NvidiaPersistencedState]):
    """
    The persistence daemon's unit.

    .. code:: python

        NvidiaPersistencedState(installed=True, active=True, enabled=True, command="/usr/bin/...")
    """

    def command(self) -> str:
        return (
            "systemctl show nvidia-persistenced.service "
            "--property=LoadState,ActiveState,UnitFileState,ExecStart"
        )

    def process(self, output: list[str]) -> NvidiaPersistencedState:
        return parse_persistenced(output)


# ExecStart={ path=/usr/bin/x ; argv[]=/usr/bin/x --user y ; ignore_errors=no ; start_time=...
ARGUMENTS = re.compile(r"argv\[\]=(.*?) ; ")


def parse_persistenced(output: list[str]) -> NvidiaPersistencedState:
    """Read ``Name=value`` lines of systemctl show."""
    values = dict(line.split("=", 1) for line in output if "=" in line)
    if "LoadState" not in values:
        raise FactProcessError(f"no unit in {output!r}")
    arguments = ARGUMENTS.search(values.get("ExecStart", ""))
    return NvidiaPersistencedState(
        installed=values["LoadState"] not in ("not-found", "masked"),
        active=values.get("ActiveState") == "active",
        enabled=values.get("UnitFileState") in ("enabled", "alias", "indirect"),
        static=values.get("UnitFileState") == "static",
        command=arguments[1] if arguments else None,
    )
