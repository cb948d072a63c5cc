"""containerd: what it would run with, and what it runs with."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml
from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, properties, sections

# Source: containerd/containerd docs/cri/config.md and docs/PLUGINS.md, commit 301026e5
# (read 2026-11-30): versions 3 and 4 split the one CRI plugin of version 2.
CRI_RUNTIME = "io.containerd.cri.v1.runtime"
CRI_IMAGES = "io.containerd.cri.v1.images"

NVIDIA_RUNTIME = "/usr/bin/nvidia-container-runtime"
"""Where the container toolkit's package puts it."""


@dataclass(frozen=True, slots=True)
class RuntimeState(FactValue):
    runtime_type: str
    binary: str
    """Empty: runc from the PATH."""
    systemd_cgroup: bool


@dataclass(frozen=True, slots=True)
class ContainerdState(FactValue):
    installed: bool
    problem: str | None
    """Why ``containerd config dump`` failed, in its own words."""
    config_version: int | None
    cri_enabled: bool
    default_runtime: str
    runtimes: dict[str, RuntimeState]
    sandbox_image: str
    registry_config_path: str
    cni_bin_dirs: tuple[str, ...]
    cdi_enabled: bool


class Containerd(FactBase[ContainerdState]):
    """
    The configuration that containerd would start with now: every file and import merged.

    From ``containerd config dump``: a file's text says nothing of what another file hides.
    """

    def command(self) -> str:
        return (
            f"command -v containerd >/dev/null || {{ echo '## {ABSENT}'; exit 0; }}; "
            "echo '## dump'; containerd config dump 2>&1; rc=$?; echo '## rc'; echo $rc"
        )

    def process(self, output: list[str]) -> ContainerdState:
        return parse_containerd(output)


def parse_containerd(output: list[str]) -> ContainerdState:
    """Read what ``Containerd.command`` printed: configuration of version 3 or 4."""
    part = sections(output)
    nothing = ContainerdState(False, None, None, False, "", {}, "", "", (), False)
    if ABSENT in part:
        return nothing
    if "rc" not in part:
        raise FactProcessError("containerd config dump was cut off")
    text = "\n".join(line for line in part["dump"] if not line.startswith("time="))
    if len(part["rc"]) != 1 or not part["rc"][0].isdecimal():
        raise FactProcessError(f"no exit code of containerd config dump in {part['rc']!r}")
    if part["rc"] != ["0"]:
        said = " ".join(line.strip() for line in part["dump"][-2:])
        return ContainerdState(True, said, None, False, "", {}, "", "", (), False)
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FactProcessError(f"containerd config dump is not TOML: {error}") from error
    plugins: dict[str, Any] = config.get("plugins", {})
    runtime = plugins.get(CRI_RUNTIME, {})
    images = plugins.get(CRI_IMAGES, {})
    containerd = runtime.get("containerd", {})
    disabled = set(config.get("disabled_plugins", []))
    cni = runtime.get("cni", {})
    return ContainerdState(
        installed=True,
        problem=None,
        config_version=config.get("version"),
        cri_enabled=not disabled & {"cri", CRI_RUNTIME, CRI_IMAGES, "io.containerd.grpc.v1.cri"},
        default_runtime=containerd.get("default_runtime_name", ""),
        runtimes={
            name: RuntimeState(
                runtime_type=table.get("runtime_type", ""),
                binary=table.get("options", {}).get("BinaryName", ""),
                systemd_cgroup=bool(table.get("options", {}).get("SystemdCgroup", False)),
            )
            for name, table in sorted(containerd.get("runtimes", {}).items())
        },
        sandbox_image=images.get("pinned_images", {}).get("sandbox", ""),
        registry_config_path=images.get("registry", {}).get("config_path", ""),
        cni_bin_dirs=tuple(cni.get("bin_dirs") or [cni.get("bin_dir", "")]),
        # On by default since 2.0, and no longer a choice in 2.4, which ignores the key.
        cdi_enabled=bool(runtime.get("enable_cdi", bool(runtime.get("cdi_spec_dirs")))),
    )


@dataclass(frozen=True, slots=True)
class ContainerdServiceState(FactValue):
    active: bool
    enabled: bool
    """Whether it starts at boot."""
    started_at_s: float | None
    """When the running daemon started, seconds since the epoch."""
    needs_reload: bool
    """Whether systemd has not read the newest unit files."""
    memlock_unlimited: bool
    configured_at_s: float | None
    """Newest change of a file that the daemon reads at its start."""

    @property
    def stale(self) -> bool:
        """Whether the daemon may run with something older than what is on disk now."""
        if self.started_at_s is None or self.configured_at_s is None:
            return True
        return self.configured_at_s + CLOCK_TICK_S >= self.started_at_s


