"""A bare GPU host for the phases that work on the system: base, ofed, nvidia_driver.

Its readings are written as the real commands write them, and its package manager installs: a
driver package builds modules for the kernels that have headers, a library changes its version.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodespec import NodeSpec
from tests.support.simulated_node import SimulatedFile, SimulatedHost

KEY = Path(__file__).parent.parent / "cases/keys/archive.asc"
KEY_FINGERPRINT = "A47177BA6BA57B4BAB73ECEFE15CEB7E306EA7E7"
OTHER_KEY = Path(__file__).parent.parent / "cases/keys/other.asc"

KERNEL = "6.12.57+deb13-amd64"
DRIVER = "580.178.04"
DRIVER_PACKAGES = (
    "nvidia-kernel-open-dkms", "nvidia-kernel-support", "libcuda1", "libnvidia-ml1",
    "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe",
)  # fmt: skip
REPOSITORIES = ("cuda", "docker", "container_toolkit", "kubernetes")
RDMA_PACKAGES = ("rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags")


def spec(**changes: Any) -> NodeSpec:
    """What the tests ask of a host, with *changes*."""
    values: dict[str, Any] = {
        "gpu_count": 2, "gpu_model": "A100-SXM4-40GB", "nvidia_driver_version": DRIVER,
        "hca_count": 2, "hca_model": "ConnectX-6", "hca_rate_gbps": 200,
        "kube_version": "1.36.3", "kube_api_server": "10.0.0.1:6443",
        "kube_kubeconfig": "/nowhere/kubeconfig", "kube_node_name": "gpu01",
        "cuda_repository_url": "http://mirror.test/cuda/repos/{distro}/x86_64/",
        "kubernetes_repository_url": "http://mirror.test/kubernetes/",
        **{f"{name}_repository_fingerprint": KEY_FINGERPRINT for name in REPOSITORIES},
    }  # fmt: skip
    return NodeSpec.model_validate({**values, **changes})


@dataclass
class Package:
    version: str
    held: bool = False
    status: str = "installed"


@dataclass
class Port:
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    link_layer: str = "InfiniBand"
    rate: str = "200 Gb/sec (4X HDR)"


SYSCTLS = {"net/ipv4/ip_forward": "0", "net/ipv6/conf/default/forwarding": "0"}


@dataclass
class Machine:
    """The state behind a ``SimulatedHost``."""

    machine_id: str = "4c1e"
    product_uuid: str = "2f6c"
    kernels: list[str] = field(default_factory=lambda: [KERNEL])
    running: str = KERNEL
    next_boot: str = KERNEL
    headers: set[str] = field(default_factory=lambda: {KERNEL})
    initramfs: dict[str, int] = field(default_factory=lambda: {KERNEL: 500})
    nouveau_in_initramfs: bool = False
    modules: dict[str, int] = field(default_factory=dict)
    packages: dict[str, Package] = field(default_factory=dict)
    archive: dict[str, list[str]] = field(default_factory=dict)
    """What the repositories have, once they are asked."""
    locks: list[str] = field(default_factory=list)
    interrupted: bool = False
    sources: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=lambda: dict(SYSCTLS))
    swaps: list[str] = field(default_factory=list)
    fstab: list[str] = field(default_factory=lambda: ["LABEL=root / ext4 defaults 0 1"])
    swap_units: dict[str, str] = field(default_factory=dict)
    gpu_driver: str | None = None
    """What the GPUs are bound to, if it is not nvidia."""
    gpus: list[str] = field(default_factory=lambda: ["0001:41:00.0", "0001:42:00.0"])
    lost_gpus: set[str] = field(default_factory=set)
    hcas: list[str] = field(default_factory=lambda: ["0001:51:00.0", "0001:52:00.0"])
    port: Port = field(default_factory=Port)
    loaded: str | None = None
    on_disk: dict[str, tuple[str, str]] = field(default_factory=dict)
    dkms: dict[str, dict[str, str]] = field(default_factory=dict)
    dkms_fails: bool = False
    library: str | None = None
    persistenced: dict[str, str] | None = None
    persistence_mode: bool = False
    peer_memory: bool = False
    uptime_s: float = 3600.0
    clock: Callable[[], int] = lambda: 0
    rdma_changed_s: int = 0
    """When the last of the RDMA devices' files was made."""
    offered_key: Path = KEY

    unpacked: Counter[str] = field(default_factory=Counter)
    """How often each package was."""
    on_configured: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What other packages' maintainer scripts do, by package."""

    # --- what happens -------------------------------------------------------------------------

    def install(self, name: str, version: str) -> str | None:
        """Install one package; the message of the one that fails, if it does."""
        there = self.packages.get(name)
        if there is not None and (there.version, there.status) == (version, "installed"):
            return None
        self.unpack(name, version)
        return self.configure(name)

    def unpack(self, name: str, version: str) -> None:
        """The first half: its files are there."""
        held = name in self.packages and self.packages[name].held
        self.packages[name] = Package(version, held, "unpacked")
        self.unpacked[name] += 1
        upstream = version.rpartition("-")[0] or version
        if (
            name.startswith("linux-headers-")
            and name.removeprefix("linux-headers-") in self.kernels
        ):
            self.headers.add(name.removeprefix("linux-headers-"))
        if name == "libnvidia-ml1":
            self.library = upstream
        if name == "nvidia-persistenced" and self.persistenced is None:
            self.persistenced = {
                "ActiveState": "inactive", "UnitFileState": "disabled",
                "argv": "/usr/bin/nvidia-persistenced --user nvidia-persistenced",
            }  # fmt: skip

    def configure(self, name: str) -> str | None:
        """The second half: its maintainer scripts have run."""
        package = self.packages[name]
        upstream = package.version.rpartition("-")[0] or package.version
        if name == "nvidia-kernel-open-dkms":
            self.dkms = {upstream: {}}
            if self.dkms_fails:
                package.status = "half-configured"
                return "dpkg: error processing package nvidia-kernel-open-dkms (--configure)"
            for kernel in self.kernels:
                if kernel in self.headers:
                    self.build(upstream, kernel)
        package.status = "installed"
        if configured := self.on_configured.get(name):
            configured()
        return None

    def install_driver(self, version: str) -> None:
        self.packages.pop("nvidia-driver-pinning-580.159.03", None)
        for name in (*DRIVER_PACKAGES, f"nvidia-driver-pinning-{version}"):
            self.install(name, f"{version}-1+sim1")
            self.packages[name].held = True

    def build(self, version: str, kernel: str) -> None:
        self.dkms.setdefault(version, {})[kernel] = "installed"
        self.on_disk[kernel] = (version, "Dual MIT/GPL")

    def boot(self, host: SimulatedHost) -> None:
        """A reboot: what modules-load.d asks for is loaded, nothing else."""
        self.running = self.next_boot
        self.uptime_s = 30.0
        self.loaded, self.modules, self.gpu_driver = None, {}, None
        self.sysctls = dict(SYSCTLS)
        swaps = [line.split()[0] for line in self.fstab if line.split()[2:3] == ["swap"]]
        self.swaps = [f"/dev/disk/by-{name.lower().replace('=', '/')}" for name in swaps]
        for path, file in host.files.items():
            if path.startswith("/etc/modules-load.d/"):
                for name in file.text.splitlines():
                    if not name.startswith("#"):
                        self.modprobe(name)
        for path in host.files:  # after the modules: some parameters come with them
            if path.startswith("/etc/sysctl.d/"):
                self.set_parameters(host.files[path].text)

    def set_parameters(self, text: str) -> bool:
        pairs = [line.partition(" = ")[::2] for line in text.splitlines() if " = " in line]
        known = {name.replace(".", "/"): value for name, value in pairs}
        self.sysctls |= {name: value for name, value in known.items() if name in self.sysctls}
        return known.keys() <= self.sysctls.keys()

    def modprobe(self, name: str) -> bool:
        if name.startswith("nvidia"):
            if self.running not in self.on_disk or self.gpu_driver == "nouveau":
                return False
            if name == "nvidia_peermem" and not self.peer_memory:
                return False
            self.loaded = self.loaded or self.on_disk[self.running][0]
        self.modules[name] = 0
        if name in ("ib_uverbs", "ib_umad", "rdma_ucm"):
            self.rdma_changed_s = self.clock()
        if name == "br_netfilter":
            self.sysctls |= {
                "net/bridge/bridge-nf-call-iptables": "0",
                "net/bridge/bridge-nf-call-ip6tables": "0",
            }
        return True

    # --- what is read -------------------------------------------------------------------------

    def os_release(self) -> str:
        return (
            'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\nPRETTY_NAME="Debian GNU/Linux 13"'
        )

    def machine(self, host: SimulatedHost) -> str:
        return (
            f"x86_64\nboot-{host.boot}\n{self.uptime_s} 1.0\n"
            f"## machine-id\n{self.machine_id}\n## uuid\n{self.product_uuid}\n"
            "## secure boot\nabsent\n## cgroup\ncgroup2fs\n## size\n2\nMemTotal: 3000000 kB"
        )

    def kernel_list(self) -> str:
        images = "\n".join(f"/boot/vmlinuz-{kernel}" for kernel in self.kernels)
        headers = "\n".join(f"/lib/modules/{kernel}/build/." for kernel in sorted(self.headers))
        stamps = "\n".join(
            f"{at} /boot/initrd.img-{kernel}" for kernel, at in self.initramfs.items()
        )
        return (
            f"{self.running}\nLinux version {self.running} (x) (x86_64-linux-gnu-gcc-14 "
            f"(Debian 14.2.0-19) 14.2.0, GNU ld)\n## images\n{images}\n"
            f"## link\nboot/vmlinuz-{self.next_boot}\n"
            f"## headers\n{headers}\n## initramfs\n{stamps}\n## grub\n## grubenv\n## peer memory\n"
            f"{int(self.peer_memory)}\n## end"
        )

    def module_list(self) -> str:
        names = dict(self.modules)
        if self.loaded:
            names.setdefault("nvidia", 1)
        lines = "\n".join(f"{name} {uses}" for name, uses in names.items())
        return f"## loaded\n{lines}\n## builtin\nkernel/fs/ext4/ext4.ko\n## end"

    def pci(self) -> str:
        attributes, links = [], []
        for vendor, device, kind, addresses in (
            ("10de", "20b0", "030200", self.gpus), ("15b3", "101b", "020700", self.hcas),
        ):  # fmt: skip
            for address in addresses:
                attributes += [
                    f"{address}/vendor:0x{vendor}", f"{address}/device:0x{device}",
                    f"{address}/class:0x{kind}", f"{address}/numa_node:0",
                ]  # fmt: skip
                driver = "mlx5_core" if vendor == "15b3" else self.gpu_driver
                driver = driver or ("nvidia" if self.loaded else None)
                if driver:
                    links.append(f"l 1 root root 0 {address}/driver -> ../drivers/{driver}")
        return "\n".join(["## attributes", *attributes, "## links", *links, "## end"])

    def package_list(self) -> str:
        rows = "\n".join(
            f"{name}\tamd64\t{'hold' if p.held else 'install'}\t{p.status}\tok\t{p.version}"
            for name, p in self.packages.items()
        )
        locks = "\n".join(self.locks)
        updates = "0001" if self.interrupted else ""
        return (
            f"## architecture\namd64\n## packages\n{rows}\n## updates\n{updates}\n".replace(
                "\n\n", "\n"
            )
            + f"## locks\n{locks}\n## end"
        )

    def source_list(self, host: SimulatedHost) -> str:
        texts = dict(self.sources)
        texts |= {
            path: file.text
            for path, file in host.files.items()
            if path.endswith((".sources", ".list"))
        }
        rows = [f"{path}\t{line}" for path, text in texts.items() for line in text.splitlines()]
        return "\n".join([*rows, "## end"])

    def unattended(self, host: SimulatedHost) -> str:
        file = host.files.get("/etc/apt/apt.conf.d/52rackwright")
        return "\n".join([*(re.findall(r'"(.*)"', file.text) if file else []), "## end"])

    def sysctl_list(self) -> str:
        rows = [f"/proc/sys/{path}:{value}" for path, value in self.sysctls.items()]
        return "\n".join([*rows, "## end"])

    def swap(self) -> str:
        entries = [line for line in self.fstab if line.split()[2:3] == ["swap"]]
        units = [f"{name} {load} active active x" for name, load in self.swap_units.items()]
        return "\n".join(
            ["## active", *self.swaps, "## fstab", *entries, "## units", *units, "## end"]
        )

    def infiniband(self) -> str:
        if not self.hcas:
            return "## end"
        values, names, parents, verbs, mad = [], [], [], [], []
        for index, address in enumerate(self.hcas):
            name, port = f"mlx5_{index}", f"mlx5_{index}/ports/1"
            values += [
                f"{name}/node_guid:0011:2233:4455:66{index:02x}", f"{port}/state:{self.port.state}",
                f"{port}/phys_state:{self.port.phys_state}",
                f"{port}/link_layer:{self.port.link_layer}", f"{port}/rate:{self.port.rate}",
            ]  # fmt: skip
            names.append(name)
            parents.append(f"/sys/devices/pci0001:00/{address}")
            verbs.append(f"/sys/class/infiniband_verbs/uverbs{index}/ibdev:{name}")
            mad.append(f"/sys/class/infiniband_mad/umad{index}/ibdev:{name}")
        nodes = ["by-path"]
        nodes += ["uverbs0", "uverbs1"] if "ib_uverbs" in self.modules else []
        nodes += ["umad0", "umad1"] if "ib_umad" in self.modules else []
        nodes += ["rdma_cm"] if "rdma_ucm" in self.modules else []
        return "\n".join(
            ["## values", *values, "## parents", *names, "## parent paths", *parents, "## netdevs",
             "## verbs", *verbs,
             "## mad", *mad, "## files", *nodes, "## age",
             f"{self.clock()} {self.rdma_changed_s}", "## netns", "Y", "## end"]
        )  # fmt: skip

    def driver(self) -> str:
        version = "absent"
        if self.loaded:
            version = (
                f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self.loaded}  Release"
            )
        modules = [
            f"/sys/module/{n}" for n in ("nvidia_uvm", "nvidia_peermem") if n in self.modules
        ]
        gpus = [a for a in self.gpus if a not in self.lost_gpus] if self.loaded else []
        library = (
            [f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{self.library}"] if self.library else []
        )
        return "\n".join(
            [version, "## modules", *modules, "## gpus", *gpus, "## library", *library,
             "## end"]
        )  # fmt: skip

    def driver_modules(self) -> str:
        disk = [f"{kernel} {version} {lic}" for kernel, (version, lic) in self.on_disk.items()]
        tree = []
        for version, kernels in self.dkms.items():
            tree.append(f"{version}/")
            for kernel, state in kernels.items():
                tree.append(f"{version}/{kernel}/x86_64/")
                if state == "installed":
                    tree.append(f"l kernel-{kernel}-x86_64 -> {version}/{kernel}/x86_64")
        return "\n".join(["## disk", *disk, "## dkms", *tree, "## end"])

    def persistenced_unit(self) -> str:
        unit = self.persistenced
        if unit is None:
            return "LoadState=not-found\nActiveState=inactive\nUnitFileState="
        argv = unit["argv"]
        return (
            f"LoadState=loaded\nActiveState={unit['ActiveState']}\nUnitFileState={unit['UnitFileState']}\n"
            f"ExecStart={{ path=/usr/bin/x ; argv[]={argv} ; ignore_errors=no ; }}"
        )

    def smi(self) -> str:
        if self.library is None:
            return "## tool\nabsent"
        if self.loaded is None:
            return "## query\nNVIDIA-SMI has failed: the driver is not loaded\n## rc\n9"
        if self.loaded != self.library:
            return "## query\nFailed to initialize NVML: Driver/library version mismatch\n## rc\n18"
        mode = "Enabled" if self.persistence_mode else "Disabled"
        gpus = [a for a in self.gpus if a not in self.lost_gpus]
        query = [
            f"{i}, NVIDIA A100-SXM4-40GB, GPU-{i}, 0000{address.upper()}, Disabled, Disabled, "
            f"{mode}"
            for i, address in enumerate(gpus)
        ]
        listed = [f"GPU {i}: NVIDIA A100-SXM4-40GB (UUID: GPU-{i})" for i in range(len(gpus))]
        return "\n".join(
            ["## query", *query, "## rc", "0", "## list", *listed, "## instances", "## profiles",
             "## done"]
        )  # fmt: skip


def bare(name: str = "gpu01", **changes: Any) -> SimulatedHost:
    """A bare Debian 13 with two GPUs and two HCAs; ``host.values["machine"]`` is its state."""
    state = Machine(**changes)
    host = SimulatedHost(name)
    state.clock = lambda: host.now_s
    host.values |= {"machine": state, "on_boot": state.boot}
    state.archive |= {package: ["50.0-1"] for package in RDMA_PACKAGES}
    state.archive |= {"ca-certificates": ["20250419"]}
    state.archive |= {f"linux-headers-{kernel}": ["6.12.57-1"] for kernel in state.kernels}
    for version in ("580.159.03", DRIVER, "595.91.07"):
        for package in (*DRIVER_PACKAGES, f"nvidia-driver-pinning-{version}"):
            state.archive.setdefault(package, []).append(f"{version}-1+sim1")
    plain: dict[str, Callable[[], str]] = {
        "OsRelease": state.os_release, "Kernels": state.kernel_list,
        "KernelModules": state.module_list, "PciDevices": state.pci,
        "Packages": state.package_list, "Sysctls": state.sysctl_list, "Swap": state.swap,
        "Infiniband": state.infiniband, "NvidiaDriver": state.driver,
        "NvidiaModules": state.driver_modules, "NvidiaPersistenced": state.persistenced_unit,
        "Gpus": state.smi,
    }  # fmt: skip
    host.facts = {fact: (lambda h, read=read: full(read())) for fact, read in plain.items()}
    host.facts |= {
        "AptSources": state.source_list, "UnattendedUpgrades": state.unattended,
        "Machine": state.machine,
    }  # fmt: skip
    host.on(r"/proc/locks\); do", apt)
    host.half(
        r"^export DEBIAN_FRONTEND=.*/proc/locks\); do", half_installed, not_configured, not_held
    )
    host.on("^modprobe ", modprobe)
    host.half("^modprobe -a ", lambda h, m, s: state.modprobe(h.log[-1].split()[2]))
    host.on("^sysctl -q -p ", sysctl)
    host.on("^swapoff -a", swapoff)
    host.half("^swapoff -a", lambda h, m, s: not state.swaps.clear())
    host.on("apt-helper", key)
    host.on("^mv -T --backup=numbered (\\S+) (\\S+).disabled$", set_aside)
    host.on("^rm -f (\\S+)$", remove)
    host.on("systemctl enable --no-reload nvidia-persistenced", persistenced)
    host.half("systemctl enable --no-reload nvidia-persistenced", persistenced_enabled)
    host.on("^udevadm settle", lambda h, match, stdin: True)
    host.on("^update-ca-certificates", bundle)
    return host


def full(text: str) -> str:
    """*text* without empty lines, which no command prints."""
    return "\n".join(line for line in text.splitlines() if line)


def machine(host: SimulatedHost) -> Machine:
    found = host.values["machine"]
    assert isinstance(found, Machine)
    return found


APT = re.compile(
    r"apt-get (?!-s )[^;&|{}]*? (?P<verb>install|purge) (?P<names>[^;&|{}]+)|"
    r"(?P<configure>dpkg --configure -a)|apt-mark hold (?P<hold>[^;&|{}]+)|"
    r"dkms install --force -m nvidia -v (?P<version>\S+) -k (?P<kernel>[^ ;]+)|"
    r"(?P<initramfs>for k in (?P<kernels>[^;]+); do i=/boot/initrd)"
)


def apt(host: SimulatedHost, match: re.Match[str], stdin: str) -> tuple[bool, str]:
    """A command of ``operations.packages``: its parts, in their order, as apt would do them."""
    state = machine(host)
    script = host.log[-1].partition("== rackwright")[2].partition("exit $code")[0]
    for part in APT.finditer(script):
        problem = None
        if part["verb"] == "install":
            problem = install(state, shlex.split(part["names"]))
        elif part["verb"] == "purge":
            for name in shlex.split(part["names"]):
                state.packages.pop(name, None)
        elif part["configure"]:
            state.interrupted = False
            for name, package in state.packages.items():
                if package.status != "installed":
                    state.configure(name)
        elif part["hold"]:
            for name in shlex.split(part["hold"]):
                state.packages[name].held = True
        elif part["version"]:
            kernel = shlex.split(part["kernel"])[0]
            if state.dkms_fails or kernel not in state.headers:
                problem = "dkms: no headers, or a compiler that does not fit"
            else:
                state.build(shlex.split(part["version"])[0], kernel)
        elif part["initramfs"]:
            kernels = shlex.split(part["kernels"])
            if state.nouveau_in_initramfs:
                state.initramfs |= dict.fromkeys(kernels, host.now_s)
                state.nouveau_in_initramfs = False
            text = "".join(f"{kernel} {state.initramfs[kernel]}\n" for kernel in kernels)
            host.files["/var/lib/rackwright/initramfs-without-nouveau"] = SimulatedFile(text)
        if problem:
            return False, problem
    return True, ""


def chosen(state: Machine, arguments: list[str]) -> dict[str, str] | str:
    """Versions by package, or why there are none: apt looks at all before it touches one."""
    found: dict[str, str] = {}
    for argument in arguments:
        if argument == "$half":
            continue  # after a repair that left nothing to install again
        name, _, version = argument.partition("=")
        known = state.archive.get(name, [])
        fitting = [v for v in known if not version or v == version or v.startswith(version[:-1])]
        if not fitting:
            return f"E: Version '{version}' for '{name}' was not found"
        found[name] = fitting[-1]
    return found


def install(state: Machine, arguments: list[str]) -> str | None:
    versions = chosen(state, arguments)
    if isinstance(versions, str):
        return versions
    problems = [state.install(name, version) for name, version in versions.items()]
    return next(filter(None, problems), None)


def last_install(host: SimulatedHost) -> dict[str, str]:
    """What the command that is under way is about to install or change, by package."""
    parts = [part for part in APT.finditer(host.log[-1]) if part["verb"] == "install"]
    for part in parts[:-1]:
        install(machine(host), shlex.split(part["names"]))
    versions = chosen(machine(host), shlex.split(parts[-1]["names"])) if parts else {}
    assert isinstance(versions, dict), versions
    packages = machine(host).packages
    return {
        name: version
        for name, version in versions.items()
        if name not in packages or packages[name].version != version
    }


def half_installed(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    """dpkg is killed in the middle: some are there, one is being configured."""
    state, wanted = machine(host), last_install(host)
    for name in [*wanted][: len(wanted) // 2 + 1]:
        state.install(name, wanted[name])
        last = state.packages[name]
    if wanted:
        last.status, state.interrupted = "half-configured", True
    return True


def not_configured(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    """dpkg is killed after it has unpacked them all."""
    state, wanted = machine(host), last_install(host)
    for name, version in wanted.items():
        state.unpack(name, version)
    state.interrupted = bool(wanted)
    return True


def not_held(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    """The shell is killed between apt-get and apt-mark."""
    for name, version in last_install(host).items():
        machine(host).install(name, version)
    return True


def modprobe(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    state = machine(host)
    _, *words = shlex.split(re.split(r"&&|\|\|", host.log[-1])[0])
    if words[0] == "-r":
        return state.modules.pop(words[1], None) is not None
    return all([state.modprobe(name) for name in words if name != "-a"])


def sysctl(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    return machine(host).set_parameters(host.files[host.log[-1].split()[-1]].text)


def swapoff(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    state = machine(host)
    state.swaps = []
    state.fstab = [
        f"# rackwright: {line}" if line.split()[2:3] == ["swap"] else line for line in state.fstab
    ]
    state.swap_units = dict.fromkeys(state.swap_units, "masked")
    return True


def key(host: SimulatedHost, match: re.Match[str], stdin: str) -> str:
    return base64.b64encode(machine(host).offered_key.read_bytes()).decode()


def set_aside(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    path = match[1].strip("'")
    if (file := host.files.pop(path, None)) is not None:
        host.files[f"{path}.disabled"] = file
        return True
    return machine(host).sources.pop(path, None) is not None


def remove(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    return host.files.pop(match[1], None) is not None


def persistenced(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    state = machine(host)
    if state.persistenced is None or state.loaded is None:
        return False
    drop_in = host.files.get("/etc/systemd/system/nvidia-persistenced.service.d/50-rackwright.conf")
    if drop_in and "daemon-reload" in host.log[-1]:
        state.persistenced["argv"] = re.findall(r"ExecStart=(.+)", drop_in.text)[-1]
    state.persistenced |= {"ActiveState": "active", "UnitFileState": "enabled"}
    state.persistence_mode = "--no-persistence-mode" not in state.persistenced["argv"]
    return True


def persistenced_enabled(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    """Killed between ``enable`` and ``restart``."""
    state = machine(host)
    if state.persistenced is not None:
        state.persistenced |= {"UnitFileState": "enabled"}
    return True


def bundle(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    host.files["/etc/ssl/certs/ca-certificates.crt"] = SimulatedFile(
        "bundle\n", changed_at_s=host.now_s
    )
    return True
