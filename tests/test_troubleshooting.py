"""docs/troubleshooting.md has every message of ours, and none that is no longer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from facts.readings import READINGS
from operations.causes import FETCHING, ON_THE_HOST
from tests.support.messages import ROOT, VALUE, messages, titles_without_a_remedy, without_a_remedy

DOCUMENT = (ROOT / "docs/troubleshooting.md").read_text()
LINES = re.findall(r"^`([^`]+)`$", DOCUMENT, re.MULTILINE)
FOUND = messages()
SECTION_OF_CAUSES = DOCUMENT.partition("### A command failed")[2].partition("\n### ")[0]


def test_every_message_has_an_entry() -> None:
    missing = [f"{place}: {text}" for text, place in FOUND.items() if text not in LINES]
    assert not missing, "add to docs/troubleshooting.md:\n" + "\n".join(missing)


def test_every_entry_has_a_message() -> None:
    stale = [line for line in LINES if line not in FOUND]
    assert not stale, "no such message any more:\n" + "\n".join(stale)


def test_a_message_stands_in_one_entry() -> None:
    assert sorted(LINES) == sorted(set(LINES))


def test_every_entry_says_what_to_do() -> None:
    for entry in re.split(r"^### ", DOCUMENT, flags=re.MULTILINE)[1:]:
        prose = [
            line for line in entry.split("\n## ")[0].splitlines()[1:]
            if line and not re.fullmatch(r"`[^`]+`", line)
        ]  # fmt: skip
        assert len(" ".join(prose)) > 30, entry.splitlines()[0]


def test_every_message_says_what_to_do() -> None:
    assert without_a_remedy() == []


def test_every_step_that_can_fail_says_what_to_do() -> None:
    assert titles_without_a_remedy() == []


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ('tell(host, f"lock: want {PATH} free, have {holder}; wait")', True),
        ('tell(host, f"lock: want {PATH} free, have {holder}")', False),
        ('tell(host, "failed to take the lock")', False),
        ('raise ClusterError(f"{where}: want it, have {it}; " + "look")', True),
        ("raise ClusterError(message)", True),
        ('yield Refusal("a", "b", "c", "d")', True),
        ('yield Refusal("a", "b", "c")', False),
        ('yield Step("do it", "a", "b", go)', False),
        ('yield Step("do it", "a", "b", go, remedy="look")', True),
        ('yield Step("wait", "a", "b", lambda: iter(()), waits_for="it")', True),
    ],
)
def test_a_sentence_without_a_remedy_is_found(tmp_path: Path, line: str, good: bool) -> None:
    (tmp_path / "operations").mkdir()
    (tmp_path / "operations/new.py").write_text(f"def f():\n    {line}\n")
    assert (without_a_remedy(tmp_path) + titles_without_a_remedy(tmp_path) == []) is good


@pytest.mark.parametrize("name", [fact.__name__ for fact in READINGS])
def test_every_reading_is_explained(name: str) -> None:
    assert re.search(rf"^\| .*`{name}`.* \|", DOCUMENT, re.MULTILINE)


def test_every_known_cause_of_a_failed_command_is_explained() -> None:
    clauses = {re.sub(r"\{\w+\}", VALUE, known.have) for known in (*ON_THE_HOST, *FETCHING)}
    rows = {row for row in re.findall(r"^\| `([^`]+)` \|", SECTION_OF_CAUSES, re.MULTILINE)}
    assert rows == clauses - {VALUE}  # a tool's own words, whole


def test_every_reason_on_a_node_is_explained() -> None:
    """Words in CamelCase that the operations write into the node's condition."""
    source = "".join((ROOT / f"operations/{name}.py").read_text() for name in ("node", "admission"))
    reasons = set(re.findall(r'"((?:[A-Z][a-z]+){1,3})"', source)) - {"True", "False", "Unknown"}
    assert {"Validated", "Changing", "NotFit"} <= reasons
    assert {reason for reason in reasons if f"| `{reason}` |" not in DOCUMENT} == set()


def test_every_test_of_the_validation_is_explained() -> None:
    names = [
        node.name
        for path in (ROOT / "tests/validation").glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(names) > 8
    assert [name for name in names if f"`{name}" not in DOCUMENT] == []


def test_every_kind_of_problem_of_an_inventory_is_explained() -> None:
    """A module of nodespec is a kind: a key by itself, keys together, hosts together, files."""
    makers = {
        path.name
        for path in (ROOT / "nodespec").glob("*.py")
        if re.search(r"\b(Problem|_problem)\(|raise ValueError\(", path.read_text())
    } - {"problems.py"}
    assert len(makers) > 5
    assert {name for name in makers if f"`nodespec/{name}`" not in DOCUMENT} == set()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", DOCUMENT):
        assert (ROOT / "docs" / target).exists(), target


def test_the_search_sees_what_is_new(tmp_path: Path) -> None:
    source = '''
def plan(spec, have):
    """Not a message: want this, have that; ignore it."""
    what = "a thing"
    found = "nothing" if spec else f"{spec.found} of it"
    yield Refusal("thing", f"{spec.count} of it", "one" if spec else "two", "do something")
    yield Refusal("thing", what, found, remedy="do something")
    yield Step("turn it on", "on", "off", lambda: iter(()))
    yield helper("write it down", 1)
    tell(host, f"lock: want {PATH} free, have {holder}; wait")
    raise ClusterError(f"{where}: want {what}, have none; look")


def helper(title, n):
    return Step(title, "x", "y", None)
'''
    (tmp_path / "operations").mkdir()
    (tmp_path / "operations/new.py").write_text(source)
    assert set(messages(tmp_path)) == {
        "thing: want … of it, have one", "thing: want … of it, have two",
        "thing: want a thing, have …",
        "after: turn it on", "after: write it down", "lock: want … free, have …",
        "…: want a thing, have none",
    }  # fmt: skip
