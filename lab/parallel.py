"""The same work on several guests at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lab.errors import LabError

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results in the order of the items; if any fails, one error that tells of all of them."""
    with ThreadPoolExecutor(max_workers=max(1, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
    failures = [error for future in futures if (error := future.exception()) is not None]
    for error in failures:
        if not isinstance(error, LabError):
            raise error
    if failures:
        raise LabError("\n".join(str(error) for error in failures)) from failures[0]
    return [future.result() for future in futures]
