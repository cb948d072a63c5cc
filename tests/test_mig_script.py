"""The script that applies a MIG layout, run for real against a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from operations.templates import render

# Keeps MIG modes and instances in files; answers in nvidia-smi's own form.
NVIDIA_SMI = r"""#!/bin/sh
echo "$*" >> "$STATE/log"
gpu=; args=; create=
while [ $# -gt 0 ]; do
    case "$1" in
        -i) gpu=$2; shift ;;
        -cgi) create=$2; args="$args -cgi"; shift ;;
        *) args="$args $1" ;;
    esac
    shift
done
case "$args" in
    *--query-gpu=mig.mode.current*) cat "$STATE/$gpu.mode" ;;
    *--query-gpu=mig.mode.pending*) cat "$STATE/$gpu.mode" ;;
    *-mig\ 1*) [ -e "$STATE/$gpu.stuck" ] || echo Enabled > "$STATE/$gpu.mode" ;;
    *-mig\ 0*) echo Disabled > "$STATE/$gpu.mode"; : > "$STATE/$gpu.devices" ;;
    *-lgi*) n=0; while read -r p; do n=$((n+1)); echo "|   $gpu  MIG $p   19   $n   0:1 |"; done \
        < "$STATE/$gpu.devices"; [ $n -gt 0 ] || { echo "No GPU instances found"; exit 6; } ;;
    *-dci*|*-dgi*) [ -s "$STATE/$gpu.devices" ] || exit 6
        case "$args" in *-dgi*) : > "$STATE/$gpu.devices" ;; esac ;;
    *-cgi*) [ -e "$STATE/$gpu.full" ] && { echo "Insufficient Resources"; exit 23; }
        echo "$create" | tr , '\n' > "$STATE/$gpu.devices" ;;
    *-L*) for f in "$STATE"/?.mode; do g=$(basename "$f" .mode); echo "GPU $g: Sim (UUID: GPU-$g)"
        n=0; while read -r p; do echo "  MIG $p     Device  $n: (UUID: MIG-$g-$n)"
        n=$((n+1)); done \
        < "$STATE/$g.devices"; done ;;
    *--gpu-reset*) ;;
    *) echo "unexpected: $args" >&2; exit 2 ;;
esac
"""
SYSTEMCTL = '#!/bin/sh\necho "systemctl $*" >> "$STATE/log"\n[ "$1" != is-active ]\n'


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layout = folder / "layout"
        self.script = folder / "apply"
        self.script.write_text(render("mig/apply.sh.j2", layout=self.layout))
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("systemctl", SYSTEMCTL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        for gpu in "01":
            (folder / f"{gpu}.mode").write_text("Disabled\n")
            (folder / f"{gpu}.devices").write_text("")
        (folder / "log").write_text("")

    def apply(self, layout: str) -> subprocess.CompletedProcess[str]:
        self.layout.write_text(layout)
        (self.folder / "log").write_text("")
        environment = {**os.environ, "STATE": str(self.folder)}
        environment["PATH"] = f"{self.folder}:{environment['PATH']}"
        return subprocess.run(
            ["sh", self.script], env=environment, capture_output=True, text=True, check=False
        )

    def devices(self, gpu: int) -> list[str]:
        return (self.folder / f"{gpu}.devices").read_text().split()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


LAYOUT = "# comment\n0 on 3g.20gb,1g.5gb,1g.5gb\n1 off\n"


def test_layout_is_applied_per_gpu(machine: Machine) -> None:
    done = machine.apply(LAYOUT)
    assert done.returncode == 0, done.stderr
    assert machine.devices(0) == ["3g.20gb", "1g.5gb", "1g.5gb"]
    assert machine.devices(1) == []
    assert (machine.folder / "1.mode").read_text() == "Disabled\n"


def test_layout_that_is_there_is_left_alone(machine: Machine) -> None:
    machine.apply(LAYOUT)
    assert machine.apply(LAYOUT).returncode == 0
    for word in ("-cgi", "-dgi", "-dci", "-mig ", "--gpu-reset"):
        assert word not in machine.log


def test_mig_11_mode_that_does_not_change_is_told(machine: Machine) -> None:
    (machine.folder / "0.stuck").touch()
    done = machine.apply(LAYOUT)
    assert done.returncode == 1
    assert "mig: want MIG mode of GPU 0 on, have Disabled" in done.stderr
    assert "--gpu-reset -i 0" in machine.log


def test_mig_02_devices_that_were_not_made_are_told(machine: Machine) -> None:
    (machine.folder / "0.full").touch()
    done = machine.apply(LAYOUT)
    assert done.returncode == 1
    assert "mig: want 1g.5gb,1g.5gb,3g.20gb on GPU 0, have none; " in done.stderr


def test_one_gpu_that_fails_does_not_keep_the_other_from_its_layout(
    machine: Machine,
) -> None:
    (machine.folder / "0.stuck").touch()
    done = machine.apply("0 on 7g.40gb\n1 on 7g.40gb\n")
    assert done.returncode == 1
    assert machine.devices(1) == ["7g.40gb"]


def test_mig_09_a_boot_does_not_hang_on_it() -> None:
    unit = render("mig/rackwright-mig.service.j2", layout="/layout", script="/script")
    (limit,) = re.findall(r"^TimeoutStartSec=(\d+)$", unit, re.MULTILINE)
    assert 0 < int(limit) <= 600
    # The kubelet comes after it, and comes whatever becomes of it.
    assert re.findall(r"^(\w+)=.*kubelet", unit, re.MULTILINE) == ["Before"]


def test_rtm_15_cdi_is_refreshed_after_a_change(machine: Machine) -> None:
    machine.apply(LAYOUT)
    assert "systemctl restart nvidia-cdi-refresh.service" in machine.log
