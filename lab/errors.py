"""The base of what the lab raises for a person to read."""

from __future__ import annotations


class LabError(Exception):
    """``<component>: want <x>, have <y>; <what to do>``: printed without a trace."""
