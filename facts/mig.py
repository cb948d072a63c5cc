"""GPUs as the driver's management library reports them, with their MIG mode and devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, ToolFailed, properties, sections

# GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c1f...)
#   MIG 1g.10gb     Device  0: (UUID: MIG-...)
LISTED_GPU = re.compile(r"^GPU\s+(\d+): (.+) \(UUID: (GPU-[^)]+)\)")
LISTED_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
# |   0  MIG 1g.10gb         19        7          0:1     |
GPU_INSTANCE = re.compile(r"^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|")
# |   0  MIG 1g.10gb       19     7/7        9.75       No     16     1     0   |
OFFERED_PROFILE = re.compile(r"^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+([\d.]+)")
# |   0  MIG ...: a row of a table, whatever follows
MIG_ROW = re.compile(r"^\|\s+\d+\s+MIG\s")
# The rest of a table; No MIG-enabled devices found. | WARNING: infoROM is corrupted at gpu 0000:...
SAID = re.compile(r"^(\s*$|[+|]|no\b|warning\b|failed\b|unable\b)", re.IGNORECASE)
# In place of a value. Observed in the field only, in reports of `nvidia-smi --query-gpu`.
LOST = re.compile(r"\[(Unknown Error|GPU is lost|GPU requires reset)\]")

DRIVER_NOT_LOADED = 9
"""Exit code. Source: nvidia-smi(1), 2026 edition, "RETURN VALUE" (read 2026-11-30)."""
LIBRARY_NOT_FOUND = 12
GPU_LOST = 15
VERSION_MISMATCH = 18
# Observed in the field only: "Driver/library version mismatch" is NVML error 18.
NO_DEVICES = "No devices were found"
"""Exit code 6, or 0: the driver has found GPUs, and none of them has started."""
ANSWERS = (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_LOST, VERSION_MISMATCH, 255, 6)
"""Exit codes with which the tool says, in its own words, that there is nothing to be had."""


@dataclass(frozen=True, slots=True)
class MigDevice(FactValue):
    profile: str
    """As in ``1g.10gb``."""
    uuid: str


@dataclass(frozen=True, slots=True)
class Gpu(FactValue):
    index: int
    name: str
    uuid: str
    pci_address: str
    """Lower case with a four-digit domain, as in sysfs: ``0000:41:00.0``."""
    mig_mode: bool | None
    """``None`` for a GPU that has no MIG."""
    mig_mode_pending: bool | None
    persistence_mode: bool
    mig_devices: tuple[MigDevice, ...]
    gpu_instances: tuple[str, ...]
    """Profiles of its GPU instances, sorted; an instance may lack its compute instance."""
    profiles_offered: tuple[str, ...]
    """Profiles that the driver offers, empty while MIG mode is off."""


@dataclass(frozen=True, slots=True)
class GpusState(FactValue):
    usable: bool
    """Whether the library talks to the driver."""
    reason: str | None
    """Why not, in nvidia-smi's words."""
    gpus: tuple[Gpu, ...]


class Gpus(FactBase[GpusState]):
    """
    GPUs, MIG modes and MIG devices, from ``nvidia-smi``.

    Without a driver, ``usable`` is false and the reason stands beside it; a library that
    hangs (a GPU has fallen off the bus) leaves the fact unread.
    """

    timeout_s = 90

    def command(self) -> str:
        fields = "index,name,uuid,pci.bus_id,mig.mode.current,mig.mode.pending,persistence_mode"
        return (
            f"command -v nvidia-smi >/dev/null || {{ echo '## tool'; echo {ABSENT}; exit 0; }}; "
            f"q=$(nvidia-smi --query-gpu={fields} --format=csv,noheader); rc=$?; "
            "echo '## query'; echo \"$q\"; echo '## rc'; echo $rc; [ $rc = 0 ] || exit 0; "
            "echo '## list'; nvidia-smi -L || exit; "
            # The rest is about GPUs in MIG mode: each call costs a second on a slow host.
            "echo '## instances'; "
            # The last column is persistence mode, and nothing follows it.
            "case $q in *'Enabled, '*) ;; *) echo '## profiles'; echo '## done'; exit 0 ;; esac; "
            # "No MIG-enabled devices found" and the like are answers, and not exit code 0.
            "nvidia-smi mig -lgi; echo '## profiles'; nvidia-smi mig -lgip; "
            "echo '## done'"
        )

    def process(self, output: list[str]) -> GpusState:
        return parse_gpus(output)


