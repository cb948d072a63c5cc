"""RDMA devices: ports, network devices, character devices; all from sysfs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import FactValue, each, sections, where_there

# 200 Gb/sec (4X HDR) | 2.5 Gb/sec (1X SDR)
RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")

# mlx5_0/node_guid:0011:2233:4455:6677, mlx5_0/ports/1/state:4: ACTIVE
VALUE = re.compile(r"([^/]+)/(?:node_guid|ports/(\d+)/([a-z_]+)):(.*)")
NETDEV = re.compile(r"([^/]+)/device/net/([^/]+)")
# /sys/class/infiniband_verbs/uverbs0/ibdev:mlx5_0
CHARACTER_DEVICE = re.compile(r"/sys/class/\w+/(\w+)/ibdev:(\S+)")
FILE = re.compile(r"\S+")
PATH = re.compile(r"/\S+")
TIMES = re.compile(r"(\d+) (\d+)")
FLAG = re.compile(r"[YN01]")


@dataclass(frozen=True, slots=True)
class InfinibandPort(FactValue):
    number: int
    state: str
    """``ACTIVE``, ``INIT``, ``DOWN``, ``ARMED``."""
    phys_state: str
    """``LinkUp``, ``Polling``, ``Disabled`` ..."""
    link_layer: str
    """``infiniband`` or ``ethernet``."""
    rate_gbps: float


@dataclass(frozen=True, slots=True)
class InfinibandDevice(FactValue):
    name: str
    """Whatever udev named it: ``mlx5_0``, ``ibp65s0``."""
    pci_address: str | None
    """``None`` for one without hardware, as Soft-RoCE."""
    node_guid: str
    ports: tuple[InfinibandPort, ...]
    netdevs: tuple[str, ...]
    uverbs: str | None
    """Its character device below ``/dev/infiniband``, ``None`` if there is none."""
    umad: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InfinibandState(FactValue):
    devices: tuple[InfinibandDevice, ...]
    settled_s: int | None
    """How long ago the last character device came or went; ``None`` if there are none."""
    rdma_cm: bool
    """Whether ``/dev/infiniband/rdma_cm`` is there."""
    netns_shared: bool | None
    """Whether network namespaces share the devices; ``None`` without ``ib_core``."""

    def at(self, pci_address: str) -> InfinibandDevice | None:
        return next((d for d in self.devices if d.pci_address == pci_address), None)


class Infiniband(FactBase[InfinibandState]):
    """
    RDMA devices with their ports, from ``/sys/class/infiniband``.

    .. code:: python

        InfinibandState(devices=(InfinibandDevice(name="mlx5_0", ...),), rdma_cm=True, ...)
    """

    def command(self) -> str:
        return (
            # What is there and cannot be read ends this with an error: it is not absent.
            "set -e; [ -e /sys/class/infiniband ] || { echo '## end'; exit 0; }; "
            "cd /sys/class/infiniband; set --; "
            'for d in *; do [ ! -e "$d" ] || set -- "$@" "$d/node_guid"; done; '
            'for p in */ports/*; do [ ! -e "$p" ] || set -- "$@" '
            '"$p/state" "$p/phys_state" "$p/link_layer" "$p/rate"; done; '
            "echo '## values'; [ $# = 0 ] || grep -H . \"$@\"; "
            'set -- *; [ -e "$1" ] || set --; '
            "echo '## parents'; for d in \"$@\"; do echo $d; done; "
            "echo '## parent paths'; [ $# = 0 ] || readlink -f $(printf '%s/device ' \"$@\"); "
            "echo '## netdevs'; for n in */device/net/*; do [ ! -e $n ] || echo $n; done; "
            + "".join(
                f"echo '## {kind}'; set --; for d in /sys/class/infiniband_{kind}/{prefix}*; do "
                '[ ! -e "$d" ] || set -- "$@" "$d/ibdev"; done; [ $# = 0 ] || grep -H . "$@"; '
                for kind, prefix in (("verbs", "uverbs"), ("mad", "umad"))
            )
            + "echo '## files'; [ ! -e /dev/infiniband ] || ls -1 /dev/infiniband; "
            "echo '## age'; [ ! -e /dev/infiniband ] || "
            "echo $(date +%s) $(stat -c %Y /dev/infiniband); "
            f"echo '## netns'; {where_there('/sys/module/ib_core/parameters/netns_mode', 'cat')}; "
            "echo '## end'"
        )

    def process(self, output: list[str]) -> InfinibandState:
        return parse_infiniband(output)


def parse_infiniband(output: list[str]) -> InfinibandState:
    """Read what ``Infiniband.command`` printed."""
    parts = sections(output)
    if "end" not in parts:
        raise FactProcessError("the list of RDMA devices ended early")
    if parts.keys() == {"end"}:
        return InfinibandState((), settled_s=None, rdma_cm=False, netns_shared=None)
    guids: dict[str, str] = {}
    ports: dict[str, dict[int, dict[str, str]]] = {}
    for match in each(parts["values"], VALUE, "value of an RDMA device"):
        name, number, attribute, value = match.groups()
        if number is None:
            guids[name] = value
        else:
            ports.setdefault(name, {}).setdefault(int(number), {})[attribute] = value
    if set(parts["parents"]) != guids.keys() or len(parts["parents"]) != len(parts["parent paths"]):
        raise FactProcessError("a device went away while it was read")
    paths = [match[0] for match in each(parts["parent paths"], PATH, "path of a device")]
    parents = dict(zip(parts["parents"], paths, strict=True))
    netdevs: dict[str, list[str]] = {}
    for match in each(parts["netdevs"], NETDEV, "network device"):
        netdevs.setdefault(match[1], []).append(match[2])
    files = {match[0] for match in each(parts["files"], FILE, "file name")}
    verbs = {device: node for node, device in _character_devices(parts["verbs"]) if node in files}
    mads = [(node, device) for node, device in _character_devices(parts["mad"]) if node in files]
    mode = [match[0] for match in each(parts["netns"], FLAG, "flag")]
    return InfinibandState(
        devices=tuple(
            InfinibandDevice(
                name=name,
                pci_address=_pci(parents.get(name)),
                node_guid=guids[name],
                ports=tuple(_port(n, values) for n, values in sorted(ports.get(name, {}).items())),
                netdevs=tuple(sorted(netdevs.get(name, []))),
                uverbs=verbs.get(name),
                umad=tuple(sorted(node for node, device in mads if device == name)),
            )
            for name in sorted(guids)
        ),
        settled_s=_age_s(parts["age"]),
        rdma_cm="rdma_cm" in files,
        netns_shared=mode[0] in ("Y", "1") if mode else None,
    )


def _character_devices(lines: list[str]) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in each(lines, CHARACTER_DEVICE, "character device")]


def _age_s(lines: list[str]) -> int | None:
    ages = [int(match[1]) - int(match[2]) for match in each(lines, TIMES, "two times")]
    return ages[0] if ages else None


def _pci(path: str | None) -> str | None:
    # /sys/devices/pci0001:00/0001:00:02.0/0001:41:00.0
    last = (path or "").rpartition("/")[2]
    return last if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", last) else None


def _port(number: int, values: dict[str, str]) -> InfinibandPort:
    try:
        rate = RATE.match(values["rate"])
        if rate is None:
            raise FactProcessError(f"no rate in {values['rate']!r}")
        return InfinibandPort(
            number=number,
            # 4: ACTIVE, 5: LinkUp
            state=values["state"].partition(": ")[2],
            phys_state=values["phys_state"].partition(": ")[2],
            link_layer=values["link_layer"].lower(),
            rate_gbps=float(rate[1]),
        )
    except KeyError as error:
        raise FactProcessError(f"port {number} has no {error}") from error
