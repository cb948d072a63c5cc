"""Reading case files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent.parent / "cases"


def plain(value: Any) -> Any:
    """A value as YAML would hold it: dataclasses as mappings, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def contains(have: Any, want: Any) -> bool:
    """Whether *have* says all that *want* says; a case need not repeat what it is not about."""
    if isinstance(want, dict) and isinstance(have, dict):
        return all(key in have and contains(have[key], item) for key, item in want.items())
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and all(map(contains, have, want))
    return bool(have == want)
