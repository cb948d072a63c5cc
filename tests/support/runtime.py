"""The rest of a simulated GPU host: containerd, CDI, MIG, and what preflight looks at.

containerd's configuration is what its files say, merged as containerd merges them; its daemon runs
with what was there when it started. ``systemctl restart rackwright-mig.service`` makes the MIG
devices of the layout file, each with a new UUID.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w
import yaml
from pyinfra.api import FunctionCommand, Host, State

from cluster import NodeState
from cluster.nodes import node_state
from deploys.phases import mig
from facts.containerd import CRI_RUNTIME
from nodespec import NodeSpec
from operations import boot, containerd, fleet, kubeadm, node
from operations import device_plugins as plugins
from operations.report import RUN, Row
from tests.support import machine as system
from tests.support.machine import DRIVER
from tests.support.simulated_cluster import GPU_LOG, SimulatedCluster, connect
from tests.support.simulated_node import SimulatedFile, SimulatedHost, failed, run

OTHER_CA = "-----BEGIN CERTIFICATE-----\nVGhlaXJz\n-----END CERTIFICATE-----\n"
CONTAINERD = "2.4.2-1~debian.13~trixie"
TOOLKIT = "1.20.2-1"
MIRROR = "http://mirror.test:5000"


def spec(**changes: Any) -> NodeSpec:
    """What the tests ask of a host, with *changes*."""
    return system.spec(**{"registry_mirrors": {"docker.io": MIRROR}, **changes})


@dataclass
class Gpu:
    mode: str = "Disabled"
    pending: str | None = None
    devices: list[tuple[str, str]] = field(default_factory=list)
    """Profile and UUID."""
    offers: tuple[str, ...] = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")


@dataclass
class Unit:
    active: bool = False
    enabled: bool = False
    started_at_s: float | None = None
    text: str | None = None
    """The drop-in, or the unit's file, that systemd has read last."""


