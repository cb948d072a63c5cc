"""Shell that changes files of the system, run by a real shell on copies of them."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from deploys.phases import base
from facts.files import Files, FileState
from facts.system import SwapState
from operations import files, nvidia

FSTAB = """\
# <file system> <mount point> <type> <options> <dump> <pass>
UUID=1 /               ext4    errors=remount-ro 0 1
UUID=2 none            swap    sw 0 0
# UUID=3 none swap sw 0 0
/swap.img\tnone\tswap\tsw\t0\t0
UUID=4 /data/swap      ext4    defaults 0 2
"""


@pytest.fixture
def program(tmp_path: Path):
    """Put programs of ours in front of the system's."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def write(name: str, body: str = "") -> None:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{body}\n')
        (programs / name).chmod(0o755)

    return write


def run(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(["dash", "-c", script], env=environment, capture_output=True, text=True)


def test_only_swap_entries_of_fstab_are_touched(tmp_path, program):
    fstab = tmp_path / "fstab"
    fstab.write_text(FSTAB)
    fstab.chmod(0o640)
    program("swapoff")
    program(
        "systemctl",
        'case "$*" in list-units*) echo "dev-zram0.swap loaded active active x"; '
        'echo "dev-sda3.swap masked inactive dead x";; esac',
    )
    state = SwapState(("/dev/zram0",), ("UUID=2 none swap sw 0 0",), ("dev-zram0.swap",))
    (step,) = base.no_swap({base.Swap: state})  # type: ignore[arg-type]
    (command,) = step.apply()
    script = str(command.get_raw_value()).replace("/etc/fstab", str(fstab))
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    mark = base.FSTAB_MARK
    assert fstab.read_text() == FSTAB.replace(
        "UUID=2 none", f"{mark}UUID=2 none"
    ).replace("/swap.img", f"{mark}/swap.img")  # fmt: skip
    assert fstab.stat().st_mode & 0o777 == 0o640
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "swapoff -a"
    assert calls[-1] == "systemctl mask --now dev-zram0.swap"
    assert list(tmp_path.glob("fstab.*")) == []


def test_swap_that_cannot_be_turned_off_leaves_fstab_alone(tmp_path, program):
    fstab = tmp_path / "fstab"
    fstab.write_text(FSTAB)
    program("swapoff", "exit 1")
    (step,) = base.no_swap({base.Swap: SwapState(("/dev/sda3",), (), ())})  # type: ignore[arg-type]
    (command,) = step.apply()
    script = str(command.get_raw_value()).replace("/etc/fstab", str(fstab))
    assert run(script, tmp_path).returncode == 1
    assert fstab.read_text() == FSTAB


def test_an_fstab_that_is_a_link_stays_one(tmp_path, program):
    kept, fstab = tmp_path / "site/fstab", tmp_path / "fstab"
    kept.parent.mkdir()
    kept.write_text(FSTAB)
    fstab.symlink_to(kept)
    program("swapoff")
    program("systemctl")
    (step,) = base.no_swap({base.Swap: SwapState(("/dev/sda3",), (), ())})  # type: ignore[arg-type]
    (command,) = step.apply()
    done = run(str(command.get_raw_value()).replace("/etc/fstab", str(fstab)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert fstab.is_symlink()
    assert f"{base.FSTAB_MARK}UUID=2 none" in kept.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "calls", "fstab", "site"]
    assert list(kept.parent.iterdir()) == [kept]


def wrote(path: Path, text: str, mode: str = "0644") -> subprocess.CompletedProcess[str]:
    command = files.put(str(path), text, mode)
    stdin = command.connector_arguments["_stdin"]
    script = ["dash", "-c", command.get_raw_value()]
    return subprocess.run(script, input=stdin, capture_output=True, text=True)


def read(path: Path) -> FileState | None:
    script = ["dash", "-c", Files().command(files=[str(path)])]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    return Files().process(done.stdout.splitlines())[str(path)]


@pytest.mark.parametrize(
    "leads_to", ["site.toml", "new/site.toml", "link", None],
    ids=["to a file", "to none yet", "by another link", "no link"],
)  # fmt: skip
def test_a_file_is_written_where_a_link_leads_and_reads_back_as_asked(tmp_path, leads_to):
    path = tmp_path / "etc/config.toml"
    path.parent.mkdir()
    (path.parent / "site.toml").write_text("of somebody\n")
    (path.parent / "link").symlink_to("site.toml")
    if leads_to:
        path.symlink_to(leads_to)
    done = wrote(path, "ours\n", "0600")
    assert done.returncode == 0, done.stderr
    assert path.is_symlink() is (leads_to is not None)
    have = read(path)
    assert not files.differs(have, "ours\n", "0600")
    assert have.text == path.read_text() == "ours\n"
    kept = "of somebody\n" if leads_to in (None, "new/site.toml") else "ours\n"
    assert (path.parent / "site.toml").read_text() == kept
    assert list(path.parent.rglob("*.??????")) == []


def test_folders_that_are_made_for_a_file_are_everybodys_to_enter(tmp_path):
    path = tmp_path / "certs.d/docker.io/hosts.toml"
    assert wrote(path, "ours\n", "0600").returncode == 0
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)]
    assert modes == [0o755, 0o755]


