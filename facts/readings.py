"""The list of readings: one line per fact, in the order in which a host answers them."""

from __future__ import annotations

from pyinfra.api import FactBase

from facts.files import Files
from facts.os import OsRelease
from facts.packages import Packages
from facts.repositories import AptSources

READINGS: tuple[type[FactBase], ...] = (
    Files,
    OsRelease,
    Packages,
    AptSources,
)
