"""MIG layouts: from the name in the inventory to the devices of each GPU, and whether they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from packaging.version import Version
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pyinfra.api.exceptions import InventoryError

from nodespec import catalogue
from nodespec.catalogue import GpuModel, MigProfile
from nodespec.problems import Problem, short, show
from nodespec.values import Flag, Int, List, ProfileName, Text, suggestion

if TYPE_CHECKING:
    from nodespec.model import NodeSpec

ALL_DISABLED = "all-disabled"
ALL_BALANCED = "all-balanced"
KEY = "mig_config"


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """What one GPU is to look like."""

    index: int
    enabled: bool
    """MIG mode."""
    profiles: tuple[str, ...]
    """MIG devices by profile, in the order in which they have to be created: largest first."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where on the GPU one MIG device goes."""

    profile: str
    start: int
    """First memory slice."""
    size: int
    """Memory slices."""


def _filter_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class MigLayoutEntry(BaseModel):
    """
    One entry of a layout, in mig-parted's own form.

    Source: NVIDIA/mig-parted api/spec/v1/spec.go at bd7160f4 (v0.15.0).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    device_filter: Annotated[
        List[Annotated[Text, Field(pattern=r"\A0x[0-9A-Fa-f]{8}\z")]] | None,
        BeforeValidator(_filter_list),
    ] = Field(default=None, alias="device-filter")
    """``0x<device id><vendor id>``; without one the entry is for every model."""
    devices: Literal["all"] | List[Annotated[Int, Field(ge=0, le=63)]]
    mig_enabled: Flag = Field(alias="mig-enabled")
    # No GPU has more than seven: a mistyped million of them is not to be counted out one by one.
    mig_devices: dict[ProfileName, Annotated[Int, Field(ge=1, le=64)]] = Field(
        default_factory=dict, alias="mig-devices"
    )

    def matches(self, index: int, model: GpuModel) -> bool:
        if self.device_filter is not None and not any(
            self.device_filter_of(pci_id) in {wanted.lower() for wanted in self.device_filter}
            for pci_id in model.pci_device_ids
        ):
            return False
        return self.devices == "all" or index in self.devices

    @staticmethod
    def device_filter_of(pci_device_id: str) -> str:
        return f"0x{pci_device_id}{catalogue.NVIDIA}"


def mig_layout(spec: NodeSpec) -> tuple[GpuLayout, ...]:
    """
    Return what each GPU of the node is to look like, by index.

    Raises ``InventoryError`` for a layout that cannot be; a spec of ``NodeSpec.of`` has none.
    """
    layout = resolve(spec)
    if isinstance(layout, Problem):
        raise InventoryError(str(layout))
    return layout


def resolve(spec: NodeSpec) -> tuple[GpuLayout, ...] | Problem:
    """Return the layout of each GPU, or why the inventory's words do not make one."""
    if spec.gpu_count == 0 or spec.gpu_model is None:
        if spec.mig_config != ALL_DISABLED:
            return Problem(
                KEY, f"{ALL_DISABLED!r} without GPUs", show(spec.mig_config), "set gpu_count too"
            )
        return ()
    model = catalogue.gpu(spec.gpu_model)
    if spec.mig_config in spec.mig_layouts:
        return _custom(spec, model, spec.mig_layouts[spec.mig_config])
    profiles = named(model).get(spec.mig_config.replace(".me", "+me"))
    if profiles is None:
        return _unknown(spec, model)
    enabled = bool(profiles)
    return tuple(GpuLayout(index, enabled, profiles) for index in range(spec.gpu_count))


def unknown(spec: NodeSpec) -> Problem | None:
    """Return what is wrong with the layout's name, whatever the number of GPUs."""
    if spec.gpu_model is None or spec.mig_config in spec.mig_layouts:
        return None
    model = catalogue.gpu(spec.gpu_model)
    if spec.mig_config.replace(".me", "+me") in named(model):
        return None
    return _unknown(spec, model)


@cache
def named(model: GpuModel) -> dict[str, tuple[str, ...]]:
    """Layouts that need no declaration: the devices that each GPU gets, by the layout's name."""
    layouts: dict[str, tuple[str, ...]] = {ALL_DISABLED: ()}
    for profile in reversed(model.mig_profiles):
        layouts[f"all-{profile.name}"] = (profile.name,) * profile.count_max
    if model.mig_balanced:
        layouts[ALL_BALANCED] = model.mig_balanced
    return layouts