@pytest.mark.parametrize("what", ["a device", "a folder"])
def test_what_is_no_file_is_not_written_over(tmp_path, what):
    path = tmp_path / "config.toml"
    if what == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    done = wrote(path, "ours\n")
    have = "/dev/null" if what == "a device" else path
    assert (done.returncode, done.stderr) == (
        1, f"files: want a file at {path}, have {have}; look who made it, and take it away if "
        "ours may be there\n",
    )  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == [path]
    assert Path("/dev/null").is_char_device()


def test_drv_03_a_failed_build_names_the_compilers_first_error(tmp_path, program):
    log = tmp_path / "dkms/nvidia/580.178.04/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "make: Entering directory\n"
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'\n"
        "make[2]: *** [scripts/Makefile.build:229: nvidia/nv.o] Error 1\n"
    )
    program("cc", "echo cc 12.2.0")
    done = run(nvidia.EXPLAIN.replace("/var/lib/dkms", f"{tmp_path}/dkms"), tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[1].startswith("2:cc: error: unrecognized command-line option")
    assert "compiler here: cc 12.2.0" in lines


def test_drv_16_a_daemon_that_does_not_start_is_heard(tmp_path, program):
    program(
        "systemctl", 'case "$1" in restart) echo "Job failed. See journalctl" >&2; exit 1;; esac'
    )
    program(
        "journalctl",
        "echo Starting NVIDIA Persistence Daemon; "
        "echo \"Failed to find user ID of user 'nvidia-persistenced': No such process\"; "
        "echo \"nvidia-persistenced.service: Failed with result 'exit-code'.\"; "
        "echo Failed to start NVIDIA Persistence Daemon.",
    )
    done = run(str(nvidia.restart_persistenced(new_unit=True).get_raw_value()), tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Failed to find user ID of user 'nvidia-persistenced': No such process"
    )
    program("systemctl")
    assert (
        run(str(nvidia.restart_persistenced(new_unit=True).get_raw_value()), tmp_path).returncode
        == 0
    )


def test_without_a_log_of_a_build_there_is_nothing_to_explain(tmp_path):
    done = run(nvidia.EXPLAIN.replace("/var/lib/dkms", f"{tmp_path}/dkms"), tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_drv_02_a_module_that_is_refused_shows_the_kernels_words(tmp_path, program):
    program("modprobe", "echo \"could not insert 'nvidia': Key was rejected\" >&2; exit 1")
    program("dmesg", 'echo "usb 1-1: x"; echo "Loading of module with key is rejected"')
    done = run(str(nvidia.load(["nvidia"]).get_raw_value()), tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "could not insert 'nvidia': Key was rejected",
        "Loading of module with key is rejected",
    ]
