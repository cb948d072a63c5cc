"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--inventory", help="pyinfra inventory of the fleet that tests/validation checks"
    )
    parser.addoption("--lab-all", action="store_true", help="the long matrices of tests/guest too")