CLOCK_TICK_S = 0.01
"""How far a file's time may lag: the kernel takes it from its last tick, 10 ms at most (HZ=100)."""

READ_AT_START = (
    "/etc/containerd/config.toml /etc/containerd/conf.d /etc/containerd/conf.d/*.toml "
    "/etc/systemd/system/containerd.service.d/*.conf /usr/bin/containerd"
)


class ContainerdService(FactBase[ContainerdServiceState]):
    """The daemon that runs, and how old its configuration is."""

    def command(self) -> str:
        return (
            # Seconds are too coarse: a file written in the second of the start would be missed.
            # The folder is among the files for the drop-ins that were taken out of it.
            "systemctl show containerd.service --timestamp=us+utc -p ActiveState -p UnitFileState "
            "-p ExecMainStartTimestamp -p NeedDaemonReload -p LimitMEMLOCK; "
            "echo '## files'; "
            f"stat -c %.9Z {READ_AT_START}; "
            # Of a link both count: where it leads may have changed, or what is there.
            f"stat -L -c %.9Z {READ_AT_START}; echo '## done'"
        )

    def process(self, output: list[str]) -> ContainerdServiceState:
        return parse_containerd_service(output)


def parse_containerd_service(output: list[str]) -> ContainerdServiceState:
    """Read what ``ContainerdService.command`` printed."""
    part = sections(["## unit", *output])
    if "done" not in part:
        raise FactProcessError("the state of containerd.service ended early")
    values = properties(
        part["unit"], "containerd.service", "ActiveState", "UnitFileState",
        "ExecMainStartTimestamp", "NeedDaemonReload", "LimitMEMLOCK",
    )  # fmt: skip
    started = values["ExecMainStartTimestamp"]
    try:
        return ContainerdServiceState(
            active=values["ActiveState"] == "active",
            enabled=values["UnitFileState"] == "enabled",
            started_at_s=epoch(started) if started not in ("", "n/a") else None,
            needs_reload=values["NeedDaemonReload"] == "yes",
            memlock_unlimited=values["LimitMEMLOCK"] == "infinity",
            configured_at_s=max(map(float, part["files"]), default=None),
        )
    except ValueError as error:
        raise FactProcessError(f"no time in {output!r}: {error}") from None


def epoch(text: str) -> float:
    """Seconds since the epoch of systemd's ``Mon 2026-11-30 17:26:32.582378 UTC``."""
    moment = datetime.strptime(text.partition(" ")[2], "%Y-%m-%d %H:%M:%S.%f UTC")
    return moment.replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class CdiState(FactValue):
    devices: tuple[str, ...]
    """Names of the devices of kind ``nvidia.com/gpu``."""
    driver_versions: tuple[str, ...]
    """Versions of the driver libraries that it mounts; more than one is a mixture."""


# /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)$")


class CdiSpecification(FactBase[CdiState | None]):
    """
    NVIDIA's CDI specification as it lies on the host; ``devices`` is empty if there is none.

    Source: NVIDIA/nvidia-container-toolkit deployments/systemd, commit d34b3046: written by
    ``nvidia-cdi-refresh.service`` to ``/var/run/cdi/nvidia.yaml``.
    """

    def command(self) -> str:
        path = "/var/run/cdi/nvidia.yaml"
        # A file need not end with a newline, and what was read of it ends here.
        return f"if [ -e {path} ]; then cat {path}; else echo {ABSENT}; fi && echo && echo '## end'"

    def process(self, output: list[str]) -> CdiState:
        if output[-1] != "## end":
            raise FactProcessError("/var/run/cdi/nvidia.yaml ended early")
        return parse_cdi("\n".join(output[:-1]))


def parse_cdi(text: str) -> CdiState:
    """Read a CDI specification."""
    if text.strip() == ABSENT:
        return CdiState((), ())
    try:
        spec = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        devices = tuple(str(device["name"]) for device in spec["devices"])
        mounts = spec.get("containerEdits", {}).get("mounts", [])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise FactProcessError(f"/var/run/cdi/nvidia.yaml: {error}") from error
    versions = {
        found[1] for mount in mounts if (found := LIBRARY.search(str(mount.get("hostPath", ""))))
    }
    return CdiState(devices, tuple(sorted(versions)))
