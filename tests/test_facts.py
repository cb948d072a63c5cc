"""Facts: what each asks, and how it reads the answer. A case is a file, its folder the subject."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyinfra.api.exceptions import FactProcessError

from facts.network import ApiServer
from facts.os import Clock, DiskFree, OsRelease
from facts.readings import READINGS
from facts.snapshot import MARK, Snapshot, parse_snapshot
from tests.support.cases import CASES, contains, plain

FILES = sorted((CASES / "facts").glob("*/*.yaml"))
SNAPSHOTS = sorted((CASES / "snapshots").glob("*.txt"))


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


DISK_FREE = ["Filesystem", *3 * ["/dev/vda1 99 1 50 1% /"]]
EMPTY_LISTS = ("AptSources", "UnattendedUpgrades", "Sysctls", "Xids", "PciDevices", "Infiniband")
"""Of a host that has nothing of the kind they print their end, and nothing before it."""


@pytest.mark.parametrize(
    "rubbish", ["rubbish", "\x00 \ufffd", "<html>", "Segmentation fault", "-", "## end"]
)
@pytest.mark.parametrize("fact", READINGS, ids=lambda fact: fact.__name__)
def test_rubbish_is_unread_and_hurts_no_other_reading(fact, rubbish) -> None:
    output = ["--8<-- DiskFree", *DISK_FREE, "--8<-- rc 0"] if fact is not DiskFree else []
    output += [f"--8<-- {fact.__name__}", rubbish, "--8<-- rc 0"]
    readings = parse_snapshot(output, READINGS)
    if rubbish != "## end" or fact.__name__ not in EMPTY_LISTS:
        assert readings.known(fact) is None
        assert fact.__name__ in readings.unread
    assert (readings.known(DiskFree) is None) == (fact is DiskFree)


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda p: p.stem)
def test_every_reading_of_a_host_that_there_was_is_made(path: Path) -> None:
    """Printed by the lab's guests: parsers that were told only of tidy output learn it here."""
    assert parse_snapshot(path.read_text().splitlines(), READINGS).unread == {}


def case_of(path: Path) -> tuple[Any, list[str], object]:
    """A case's fact, its output, and what is read of it; ``None`` for a case of an error."""
    case = yaml.safe_load(path.read_text())
    module, name = path.parent.name.split(".")
    fact = getattr(import_module(f"facts.{module}"), name)
    output = case["output"].splitlines()
    return fact, output, parsed(fact, output)


def parsed(fact: Any, output: list[str]) -> Any:
    snapshot = [f"--8<-- {fact.__name__}", *output, "--8<-- rc 0"]
    return parse_snapshot(snapshot, READINGS).known(fact)


ANY_WORDS = {
    "UnattendedUpgrades": "patterns of names", "Kubelet": "names of files",
    "ApiServer": "a tool's message", "Containerd": "a tool's message", "Gpus": "a tool's message",
}  # fmt: skip
"""Readings some of whose lines may be any words: what is told of them, and decides nothing else."""


def spoilt_by_a_line(fact: Any, output: list[str], lines: Iterable[int]) -> None:
    """A line of rubbish makes the reading unread, or what was read does not depend on that line."""
    good = parsed(fact, output)
    for n in lines:
        if good is None or output[n].startswith("## ") or fact is Clock:
            continue
        spoilt = parsed(fact, [*output[:n], "rubbish in its place", *output[n + 1 :]])
        assert spoilt in (None, good) or fact.__name__ in ANY_WORDS, (output[n], spoilt)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_line_of_rubbish_makes_a_reading_unread_or_no_difference(path: Path) -> None:
    fact, output, _ = case_of(path)
    spoilt_by_a_line(fact, output, range(len(output)))


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda p: p.stem)
def test_a_line_of_rubbish_in_what_a_guest_printed(path: Path) -> None:
    """Some lines of each reading, since some have hundreds of one kind."""
    parts = (part.splitlines() for part in path.read_text().split("--8<-- "))
    printed = {part[0]: part[1:] for part in parts if part}
    for fact in READINGS:
        output = printed[fact.__name__]
        some = random.Random(fact.__name__).sample(range(len(output)), min(9, len(output)))
        spoilt_by_a_line(fact, output, some)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_reading_that_was_cut_short_is_unread(path: Path) -> None:
    fact, output, good = case_of(path)
    for n in range(1, len(output)):
        cut = parsed(fact, output[:n])
        # A plain cat that did not get to the end does not end with 0; what the tool of the API
        # server's reading says comes last, and decides only what is told.
        if good is not None and fact not in (OsRelease, ApiServer):
            assert cut in (None, good), (output[n], cut)


def test_drv_15_no_reading_may_hang() -> None:
    """nvidia-smi blocks for minutes, or for ever, on a GPU whose firmware does not answer."""
    limits = re.findall(rf"echo '{MARK} (\w+)'; timeout -k 2 (\d+) sh -c ", Snapshot().command())
    assert [name for name, _ in limits] == [fact.__name__ for fact in READINGS]
    assert all(0 < int(limit) <= 120 for _, limit in limits)


def test_snapshot_is_shell_that_any_sh_reads() -> None:
    command = Snapshot().command(files=("/etc/a b", "/etc/it's"), api_server=("h:1", "PEM"))
    subprocess.run(["sh", "-n", "-c", command], check=True)
