"""Facts: what each asks, and how it reads the answer. A case is a file, its folder the subject."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from pyinfra.api.exceptions import FactProcessError

from facts.readings import READINGS
from facts.snapshot import Snapshot, parse_snapshot
from tests.support.cases import CASES, contains, plain

FILES = sorted((CASES / "facts").glob("*/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_fact(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    assert case["source"], "where does this output come from?"
    module, name = path.parent.name.split(".")
    fact = getattr(import_module(f"facts.{module}"), name)()
    if "command" in case:
        assert str(fact.command(**case.get("args", {}))) == case["command"]
    output = case["output"].splitlines()
    if "error" in case:
        with pytest.raises(FactProcessError) as raised:
            fact.process(output)
        assert case["error"] in str(raised.value)
        return
    have = plain(fact.process(output))
    assert contains(have, case["value"]), yaml.safe_dump(have)


@pytest.mark.parametrize("fact", READINGS, ids=lambda fact: fact.__name__)
def test_every_reading_has_a_case(fact) -> None:
    folder = CASES / "facts" / f"{fact.__module__.removeprefix('facts.')}.{fact.__name__}"
    assert list(folder.glob("*.yaml")), f"no case in {folder}"


@pytest.mark.parametrize("fact", READINGS, ids=lambda fact: fact.__name__)
def test_default_is_unknown(fact) -> None:
    assert fact.default() is None


@pytest.mark.parametrize("fact", READINGS, ids=lambda fact: fact.__name__)
def test_rubbish_is_unread_and_hurts_no_other_reading(fact) -> None:
    output = [f"--8<-- {fact.__name__}", "\x00 rubbish \ufffd", "## end", "--8<-- rc 0"]
    readings = parse_snapshot(output, READINGS)
    assert len(readings.unread) >= len(READINGS) - 1


def test_snapshot_is_shell_that_any_sh_reads() -> None:
    command = Snapshot().command(files=("/etc/a b", "/etc/it's"), api_server=("h:1", "PEM"))
    subprocess.run(["sh", "-n", "-c", command], check=True)
