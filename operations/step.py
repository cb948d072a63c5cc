"""What a plan is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pyinfra.api.command import PyinfraCommand

Commands = Iterator[PyinfraCommand]


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a node: what, why, how.

    A step is proven by planning again: if the same step is still in the plan after
    it was applied, the host fails with its *want* and what it has instead.
    """

    title: str
    """Imperative, no value of one host in it: ``load the module``."""
    want: str
    have: str
    apply: Callable[[], Commands] = field(repr=False)
    disrupts: bool = False
    """Whether it disturbs what runs on the node."""
    reboots: bool = False
    waits_for: str | None = None
    """What has to come first: the step is shown in the plan, and applied once its time has come."""
    remedy: str = "look at the host, then run again"
    """What to do if it does not take."""
    diff: str | None = None
    """Unified diff of a file, for ``--dry``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason not to touch the node. All of them are told at once, before the first change."""

    component: str
    want: str
    have: str
    remedy: str
    unfit: bool = False
    """Whether users must not be on such a node: an open one is closed with this as the reason."""

    def __str__(self) -> str:
        return f"{self.component}: want {self.want}, have {self.have}; {self.remedy}"


class Phase(Protocol):
    """A module of ``deploys.phases``."""

    __name__: str

    def plan(self, spec, have) -> Iterator[Step | Refusal]:  # type: ignore[no-untyped-def]
        """The steps from *have* to *spec*; nothing if they agree. Pure."""
        ...


def phase_name(phase: Phase) -> str:
    return phase.__name__.rsplit(".", 1)[-1]
