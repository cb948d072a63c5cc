"""docs/known-failures.md has every id that a test carries, and each test it names carries it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.messages import ROOT

GROUPS = "DRV|RTM|OFD|MIG|RDM|DPL|KAD|PYI|REP"
ID = re.compile(rf"(?<![A-Z])(?:{GROUPS})-\d\d(?!\d)")
ROW = re.compile(rf"^\| ((?:{GROUPS})-\d\d) \|[^|]+\|[^|]+\| ([^|]+) \|$", re.MULTILINE)
DOCUMENT = (ROOT / "docs/known-failures.md").read_text()


def ids(name: str) -> list[str]:
    """``test_drv_05_this``, ``DRV-17, DPL-04 that`` and the like; ids that are only mentioned."""
    return ID.findall(name.upper().replace("_", "-"))


def names(source: str) -> Iterator[str]:
    """Names of tests, and of cases that begin with an id."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                yield name
            case ast.Constant(value=str() as text) if ID.match(text):
                yield text


def carried() -> dict[str, set[str]]:
    """The modules whose tests carry each id."""
    found = defaultdict[str, set[str]](set)
    for path in {*(ROOT / "tests").glob("test_*.py")} - {Path(__file__)}:
        for name in names(path.read_text()):
            for known in ids(name):
                found[known].add(path.stem)
    for path in (ROOT / "tests/cases/facts").rglob("*.yaml"):
        for known in ids(path.stem):
            found[known].add("test_facts")
    return found


def test_the_table_is_what_the_tests_carry() -> None:
    rows = ROW.findall(DOCUMENT)
    assert len(rows) == len({known for known, _ in rows})
    assert {known: set(re.findall(r"`(\w+)`", tests)) for known, tests in rows} == carried()


def test_no_id_is_both_there_and_not_yet() -> None:
    rest = DOCUMENT.partition("\nNot yet: ")[2]
    missing = set()
    for group, numbers in re.findall(rf"({GROUPS})-([\d, to]+)", rest):
        for first, last in re.findall(r"(\d\d)(?: to (\d\d))?", numbers):
            missing |= {f"{group}-{n:02d}" for n in range(int(first), int(last or first) + 1)}
    assert len(missing) > 20
    assert not missing & carried().keys()


def test_the_search_finds_names_and_cases(tmp_path: Path) -> None:
    source = (
        '"""As DRV-01."""\ndef test_drv_02_x(): pass\nCASES = {"DRV-03, KAD-04 x": "see DRV-05"}'
    )
    assert [known for name in names(source) for known in ids(name)] == [
        "DRV-02", "DRV-03", "KAD-04",
    ]  # fmt: skip
