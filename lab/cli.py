"""The lab's command line."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab import description, host, mirror, network, node_objects, services
from lab import nodes as cluster_nodes
from lab.description import Description
from lab.errors import LabError
from lab.guest import accelerator, box, faults, identity, image, machines, ssh
from lab.guest.machines import BARE, Machine
from lab.lock import exclusive
from lab.parallel import each
from lab.progress import step


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    # Progress is for people: standard output stays what was asked for.
    console = Console(stderr=True, highlight=False)
    try:
        status: int = arguments.run(arguments, description.load(), console)
    except LabError as error:
        console.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m lab",
        description="A GPU/InfiniBand lab without the hardware: virtual machines with simulated "
        "devices, a package mirror, a registry and a control plane.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="bring everything up; what is up already is left alone")
    up.add_argument("--install", action="store_true", help="install missing programs with apt")
    parts = up.add_mutually_exclusive_group()
    parts.add_argument("--guests-only", action="store_true", help="without mirror, control plane")
    parts.add_argument("--services-only", action="store_true", help="without guests")
    up.set_defaults(run=run_up)

    down = commands.add_parser("down", help="stop everything; disks and caches stay")
    down.add_argument("--destroy", action="store_true", help="delete the guests' disks too")
    down.set_defaults(run=run_down)

    status = commands.add_parser("status", help="what runs")
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=run_status)

    nodes = commands.add_parser("nodes", help="the cluster's nodes, and what to try next")
    nodes.set_defaults(run=run_nodes)

    shell = commands.add_parser("ssh", help="a shell, or one command, in a guest")
    shell.add_argument("node")
    shell.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    shell.set_defaults(run=run_ssh)

    reset = commands.add_parser("reset", help="guests back to a snapshot, in seconds")
    reset.add_argument("nodes", nargs="*", metavar="NODE", help="all, if none is named")
    reset.add_argument("--to", default=BARE, metavar="NAME", help=f"snapshot, {BARE} by default")
    reset.set_defaults(run=run_reset)

    snapshot = commands.add_parser("snapshot", help="keep the guests' disks and memory by name")
    snapshot.add_argument("name")
    snapshot.add_argument("nodes", nargs="*", metavar="NODE", help="all, if none is named")
    snapshot.set_defaults(run=run_snapshot)

    pack = commands.add_parser("box", help="pack the guests' image for Vagrant")
    pack.set_defaults(run=run_box)

    fault = commands.add_parser(
        "fault",
        help="let something go wrong in a guest",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{kind:22} {fault.what}" for kind, fault in faults.FAULTS.items()),
    )
    fault.add_argument("node")
    fault.add_argument("kind", choices=sorted(faults.FAULTS), metavar="KIND")
    fault.add_argument("state", choices=["on", "off"])
    fault.set_defaults(run=run_fault)
    return top


def run_up(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    host.check(console, install=arguments.install)
    with exclusive(console):
        identity.make_keys(lab)
        with step(console, "libvirt"):
            host.start_libvirt()
        with step(console, f"network {lab.network.name}, {lab.network.host}"):
            network.up(lab)
        renewed = [] if arguments.services_only else bring_up_guests(lab, console)
        if not arguments.guests_only:
            services.up(console)
        if renewed:
            node_objects.revert(renewed, BARE)
    return 0


def bring_up_guests(lab: Description, console: Console) -> list[str]:
    """The names of the nodes that are bare now, whatever they were before."""
    apt_key = mirror.key()
    disk_image = image.build(lab, console)
    chosen = accelerator.choose(disk_image.kernel, console)

    guests = machines.machines(lab, [])
    with step(console, f"guests ({chosen})"):
        results = each(lambda guest: guest.up(disk_image, chosen, lab, apt_key), guests)
    outcomes = {guest.node.name: result for guest, result in zip(guests, results, strict=True)}
    console.print("   " + ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()))
    image.forget_others(disk_image)
    return [name for name, outcome in outcomes.items() if outcome != "kept"]


def run_box(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    host.check(console, install=False)
    with exclusive(console):
        host.start_libvirt()
        identity.make_keys(lab)
        packed = box.pack(image.build(lab, console), lab, mirror.key(), console)
    print(f"vagrant box add --force --provider libvirt --name rackwright/trixie {packed}")
    return 0


def run_down(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    host.check(console, install=False)
    with exclusive(console):
        host.start_libvirt()
        services.down()
        guests = machines.machines(lab, [])
        with step(console, "guests"):
            each(Machine.destroy if arguments.destroy else Machine.stop, guests)
        with step(console, "network"):
            network.down(lab)
    return 0


def run_status(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    guests = machines.machines(lab, [])
    states = each(Machine.status, guests)
    nodes = {guest.node.name: state for guest, state in zip(guests, states, strict=True)}
    bridge = network.status(lab)
    daemons = services.status()
    if arguments.json:
        found = {"network": bridge, "nodes": nodes, "services": daemons}
        print(json.dumps(found, indent=2, default=str))
        return 0
    table = Table("part", "state", "details", box=None)
    table.add_row("network", told(bridge.pop("active")), told(bridge))
    for name, state in nodes.items():
        table.add_row(name, told(state.pop("state")), told(state))
    for name, state in daemons.items():
        table.add_row(name, told(state.pop("running", None)), told(state))
    Console().print(table)
    return 0


def told(value: object) -> str:
    """A value as a person reads it: unknown is neither yes nor no."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {told(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(str(part) for part in value) or "none"
    if value is None:
        return "unknown"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def run_nodes(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    cluster_nodes.show(Console())
    return 0


def run_ssh(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    command = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    argv = ssh.argv(lab.node(arguments.node))
    # Several words are one command line, as if typed there; one word may be a shell script.
    argv += [shlex.join(command)] if len(command) > 1 else command
    sys.stdout.flush()
    os.execvp(argv[0], argv)


def run_reset(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    guests = machines.machines(lab, arguments.nodes)
    names = ", ".join(guest.node.name for guest in guests)
    with exclusive(console):
        host.start_libvirt()
        with step(console, f"{names} to {arguments.to}"):
            each(lambda guest: guest.revert(arguments.to), guests)
        with step(console, "node objects"):
            node_objects.revert([guest.node.name for guest in guests], arguments.to)
    return 0


def run_snapshot(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    guests = machines.machines(lab, arguments.nodes)
    names = ", ".join(guest.node.name for guest in guests)
    if arguments.name == BARE:
        raise LabError(f"snapshot: want another name, have {BARE!r}, which `up` takes itself")
    with exclusive(console), step(console, f"snapshot {arguments.name} of {names}"):
        host.start_libvirt()
        each(lambda guest: guest.snapshot(arguments.name), guests)
        node_objects.keep([guest.node.name for guest in guests], arguments.name)
    return 0


def run_fault(arguments: argparse.Namespace, lab: Description, console: Console) -> int:
    (guest,) = machines.machines(lab, [arguments.node])
    with step(console, f"{arguments.node}: {arguments.kind} {arguments.state}"):
        faults.inject(arguments.kind, guest, lab, on=arguments.state == "on")
    return 0