def _unknown(spec: NodeSpec, model: GpuModel) -> Problem:
    allowed = [*named(model), *sorted(spec.mig_layouts)]
    have = show(spec.mig_config)
    if not model.mig_capable:
        return Problem(KEY, f"{ALL_DISABLED!r} on {model.name}", have, f"{model.name} has no MIG")
    todo = suggestion(spec.mig_config, allowed) or "or declare it in mig_layouts"
    return Problem(KEY, f"a layout of {model.name}: {', '.join(allowed)}", have, todo)


def _custom(
    spec: NodeSpec, model: GpuModel, entries: Sequence[MigLayoutEntry]
) -> tuple[GpuLayout, ...] | Problem:
    key = f"mig_layouts[{show(spec.mig_config)}]"
    layouts: list[GpuLayout] = []
    for entry in entries:
        if entry.devices != "all" and (beyond := [i for i in entry.devices if i >= spec.gpu_count]):
            return Problem(
                key,
                f"GPU indexes below gpu_count {spec.gpu_count}",
                ", ".join(map(str, beyond)),
                "make a layout for each size of node, or write devices: all",
            )
        if not entry.mig_enabled and entry.mig_devices:
            return Problem(
                key,
                "no mig-devices where mig-enabled is false",
                _counted(entry.mig_devices),
                "set mig-enabled to true or leave out mig-devices",
            )
    for index in range(spec.gpu_count):
        # As in mig-parted, the last entry that matches a GPU decides.
        last = next((entry for entry in reversed(entries) if entry.matches(index, model)), None)
        if last is None:
            return Problem(
                key,
                "an entry for each GPU",
                f"none for GPU {index} ({model.name})",
                "add one, with mig-enabled false if the GPU is to stay whole",
            )
        profiles = tuple(name for name, count in last.mig_devices.items() for _ in range(count))
        layouts.append(GpuLayout(index, last.mig_enabled, largest_first(model, profiles)))
    return tuple(layouts)


def largest_first(model: GpuModel, profiles: Iterable[str]) -> tuple[str, ...]:
    """
    Order profiles as the devices have to be created; a profile unknown to the model comes last.

    Source: NVIDIA MIG User Guide, "Creating GPU Instances" (read 2026-11-30): small devices first
    can take the places that a large one needs.
    """

    def size(name: str) -> tuple[int, int, str]:
        profile = model.profile(name)
        return (-profile.memory_slices, -profile.compute_slices, name) if profile else (0, 0, name)

    return tuple(sorted(profiles, key=size))


@cache
def feasible(model: GpuModel, profiles: tuple[str, ...]) -> tuple[Placement, ...] | Problem:
    """
    Place MIG devices on one GPU: return where each goes, largest first, or why they do not fit.

    Memory slices may not overlap, each profile has its own places, compute slices are as many as
    the model has, and some profiles exist only once.
    """
    wanted: list[MigProfile] = []
    for name in largest_first(model, profiles):
        profile = model.profile(name)
        if profile is None:
            return _no_profile(model, name)
        wanted.append(profile)
    if (placed := _place(model, wanted)) is not None:
        return placed

    fitting: list[MigProfile] = []
    for profile in wanted:
        if _place(model, [*fitting, profile]) is None:
            break
        fitting.append(profile)
    more = [p.name for p in model.mig_profiles if _place(model, [*fitting, p]) is not None]
    beside = f"beside {_counted(p.name for p in fitting)} there is room for "
    return Problem(
        KEY,
        f"MIG devices that fit on one {model.name}",
        _counted(p.name for p in wanted),
        beside + (f"one of {', '.join(more)}" if more else "nothing more"),
    )