@dataclass
class Runtime:
    """The state behind the readings."""

    service: Unit = field(default_factory=Unit)
    mig_unit: Unit = field(default_factory=Unit)
    binary_changed_at_s: float = 0.0
    gpus: list[Gpu] = field(default_factory=lambda: [Gpu(), Gpu()])
    cdi: dict[str, Any] | None = None
    proofs: int = 0
    restarts: int = 0
    new_uuid: Any = field(default_factory=lambda: itertools.count(1))

    # --- containerd ---------------------------------------------------------------------------

    def configuration(self, host: SimulatedHost) -> dict[str, Any]:
        """The main file and its imports, in the order of their names."""
        main = host.files.get(containerd.CONFIG)
        config = tomllib.loads(main.text if main else "")
        for pattern in config.get("imports", []):
            for path in sorted(fnmatch.filter(host.files, pattern)):
                drop_in = tomllib.loads(host.files[path].text)
                if drop_in.get("version", 0) > config.get("version", 0):
                    raise ValueError(
                        f"drop-in config version {drop_in['version']} higher than root config "
                        f"version {config.get('version')}"
                    )
                config = merged(config, drop_in)
        return config

    def dump(self, host: SimulatedHost) -> str:
        if not installed(host, "containerd.io"):
            return "## absent"
        try:
            config = self.configuration(host)
            defaults = {"plugins": {CRI_RUNTIME: {"cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"]}}}
            return f"## dump\n{tomli_w.dumps(merged(defaults, config))}## rc\n0"
        except ValueError as error:
            return f"## dump\ncontainerd: {error}\n## rc\n1"

    def unit_state(self, host: SimulatedHost) -> str:
        unit = self.service
        drop_in = host.files.get(containerd.UNIT_DROP_IN)
        on_disk = drop_in.text if drop_in else None
        started = ""
        if unit.started_at_s is not None:
            moment = datetime.fromtimestamp(unit.started_at_s, UTC)
            started = moment.strftime("%a %Y-%m-%d %H:%M:%S.%f UTC")
        paths = [containerd.CONFIG, *fnmatch.filter(host.files, containerd.IMPORTS)]
        paths += fnmatch.filter(host.files, "/etc/systemd/system/containerd.service.d/*.conf")
        times = [float(host.files[path].changed_at_s) for path in paths if path in host.files]
        times += [self.binary_changed_at_s] if installed(host, "containerd.io") else []
        return "\n".join(
            [
                f"ActiveState={'active' if unit.active else 'inactive'}",
                f"UnitFileState={'enabled' if unit.enabled else ''}",
                f"ExecMainStartTimestamp={started}",
                f"NeedDaemonReload={'yes' if unit.active and on_disk != unit.text else 'no'}",
                "LimitMEMLOCK="
                + ("infinity" if "LimitMEMLOCK=infinity" in (unit.text or "") else "8388608"),
                "## files",
                *(f"{at:.9f}" for at in times),
                "## done",
            ]
        )

    def start(self, host: SimulatedHost) -> None:
        # The start comes half a second after the command that asked for it.
        self.service.active, self.service.started_at_s = True, host.now_s + 0.5
        self.restarts += 1

    def configured(self, host: SimulatedHost) -> None:
        """Docker's package brings a configuration without the CRI, and starts its daemon."""
        host.files.setdefault(
            containerd.CONFIG,
            SimulatedFile('disabled_plugins = ["cri"]\n', changed_at_s=host.now_s),
        )
        self.binary_changed_at_s = float(host.now_s)
        self.service.enabled = True
        self.start(host)

    def stop(self, host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        """Killed between the stop and the start of ``restart``."""
        self.daemon_reload(host)
        self.service.active, self.service.enabled = False, True
        return True

    # --- GPUs ---------------------------------------------------------------------------------

    def smi(self, host: SimulatedHost) -> str:
        state = system.machine(host)
        if state.library is None or state.loaded != state.library:
            return state.smi()
        query, listed, instances, offered = [], [], [], []
        persistence = "Enabled" if state.persistence_mode else "Disabled"
        for index, (gpu, address) in enumerate(zip(self.gpus, state.gpus, strict=False)):
            if address in state.lost_gpus:
                return (
                    f"## query\nUnable to determine the device handle for GPU{index}: "
                    f"{address}: Unknown Error\n## rc\n15"
                )
            name, pending = "NVIDIA A100-SXM4-40GB", gpu.pending or gpu.mode
            query.append(
                f"{index}, {name}, GPU-{index}, 0000{address}, {gpu.mode}, {pending}, {persistence}"
            )
            listed.append(f"GPU {index}: {name} (UUID: GPU-{index})")
            for number, (profile, uuid) in enumerate(gpu.devices):
                listed.append(f"  MIG {profile}     Device  {number}: (UUID: {uuid})")
                instances.append(f"|   {index}  MIG {profile}   19   {number}   0:1     |")
            if gpu.mode == "Enabled":
                for profile in gpu.offers:
                    offered.append(f"|   {index}  MIG {profile}   19   1/1   4.75   No")
        return "\n".join(
            ["## query", *query, "## rc", "0", "## list", *listed, "## instances", *instances,
             "## profiles", *offered, "## done"]
        )  # fmt: skip

    def refresh_cdi(self, host: SimulatedHost) -> None:
        """What nvidia-cdi-refresh.service does: when its package is installed, and at boot."""
        if system.machine(host).loaded is None:
            return
        names = ["all"]
        for index, gpu in enumerate(self.gpus):
            divided = gpu.mode == "Enabled"
            names += [uuid for _, uuid in gpu.devices] if divided else [f"GPU-{index}"]
        library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{system.machine(host).library}"
        self.cdi = {
            "devices": [{"name": name} for name in names],
            "containerEdits": {"mounts": [{"hostPath": library}]},
        }

    def apply_layout(self, host: SimulatedHost) -> bool:
        """What the boot unit does; false if a GPU does not offer what its line says."""
        done = True
        for line in host.files[mig.LAYOUT].text.splitlines():
            if line.startswith("#"):
                continue
            index, word, *rest = line.split()
            gpu, profiles = self.gpus[int(index)], rest[0].split(",") if rest else []
            gpu.mode, gpu.pending = ("Enabled", None) if word == "on" else ("Disabled", None)
            done = done and set(profiles) <= set(gpu.offers)
            if [profile for profile, _ in gpu.devices] != profiles:
                gpu.devices = [
                    (profile, f"MIG-{next(self.new_uuid)}")
                    for profile in profiles
                    if profile in gpu.offers
                ]
        if installed(host, "nvidia-container-toolkit-base"):
            self.refresh_cdi(host)
        return done

    def divide(self, host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        self.daemon_reload(host)
        return self.apply_layout(host)

    def half_a_layout(self, host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        """The unit is killed: modes are set, and one GPU lacks its last device."""
        done = self.apply_layout(host)
        for gpu in self.gpus[:1]:
            gpu.devices = gpu.devices[:-1]
        return done

    def mig_state(self, host: SimulatedHost) -> str:
        return f"ActiveState=inactive\nUnitFileState={'enabled' if self.mig_unit.enabled else ''}"

    def daemon_reload(self, host: SimulatedHost) -> None:
        for unit, path in ((self.service, containerd.UNIT_DROP_IN), (self.mig_unit, mig.UNIT)):
            file = host.files.get(path)
            unit.text = file.text if file else None

    def boot(self, host: SimulatedHost) -> None:
        """A reboot: what is enabled starts; GPU instances are gone until the unit makes them."""
        system.machine(host).boot(host)
        self.cdi = None
        for gpu in self.gpus:
            gpu.devices = []
        self.daemon_reload(host)
        self.service.active = False
        if self.service.enabled:
            self.start(host)
        if installed(host, "nvidia-container-toolkit-base"):
            self.refresh_cdi(host)
        if self.mig_unit.enabled and system.machine(host).loaded:
            self.apply_layout(host)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """*over* on *base*, table by table."""
    both = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(both.get(key), dict):
            value = merged(both[key], value)
        both[key] = value
    return both


def installed(host: SimulatedHost, package: str) -> bool:
    return package in system.machine(host).packages


def runtime(host: SimulatedHost) -> Runtime:
    found = host.values["runtime"]
    assert isinstance(found, Runtime)
    return found


def bare(name: str = "gpu01", *, driver: bool = True, **changes: Any) -> SimulatedHost:
    """
    A host for the phases after the driver's, and for preflight.

    + driver: whether the NVIDIA driver is loaded
    + changes: to its ``machine.Machine``
    """
    if driver:
        changes = {"loaded": DRIVER, "library": DRIVER, "persistence_mode": True, **changes}
    host = system.bare(name, **changes)
    state = Runtime()
    host.values |= {"runtime": state, "on_boot": state.boot}
    system.machine(host).on_configured |= {
        "containerd.io": functools.partial(state.configured, host),
        "nvidia-container-toolkit-base": functools.partial(state.refresh_cdi, host),
    }
    system.machine(host).archive |= {
        "containerd.io": [CONTAINERD],
        "nvidia-container-toolkit": [TOOLKIT],
        "nvidia-container-toolkit-base": [TOOLKIT],
    }
    host.facts |= {
        "Containerd": state.dump,
        "ContainerdService": state.unit_state,
        "CdiSpecification": lambda h: (
            (yaml.safe_dump(state.cdi) if state.cdi else "absent\n") + "## end"
        ),
        "Gpus": state.smi,
        "MigService": state.mig_state,
        "Kubelet": kubelet,
        "PodBridge": lambda h: "absent\n## done",
        "ApiServer": lambda h: "connects\nrc 0",
        "Xids": lambda h: "## end",
        "KernelHeaders": lambda h: "## missing\n## end",
        "DiskFree": lambda h: disk_free({"/": 20480, "/boot": 500, "/var": 20480}),
        "Clock": lambda h: f"{time.time():.3f}",
    }
    host.on(
        r"^containerd config dump >/dev/null && systemctl enable --no-reload containerd", restart
    )
    host.half(r"^containerd config dump >/dev/null && systemctl enable", state.stop)
    host.on(r"^systemctl restart nvidia-cdi-refresh.service$", refresh)
    host.on(r"^ctr -n rackwright images pull ", prove)
    host.on(r"^systemctl enable --no-reload rackwright-mig.service$", enable_mig)
    host.half(
        r"^systemctl daemon-reload && systemctl restart rackwright-mig.service ",
        state.half_a_layout,
    )
    host.on(
        r"^systemctl daemon-reload && systemctl restart rackwright-mig.service ",
        state.divide,
    )
    return host


def whole(cluster: SimulatedCluster, name: str = "gpu01", **changes: Any) -> SimulatedHost:
    """A bare host for the whole job, and what its kubelet will be to *cluster*."""
    if name != "gpu01":
        changes = {"machine_id": f"id-of-{name}", "product_uuid": f"uuid-of-{name}", **changes}
    host = bare(name, driver=False, **changes)
    # MIG strategy "single": devices of one size count as GPUs.
    host.values["gpus_offered"] = lambda h: {
        "nvidia.com/gpu": str(sum(max(1, len(gpu.devices)) for gpu in runtime(h).gpus))
    }
    host.values["gpu_listed"] = lambda h: next(
        (
            f"{GPU_LOG}\n  MIG {profile}     Device  0: (UUID: {uuid})"
            for gpu in runtime(h).gpus for profile, uuid in gpu.devices
        ),
        GPU_LOG,
    )  # fmt: skip
    host.moments = cluster.moments
    return connect(cluster, host)


def kubelet(host: SimulatedHost) -> str:
    server = host.values.get("joined", "absent")
    return (
        f"## server\n{server}\n## bootstrap\nno\n## ca\nno\n## unit\nActiveState=inactive\n"
        "UnitFileState=disabled\nExecMainStartTimestampMonotonic=0\n## uptime\n"
        f"{host.now_s}.00 1.00\n## cni\n## sockets\n## done"
    )


def disk_free(mib: dict[str, int]) -> str:
    rows = [f"/dev/vda1 99999 1 {free} 1% {folder}" for folder, free in mib.items()]
    return "\n".join(["Filesystem 1048576-blocks Used Available Capacity Mounted on", *rows])


def restart(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    state = runtime(host)
    if not installed(host, "containerd.io") or not state.dump(host).endswith("\n0"):
        return False
    if "daemon-reload" in host.log[-1]:
        state.daemon_reload(host)
    state.service.enabled = True
    state.start(host)
    return True


def refresh(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    if not installed(host, "nvidia-container-toolkit-base"):
        return False
    runtime(host).refresh_cdi(host)
    return True


def prove(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    state = runtime(host)
    state.proofs += 1
    return state.service.active and state.cdi is not None and installed(host, "containerd.io")


def enable_mig(host: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
    if mig.UNIT not in host.files:
        return False
    runtime(host).mig_unit.enabled = True
    return True


def open_node(
    name: str = "gpu01", machine_id: str = "4c1e", ready: str = "True", **spec: Any
) -> NodeState:
    """A Ready node that serves users."""
    conditions = [
        {"type": "Ready", "status": ready, "reason": "KubeletReady"},
        {"type": "RackwrightValidated", "status": "True", "reason": "Validated"},
    ]
    info = {"machineID": machine_id, "kubeletVersion": "v1.36.3"}
    return node_state(
        {
            "metadata": {"name": name},
            "spec": spec,
            "status": {"conditions": conditions, "nodeInfo": info},
        }
    )


@dataclass
class Engine:
    """Runs of the node operation, one after another, over simulated hosts and one cluster."""

    monkeypatch: pytest.MonkeyPatch
    cluster: SimulatedCluster = field(default_factory=SimulatedCluster)
    failed: set[str] = field(default_factory=set)
    """Hosts that have failed in the last run: with any, its exit code is not 0."""

    def converge(
        self,
        hosts: SimulatedHost | Sequence[SimulatedHost],
        *phases: ModuleType,
        dry: bool = False,
        **changes: Any,
    ) -> Row:
        """One run: the first host's row. What the hosts knew of each other is forgotten before."""
        hosts = [hosts] if isinstance(hosts, SimulatedHost) else list(hosts)
        specs = {host.name: spec(kube_node_name=host.name, **changes) for host in hosts}
        self.monkeypatch.setattr(node, "specs", lambda: specs)
        self.monkeypatch.setattr(node.Cluster, "connect", lambda kubeconfig: self.cluster)
        self.monkeypatch.setattr(fleet, "_identities", {})
        state = run(
            hosts, {}, lambda: node.converge(name="Converge", phases=list(phases)),
            yes=not dry, dry=dry,
        )  # fmt: skip
        self.failed = failed(state)
        return RUN.rows[hosts[0].name]


def make_engine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Engine:
    monkeypatch.setattr(RUN, "rows", {})
    monkeypatch.setattr(RUN, "folder", folder)
    for module, name, seconds in (
        (boot, "RETRY_S", 0), (kubeadm, "POLL_S", 0), (kubeadm, "REPAIR_AFTER_S", 0.01),
        (kubeadm, "READY_TIMEOUT_S", 0.6), (kubeadm, "GONE_TIMEOUT_S", 0.02),
        (plugins, "POLL_S", 0), (plugins, "REPAIR_AFTER_S", 0.01), (plugins, "TIMEOUT_S", 0.6),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)

    def taken(state: State, host: Host) -> bool:
        return True

    # Taking it costs a second per step; tests/test_node.py has it for real.
    monkeypatch.setattr(node.lock, "take", lambda: FunctionCommand(taken, (), {}))
    monkeypatch.setattr(node.lock, "held", lambda host: True)
    return Engine(monkeypatch)
