"""Guest tests: ordered by value, the whole path first; no new one after the time is over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.guest.lab import Lab, say

STARTED = time.monotonic()
LAST_START_S = 60 * float(os.environ.get("RACKWRIGHT_LAST_START_MIN", "58"))
"""No guest test starts later than this, counted from the start of the session."""

left_out: list[str] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--lab-all"):
        left_out.append(f"{item.name} (make test-lab-all)")
        pytest.skip("left out: it is of the long matrices, run make test-lab-all")
    if time.monotonic() - STARTED > LAST_START_S:
        left_out.append(item.name)
        pytest.skip(f"left out: {LAST_START_S / 60:.0f} minutes are over")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if left_out:
        terminalreporter.section("left out")
        for name in left_out:
            terminalreporter.line(name)


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab, brought up from whatever state it is in."""
    folder = Path(os.environ.get("RACKWRIGHT_TEST_LOGS", "runs/guest"))
    say(f"logs: {folder}")
    lab = Lab(folder)
    lab.up()
    return lab
