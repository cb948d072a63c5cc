"""The list of readings: one line per fact, in the order in which a host answers them."""

from __future__ import annotations

from pyinfra.api import FactBase

from facts.files import Files

READINGS: tuple[type[FactBase], ...] = (Files,)
