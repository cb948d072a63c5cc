"""The lab's bridge, with the lab host's address on it, DHCP and DNS: there without any guest."""

from __future__ import annotations

import hashlib
import json
from ipaddress import IPv4Address
from pathlib import Path

import jinja2

from lab.command import CommandError, run
from lab.description import Description
from lab.host import virsh
from lab.paths import STATE, TREE

TEMPLATE = TREE / "network.xml.j2"
RECORD = STATE / "network.json"


def up(description: Description) -> None:
    name = description.network.name
    xml = render(description)
    digest = hashlib.sha256(xml.encode()).hexdigest()
    if is_active(name) and bridge_exists(name) and recorded() == digest:
        if not dnsmasq_runs(name):
            restart_dnsmasq(description)
        return
    down(description)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    definition = STATE / "network.xml"
    definition.write_text(xml)
    virsh("net-define", definition)
    virsh("net-start", name)
    virsh("net-autostart", name)
    RECORD.write_text(json.dumps({"sha256": digest}) + "\n")


def down(description: Description) -> None:
    """Take the network away, also what a killed libvirt left of it."""
    name = description.network.name
    RECORD.unlink(missing_ok=True)
    if is_active(name):
        virsh("net-destroy", name)
    if name in virsh("net-list", "--all", "--name").split():
        virsh("net-undefine", name)
    if bridge_exists(name):
        run(["ip", "link", "delete", name])


def is_active(name: str) -> bool:
    return name in virsh("net-list", "--name").split()


def bridge_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def dnsmasq_runs(name: str) -> bool:
    """Whether the network's DHCP and DNS live; libvirt does not notice if they were killed."""
    try:
        pid = Path("/run/libvirt/network", f"{name}.pid").read_text().strip()
        return b"dnsmasq" in Path("/proc", pid, "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def restart_dnsmasq(description: Description) -> None:
    """Without a restart of the network, which would cut off the guests that run."""
    node = description.nodes[0]
    # An update that changes nothing: libvirt looks at its dnsmasq at every one.
    same = f"<host mac='{node.mac}' name='{node.name}' ip='{node.address}'/>"
    name = description.network.name
    virsh("net-update", name, "modify", "ip-dhcp-host", same, "--live")


def drop_connections(guest: IPv4Address) -> None:
    """
    End the TCP connections of this machine with a guest that has gone back in time.

    Both ends hold one to be alive and neither takes the other's sequence numbers: its kubelet
    would wait most of a minute for the API server before it makes another.
    """
    run(["ss", "--kill", "--tcp", "dst", str(guest)], hint="its kernel needs INET_DIAG_DESTROY")


def recorded() -> str | None:
    try:
        return str(json.loads(RECORD.read_text())["sha256"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def status(description: Description) -> dict[str, object]:
    name = description.network.name
    try:
        active: bool | None = is_active(name)
    except CommandError:
        active = None  # libvirt does not answer
    return {
        "active": active,
        "bridge": bridge_exists(name),
        "dnsmasq": dnsmasq_runs(name),
        "host": str(description.network.host),
    }


def render(description: Description) -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)
    template = environment.from_string(TEMPLATE.read_text())
    return template.render(network=description.network, nodes=description.nodes)