def _place(model: GpuModel, wanted: Sequence[MigProfile]) -> tuple[Placement, ...] | None:
    """Place *wanted* in order, or return None; at most seven devices, so trying all is cheap."""
    if sum(profile.compute_slices for profile in wanted) > model.mig_compute_slices:
        return None
    counts = Counter(profile.name for profile in wanted)
    if any(counts[profile.name] > profile.count_max for profile in wanted):
        return None
    if sum(count for name, count in counts.items() if name.endswith("+me")) > 1:
        return None  # there is one set of media engines to give away

    def place(rest: Sequence[MigProfile], used: frozenset[int]) -> tuple[Placement, ...] | None:
        if not rest:
            return ()
        profile = rest[0]
        for start in profile.placements:
            slices = frozenset(range(start, start + profile.memory_slices))
            if slices & used:
                continue
            after = place(rest[1:], used | slices)
            if after is not None:
                return (Placement(profile.name, start, profile.memory_slices), *after)
        return None

    return place(wanted, frozenset())


def _no_profile(model: GpuModel, name: str) -> Problem:
    known = [profile.name for profile in model.mig_profiles]
    if not known:
        return Problem(
            KEY, f"no MIG devices on {model.name}", short(name), f"{model.name} has no MIG"
        )
    same = [other for other in known if other.partition(".")[0] == name.partition(".")[0]]
    todo = f"on this GPU {name.partition('.')[0]} is {' or '.join(same)}" if same else "choose one"
    return Problem(KEY, f"profiles of {model.name}: {', '.join(known)}", short(name), todo)


def problems(spec: NodeSpec) -> list[Problem]:
    """Return everything that is wrong with the node's MIG layout."""
    layout = resolve(spec)
    if isinstance(layout, Problem):
        return [layout]
    if spec.gpu_model is None:
        return []
    model = catalogue.gpu(spec.gpu_model)
    found = [
        problem
        for profiles in dict.fromkeys(gpu.profiles for gpu in layout if gpu.enabled)
        if isinstance(problem := feasible(model, profiles), Problem)
    ]
    if not model.mig_capable and any(gpu.enabled for gpu in layout):
        found = [_no_profile(model, "mig-enabled true")]
    return found or [*_strategy(spec, layout), *_driver(spec, model, layout)]


def _strategy(spec: NodeSpec, layout: tuple[GpuLayout, ...]) -> list[Problem]:
    """
    Return how layout and strategy contradict each other.

    Source: NVIDIA/k8s-device-plugin internal/lm/mig-strategy.go at 1b826ac (v0.20.0).
    """
    on = [gpu for gpu in layout if gpu.enabled]
    if not on:
        return []
    shape = f"mig_config {show(spec.mig_config)}"
    empty = [str(gpu.index) for gpu in on if not gpu.profiles]
    if empty:
        return [
            Problem(
                KEY,
                "a MIG device on each GPU with MIG mode on",
                f"none on GPU {', '.join(empty)}",
                "nothing could use such a GPU: add mig-devices or set mig-enabled to false",
            )
        ]
    key = "mig_strategy"
    have = repr(spec.mig_strategy)
    if spec.mig_strategy == "none":
        todo = "with 'none' whole GPUs are offered, of which a pod can use one device only"
        return [Problem(key, f"'single' or 'mixed' with {shape}", have, todo)]
    if spec.mig_strategy == "single":
        kinds = dict.fromkeys(name for gpu in on for name in gpu.profiles)
        if len(kinds) > 1:
            todo = f"'single' takes one profile on the whole node, not {', '.join(kinds)}"
            return [Problem(key, f"'mixed' with {shape}", have, todo)]
        if len(on) < len(layout):
            todo = "'single' takes MIG mode on every GPU of the node or on none"
            return [Problem(key, f"'mixed' with {shape}", have, todo)]
    return []


def _driver(spec: NodeSpec, model: GpuModel, layout: tuple[GpuLayout, ...]) -> list[Problem]:
    have = Version(spec.nvidia_driver_version)
    names = dict.fromkeys(name for gpu in layout for name in gpu.profiles)
    return [
        Problem(
            "nvidia_driver_version",
            f"{profile.driver_min} or later for {profile.name} on {model.name}",
            spec.nvidia_driver_version,
            "choose a later driver or another mig_config",
        )
        for name in names
        if (profile := model.profile(name)) is not None
        and profile.driver_min is not None
        and have < Version(profile.driver_min)
    ]


def _counted(profiles: Iterable[str] | dict[str, int]) -> str:
    counts = profiles if isinstance(profiles, dict) else Counter(profiles)
    return " + ".join(f"{count}x {name}" for name, count in counts.items()) or "nothing"
