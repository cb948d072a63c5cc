"""The lab's own Go programs: their tests, with what the module cache has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.mirror.go import go
from lab.paths import TREE

MODULES = sorted({path.parent for path in TREE.rglob("*_test.go")})


def run(module: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    return subprocess.run(
        [go(), "-C", str(module), *arguments], env=env, capture_output=True, text=True
    )


def test_there_are_some() -> None:
    assert TREE / "device_plugin" in MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(TREE)))
def test_go_program(module: Path) -> None:
    needed = run(module, "list", "-deps", "-test", "./...")
    if needed.returncode and "GOPROXY" in needed.stderr:
        pytest.skip(f"modules not downloaded; run: go -C {module} mod download")
    assert needed.returncode == 0, needed.stderr
    for check in (["vet", "./..."], ["test", "./..."]):
        done = run(module, *check)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(TREE)))
def test_go_program_is_formatted(module: Path) -> None:
    gofmt = Path(go()).with_name("gofmt")
    listed = subprocess.run([gofmt, "-l", module], capture_output=True, text=True, check=True)
    assert listed.stdout == ""