def parse_gpus(output: list[str]) -> GpusState:
    """Read what ``Gpus.command`` printed."""
    part = sections(output)
    if "tool" in part:
        return GpusState(usable=False, reason="nvidia-smi is not installed", gpus=())
    if "rc" not in part:
        raise FactProcessError("nvidia-smi was cut off")
    code = number(part["rc"][:1])
    if code:
        if code not in ANSWERS:
            raise ToolFailed(f"nvidia-smi: exit code {code}")
        reason = " ".join(line.strip() for line in part["query"] if line.strip())
        return GpusState(usable=False, reason=reason or f"nvidia-smi: exit code {code}", gpus=())
    if part["query"][:1] == [NO_DEVICES]:
        return GpusState(usable=False, reason=NO_DEVICES, gpus=())
    if "done" not in part:
        raise FactProcessError("nvidia-smi -L failed though the query worked")

    devices: dict[int, list[MigDevice]] = {}
    current = -1
    listed: dict[int, str] = {}
    for line in part["list"]:
        if gpu := LISTED_GPU.match(line):
            current = int(gpu[1])
            listed[current] = gpu[3]
        elif mig := LISTED_MIG.match(line):
            devices.setdefault(current, []).append(MigDevice(mig[1], mig[3]))
        elif not SAID.match(line):
            raise FactProcessError(f"no GPU and no MIG device in {line!r}")
    instances: dict[int, list[str]] = {}
    for line in part["instances"]:
        if found := GPU_INSTANCE.match(line):
            instances.setdefault(int(found[1]), []).append(found[2])
        elif not SAID.match(line) or MIG_ROW.match(line):
            raise FactProcessError(f"no GPU instance in {line!r}")
    offered: dict[int, list[str]] = {}
    for line in part["profiles"]:
        if found := OFFERED_PROFILE.match(line):
            offered.setdefault(int(found[1]), []).append(found[2])
        elif not SAID.match(line) or MIG_ROW.match(line):
            raise FactProcessError(f"no profile in {line!r}")

    gpus = []
    for line in part["query"]:
        if LOST.search(line):
            raise ToolFailed(f"nvidia-smi: no answer of a GPU in {line!r}")
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7:
            raise FactProcessError(f"no GPU in {line!r}")
        index = number(cells[:1])
        gpus.append(
            Gpu(
                index=index,
                name=cells[1],
                uuid=cells[2],
                pci_address=pci_address(cells[3]),
                mig_mode=mode(cells[4]),
                mig_mode_pending=mode(cells[5]),
                persistence_mode=cells[6] == "Enabled",
                mig_devices=tuple(devices.get(index, ())),
                gpu_instances=tuple(sorted(instances.get(index, ()))),
                profiles_offered=tuple(offered.get(index, ())),
            )
        )
    if listed != {gpu.index: gpu.uuid for gpu in gpus}:
        raise FactProcessError(f"nvidia-smi -L lists {listed!r}, and its query other GPUs")
    return GpusState(usable=True, reason=None, gpus=tuple(gpus))


def number(words: list[str]) -> int:
    if not words or not words[0].isdecimal():
        raise FactProcessError(f"no number in {words!r}")
    return int(words[0])


def mode(text: str) -> bool | None:
    if text in ("Enabled", "Disabled"):
        return text == "Enabled"
    if text in ("[N/A]", "N/A", "[Not Supported]"):
        return None
    raise FactProcessError(f"no MIG mode in {text!r}")


def pci_address(text: str) -> str:
    """NVML's ``00000000:41:00.0`` as sysfs writes it, ``0000:41:00.0``."""
    domain, _, rest = text.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        raise FactProcessError(f"no PCI address in {text!r}") from None


@dataclass(frozen=True, slots=True)
class MigServiceState(FactValue):
    enabled: bool
    failed: bool


class MigService(FactBase[MigServiceState]):
    """The boot unit that applies the layout, ``rackwright-mig.service``."""

    def command(self) -> str:
        return "systemctl show rackwright-mig.service -p UnitFileState -p ActiveState"

    def process(self, output: list[str]) -> MigServiceState:
        values = properties(output, "rackwright-mig.service", "ActiveState", "UnitFileState")
        return MigServiceState(
            enabled=values["UnitFileState"] == "enabled",
            failed=values["ActiveState"] == "failed",
        )
