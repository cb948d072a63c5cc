"""The NVIDIA driver: the module that is loaded, those on disk, the library, the daemon."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, each, properties, sections, where_there

# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...
NVRM_VERSION = re.compile(r"^NVRM version: .*?\s(\d+\.\d+(?:\.\d+)?)\s")

LIBRARY = "libnvidia-ml.so."
LIBRARY_FILE = re.compile(rf"/.*/{re.escape(LIBRARY)}(\d+(?:\.\d+)*)")
MODULE = re.compile(r"/sys/module/(\w+)")
PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
# 6.12.57+deb13-amd64 580.178.04 Dual MIT/GPL
ON_DISK = re.compile(r"(\S+) (\d+(?:\.\d+)+) (\S.*)")


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
            "v=/proc/driver/nvidia/version; "
            f"if [ -e $v ]; then cat $v || exit; else echo {ABSENT}; fi; "
            "echo '## modules'; ls -1d /sys/module/nvidia_uvm /sys/module/nvidia_peermem || true; "
            f"echo '## gpus'; {where_there('/proc/driver/nvidia/gpus', 'ls -1')} || exit; "
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
    library = each(parts["library"], LIBRARY_FILE, "library")
    modules = [match[1] for match in each(parts["modules"], MODULE, "module")]
    return NvidiaDriverState(
        version=version,
        open_module=open_module,
        uvm="nvidia_uvm" in modules,
        peermem="nvidia_peermem" in modules,
        gpus=tuple(match[0].lower() for match in each(parts["gpus"], PCI_ADDRESS, "GPU")),
        library=library[0][1] if library else None,
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
    for match in each(parts["disk"], ON_DISK, "version of nvidia, as modinfo tells it,"):
        kernel, version, licence = match.groups()
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
            case [name, *_] if name.startswith("kernel-"):
                pass  # a link to a directory looks like one; where it leads is told below
            case [version] if version[:1].isdigit():
                dkms.setdefault(version, {})
            case [version, kernel, _]:
                if kernel not in ("build", "source"):
                    dkms.setdefault(version, {}).setdefault(kernel, "built")
            case _:
                raise FactProcessError(f"no module of DKMS in {line!r}")
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
    values = properties(
        output, "nvidia-persistenced.service", "LoadState", "ActiveState", "UnitFileState"
    )
    arguments = ARGUMENTS.search(values.get("ExecStart", ""))
    if arguments is None and values["LoadState"] == "loaded":
        raise FactProcessError(f"no command of nvidia-persistenced.service in {output!r}")
    return NvidiaPersistencedState(
        installed=values["LoadState"] not in ("not-found", "masked"),
        active=values["ActiveState"] == "active",
        enabled=values["UnitFileState"] in ("enabled", "alias", "indirect"),
        static=values["UnitFileState"] == "static",
        command=arguments[1] if arguments else None,
    )
