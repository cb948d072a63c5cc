"""GPUs, NVSwitches and HCAs as PCI functions: there before any driver is."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, sections

NVIDIA = "10de"
MELLANOX = "15b3"

# Source: pciutils/pciids pci.ids at c1c1254, "List of known device classes".
GPU_CLASSES = ("0300", "0302")
NVSWITCH_CLASS = "0680"
HCA_CLASSES = ("0200", "0207")

ATTRIBUTES = (
    "class", "device", "subsystem_vendor", "subsystem_device", "numa_node",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
    "../max_link_width",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PciDevice(FactValue):
    address: str
    """Domain, bus, device and function, as in ``0000:41:00.0``."""
    vendor: str
    device: str
    device_class: str
    """Base class and subclass, as in ``0302``."""
    subsystem: str | None
    """Vendor and device, as in ``10de:1626``."""
    driver: str | None
    numa_node: int | None
    link_speed_gts: float | None
    """Speed now; a GPU at rest may slow its link down."""
    link_speed_max_gts: float | None
    link_width: int | None
    link_width_max: int | None
    """Of the device and the slot that it is in, whichever is less."""
    virtual_function: bool

    @property
    def is_gpu(self) -> bool:
        return self.vendor == NVIDIA and self.device_class in GPU_CLASSES

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == NVIDIA and self.device_class == NVSWITCH_CLASS

    @property
    def is_hca(self) -> bool:
        """Whether it is a physical function of a host channel adapter (or of its Ethernet side)."""
        return (
            self.vendor == MELLANOX
            and self.device_class in HCA_CLASSES
            and not self.virtual_function
        )


class PciDevices(FactBase[tuple[PciDevice, ...]]):
    """
    PCI functions of NVIDIA and Mellanox, from sysfs.

    .. code:: python

        (PciDevice(address="0000:41:00.0", vendor="10de", device="20b0", device_class="0302", ...),)
    """

    def command(self) -> str:
        attributes = " ".join(f"$d/{name}" for name in ("vendor", *ATTRIBUTES))
        # One grep and one ls for all devices: forks are what costs on a slow host.
        return (
            "cd /sys/bus/pci/devices || { echo '## end'; exit 0; }; "
            f"v=$(grep -liE '^0x({NVIDIA}|{MELLANOX})$' */vendor || true); a=; l=; "
            "for d in $v; do d=${d%/vendor}; "
            f'a="$a {attributes}"; l="$l $d/driver $d/physfn"; done; '
            "echo '## attributes'; [ -z \"$a\" ] || grep -H . $a || true; "
            "echo '## links'; [ -z \"$l\" ] || ls -ld $l || true; echo '## end'"
        )

    def process(self, output: list[str]) -> tuple[PciDevice, ...]:
        return parse_pci_devices(output)


def parse_pci_devices(output: list[str]) -> tuple[PciDevice, ...]:
    """Read what ``PciDevices.command`` printed."""
    parts = sections(output)
    if "end" not in parts:
        raise FactProcessError("the list of PCI devices ended early")
    values: dict[str, dict[str, str]] = {}
    for line in parts.get("attributes", []):
        # 0000:41:00.0/vendor:0x10de
        path, _, value = line.partition("/")[2].partition(":")
        values.setdefault(line.partition("/")[0], {})[path] = value.strip()
    for line in parts.get("links", []):
        # lrwxrwxrwx 1 root root 0 Nov 30 16:00 0000:41:00.0/driver -> ../../bus/pci/drivers/nvidia
        link, _, target = line.partition(" -> ")
        address, _, name = link.split()[-1].partition("/")
        values.setdefault(address, {})[name] = target.rpartition("/")[2]
    return tuple(_device(address, values[address]) for address in sorted(values))


def _device(address: str, values: dict[str, str]) -> PciDevice:
    try:
        node = int(values.get("numa_node", "-1"))
        # The bridge above the device is the slot: a card of sixteen lanes in one of eight is whole.
        maxima = (_width(values.get(name)) for name in ("max_link_width", "../max_link_width"))
        widths = [width for width in maxima if width is not None]
        subsystem = (values.get("subsystem_vendor"), values.get("subsystem_device"))
        return PciDevice(
            address=address,
            vendor=_hex(values["vendor"]),
            device=_hex(values["device"]),
            device_class=_hex(values["class"])[:4],
            subsystem=f"{_hex(subsystem[0])}:{_hex(subsystem[1])}" if all(subsystem) else None,  # type: ignore[arg-type]
            driver=values.get("driver"),
            numa_node=node if node >= 0 else None,
            link_speed_gts=_speed(values.get("current_link_speed")),
            link_speed_max_gts=_speed(values.get("max_link_speed")),
            link_width=_width(values.get("current_link_width")),
            link_width_max=min(widths, default=None),
            virtual_function="physfn" in values,
        )
    except (KeyError, ValueError) as error:
        raise FactProcessError(f"{address}: no PCI device in {values!r} ({error})") from error


def _hex(text: str) -> str:
    return text.removeprefix("0x").lower()


def _speed(text: str | None) -> float | None:
    # 16.0 GT/s PCIe | 8 GT/s | Unknown
    first = (text or "").split(" ", 1)[0]
    return float(first) if first[:1].isdigit() else None


def _width(text: str | None) -> int | None:
    # 0 and 63 (255 in older kernels) stand for a link that is down or unknown.
    return int(text) if text and text.isdecimal() and text not in ("0", "63", "255") else None
