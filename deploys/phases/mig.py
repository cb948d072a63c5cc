"""MIG: a named layout, its mode and devices, there again after every boot."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from pyinfra.api import StringCommand, deploy

from deploys.phases import preflight
from facts.files import Files
from facts.mig import Gpu, Gpus, MigService
from nodespec import GpuLayout, NodeSpec, mig_layout
from operations import node
from operations.files import put, written
from operations.have import Have
from operations.step import Commands, Refusal, Step
from operations.templates import render

LAYOUT = "/etc/rackwright/mig-layout"
PREVIOUS = "/var/lib/rackwright/mig-layout.previous"
SCRIPT = "/usr/local/lib/rackwright/mig-apply"
UNIT = "/etc/systemd/system/rackwright-mig.service"


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (LAYOUT, SCRIPT, UNIT)


def layout_text(layout: tuple[GpuLayout, ...]) -> str:
    """The layout file: a line per GPU, profiles in the order in which they can be created."""
    lines = [
        "# Written by Rackwright: GPU index, on or off, profiles in the order of their creation."
    ]
    for gpu in layout:
        lines.append(
            f"{gpu.index} on {','.join(gpu.profiles)}" if gpu.enabled else f"{gpu.index} off"
        )
    return "\n".join(lines) + "\n"


def current_text(gpus: tuple[Gpu, ...]) -> str:
    """What is there, in the same form: what a person needs to put it back."""
    return "".join(
        f"{gpu.index} on {','.join(gpu.gpu_instances)}\n" if gpu.mig_mode else f"{gpu.index} off\n"
        for gpu in gpus
    )


def same(want: GpuLayout, have: Gpu) -> bool:
    if not want.enabled:
        return not have.mig_mode and not have.mig_mode_pending
    profiles = sorted(want.profiles)
    return (
        have.mig_mode is True
        and have.mig_mode_pending is True
        and list(have.gpu_instances) == profiles
        and sorted(device.profile for device in have.mig_devices) == profiles
    )


def told(profiles: tuple[str, ...]) -> str:
    counted = Counter(profiles)
    return ", ".join(f"{count}x {name}" for name, count in sorted(counted.items())) or "no devices"


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    if not spec.gpu_count:
        return
    want = mig_layout(spec)
    state = have[Gpus]
    now = have[Files]

    if state.usable:
        refusals = list(impossible(want, state.gpus))
        yield from refusals
        if refusals:
            return
    for title, path, text, mode in (
        ("declare the MIG layout", LAYOUT, layout_text(want), "0644"),
        ("install what applies it", SCRIPT, render("mig/apply.sh.j2", layout=LAYOUT), "0755"),
        (
            "install the boot unit", UNIT,
            render("mig/rackwright-mig.service.j2", layout=LAYOUT, script=SCRIPT), "0644",
        ),
    ):  # fmt: skip
        if step := written(title, path, text, now, mode):
            yield step

    # Steps of one plan are applied in their order: what needs the files above comes after them.
    service = have[MigService]
    if not service.enabled:

        def enable() -> Commands:
            # systemd would read all units anew, which can take the GPUs from pods (failures
            # RTM-13). The next boot does, or the step that applies a layout.
            yield StringCommand("systemctl enable --no-reload rackwright-mig.service")

        yield Step(
            "enable the boot unit", "rackwright-mig.service enabled", "it disabled", enable,
            remedy="read `systemctl status rackwright-mig.service`",
        )  # fmt: skip

    if not state.usable:
        yield Step(
            "apply the MIG layout", "the layout as declared", state.reason or "unknown",
            lambda: iter(()), waits_for="the driver",
        )  # fmt: skip
        return
    different = [
        (gpu, current)
        for gpu in want
        for current in state.gpus
        if current.index == gpu.index and not same(gpu, current)
    ]
    if different:
        want_text = "; ".join(
            f"GPU {gpu.index}: {told(gpu.profiles) if gpu.enabled else 'off'}"
            for gpu, _ in different
        )
        have_text = "; ".join(
            f"GPU {current.index}: "
            + (told(current.gpu_instances) if current.mig_mode else "off")
            + (", mode pending" if current.mig_mode != current.mig_mode_pending else "")
            for _, current in different
        )

        def apply() -> Commands:
            yield put(PREVIOUS, current_text(state.gpus))
            yield StringCommand(
                "systemctl daemon-reload && systemctl restart rackwright-mig.service || "
                "{ journalctl -u rackwright-mig.service -n 20 --no-pager -o cat >&2; exit 1; }"
            )

        yield Step(
            "apply the MIG layout", want_text, have_text, apply, disrupts=True,
            remedy=f"read `journalctl -u rackwright-mig`; the layout before is in {PREVIOUS}",
        )  # fmt: skip


def impossible(want: tuple[GpuLayout, ...], gpus: tuple[Gpu, ...]) -> Iterator[Refusal]:
    """What these GPUs, under this driver, cannot be divided into."""
    by_index = {gpu.index: gpu for gpu in gpus}
    for layout in want:
        gpu = by_index.get(layout.index)
        if gpu is None:
            yield Refusal(
                "mig", f"a GPU of index {layout.index}",
                ", ".join(f"GPU {index}" for index in by_index) or "no GPU",
                "correct gpu_count, or find out where the GPU is", unfit=True,
            )  # fmt: skip
            continue
        if not layout.enabled:
            continue
        if gpu.mig_mode is None:
            yield Refusal(
                "mig", f"GPU {gpu.index} divided", f"{gpu.name}, which has no MIG",
                "set mig_config: all-disabled for this host",
            )  # fmt: skip
        missing = sorted(set(layout.profiles) - set(gpu.profiles_offered))
        if gpu.profiles_offered and missing:
            yield Refusal(
                "mig", f"GPU {gpu.index} with {', '.join(missing)}",
                f"{gpu.name}, which offers {', '.join(gpu.profiles_offered)}",
                "choose among these",
            )  # fmt: skip


@deploy("MIG")
def mig() -> None:
    node.converge(name="Converge MIG", phases=[preflight, sys.modules[__name__]])
