"""NVIDIA driver releases as data: what a CUDA version needs of the driver."""

from __future__ import annotations

# Source: CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions", Linux
# x86_64, first release of each minor version (12.0 to 13.5, read 2026-11-30). Of 13.4 and 13.5
# only the branch that came with them is known: its first release counts.
DRIVER_MIN_BY_CUDA = {
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
    "13.2": "595.45.04",
    "13.3": "610.43.02",
    "13.4": "615",
    "13.5": "620",
}
"""First driver that is of a CUDA version: one that compiles its PTX and has all its features."""


def first_of_major(cuda: str) -> str:
    """
    The oldest CUDA version whose driver runs programs of *cuda*, by minor-version compatibility.

    Such programs may not need PTX compiled at run time, nor features of the newer driver.
    Source: CUDA Compatibility, "Minor Version Compatibility" (read 2026-11-30).
    """
    return f"{cuda.partition('.')[0]}.0"
