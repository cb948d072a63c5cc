"""Packages: what counts as the wanted version; the shell that brings it, run by a real shell."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyinfra.connectors.util import CommandOutput, OutputLine

from facts.packages import Packages
from operations import boot, lock, nvidia, packages
from operations.causes import sentence
from operations.systems import SYSTEMS
from tests.support.machine import DRIVER


@pytest.mark.parametrize(
    ("version", "want", "same"),
    [
        ("1.36.3-1.1", "1.36.3-1.1", True),
        ("1.36.3-1.1", "1.36.3", True),
        ("2.4.2-1~debian.13~trixie", "2.4.2", True),
        ("580.178.04-1+sim1", "580.178.04", True),
        ("580.178.04-1", "580.178.0", False),
        ("1.36.30-1.1", "1.36.3", False),
        ("20250419", "20250419", True),
        ("1.0", None, True),
        (None, None, False),
        (None, "1.0", False),
    ],
)
def test_version_matches(version, want, same):
    assert packages.matches(version, want) is same


def test_an_upstream_version_takes_any_revision_and_no_other_version():
    assert packages.argument("kubelet", "1.36.3") == "kubelet=1.36.3-*"
    assert packages.argument("kubelet", "1.36.3-1.1") == "kubelet=1.36.3-1.1"
    assert packages.argument("jq", None) == "jq"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command of ``operations.packages`` with programs of ours in place of apt's."""
    monkeypatch.setattr(packages, "LOG", str(tmp_path / "apt.log"))
    monkeypatch.setattr(packages, "STAMP", str(tmp_path / "state/apt-updated"))
    monkeypatch.setattr(packages, "UPDATE", f"apt-get update && touch {tmp_path}/state/apt-updated")
    monkeypatch.setattr(lock, "PACKAGES_PATH", str(tmp_path / "packages.lock"))
    monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 0)
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name: str, body: str) -> None:
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(*script: str, explain: str = "") -> subprocess.CompletedProcess[str]:
        text = str(packages.command(*script, explain=explain).get_raw_value())
        text = text.replace("PATH=/usr/local/sbin:", f"PATH={programs}:/usr/local/sbin:")
        return subprocess.run(["dash", "-c", text], capture_output=True, text=True, env=os.environ)

    run.program = program
    run.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    run.stamp = tmp_path / "state/apt-updated"
    run.log = tmp_path / "apt.log"
    return run


def verbs(calls: list[str]) -> list[str]:
    return [word for line in calls for word in line.split() if word in ("update", "install")]


def test_indexes_are_fetched_before_the_first_installation(shell):
    shell.program("apt-get", "")
    assert shell(packages.install("install jq")).returncode == 0
    assert verbs(shell.calls()) == ["update", "install"]
    assert shell.stamp.exists()


def test_indexes_that_are_new_enough_are_not_fetched_again(shell):
    shell.program("apt-get", "")
    shell(packages.install("install jq"))
    os.utime(shell.stamp, (2**31, 2**31))
    shell(packages.install("install jq"))
    assert verbs(shell.calls()) == ["update", "install", "install"]


def test_a_version_that_the_indexes_do_not_know_fetches_them(shell):
    shell.program("apt-get", "")
    shell(packages.install("install jq"))
    os.utime(shell.stamp, (2**31, 2**31))
    shell.program(
        "apt-get",
        'case "$*" in *update*) touch "$0.updated";; *) [ -e "$0.updated" ] || '
        "{ echo \"E: Version '9' for 'jq' was not found\"; exit 100; };; esac",
    )
    assert shell(packages.install("install jq=9")).returncode == 0
    assert verbs(shell.calls())[2:] == ["install", "update", "install"]


@pytest.mark.parametrize("mended", [True, False])
def test_rep_05_a_mirror_that_is_being_changed_is_asked_again(shell, mended):
    """With a pause, once; what is signed wrongly in the meantime is never taken."""
    shell.program("sleep", "touch $0.slept")
    shell.program(
        "apt-get",
        'case "$*" in *update*) [ -e "$(dirname "$0")/sleep.slept" ] && exit '
        f'{0 if mended else 100}; echo "E: Failed to fetch http://m/Packages.gz  File has '
        'unexpected size (1 != 2). Mirror sync in progress?"; exit 100;; *) '
        '[ -e "$(dirname "$0")/sleep.slept" ] || '
        "{ echo \"E: Version '9' for 'jq' was not found\"; exit 100; };; esac",
    )
    os.utime(shell.stamp.parent.parent)  # no indexes yet
    shell.stamp.parent.mkdir()
    shell.stamp.touch()
    os.utime(shell.stamp, (2**31, 2**31))
    done = shell(packages.install("install jq=9"))
    assert verbs(shell.calls()) == ["install", "update", "update", *(["install"] if mended else [])]
    assert (done.returncode == 0) is mended
    assert not any("allow-unauthenticated" in call.lower() for call in shell.calls())


def test_a_failure_of_another_kind_is_not_tried_twice_and_shows_the_logs_end(shell):
    shell.program(
        "apt-get", 'case "$*" in *install*) echo "E: Sub-process dpkg returned 1"; exit 100;; esac'
    )
    failed = shell(packages.install("install jq"), explain="echo because")
    assert failed.returncode == 100
    assert "E: Sub-process dpkg returned 1" in failed.stderr
    assert failed.stderr.splitlines()[-1] == "because"
    assert verbs(shell.calls()) == ["update", "install"]


def test_only_its_own_words_are_shown_of_a_command_that_fails(shell):
    shell.program("apt-get", 'case "$*" in *install*) echo "E: no $*"; exit 100;; esac')
    shell(packages.install("install first"))
    failed = shell(packages.install("install second"))
    assert "second" in failed.stderr
    assert "first" not in failed.stderr
    assert "first" in shell.log.read_text()


def test_a_piece_that_fails_ends_the_script(shell):
    shell.program("apt-get", "exit 1")
    shell.program("apt-mark", "")
    assert shell("apt-get install a", "apt-mark hold a").returncode == 1
    assert not any("apt-mark" in call for call in shell.calls())


def test_a_connection_that_is_gone_does_not_end_apt(shell, tmp_path):
    """apt writes to a file: into a pipe that nobody reads, it would die in the middle."""
    shell.program("apt-get", "seq 1 20000; echo installed")
    text = str(packages.command("apt-get install a").get_raw_value())
    text = text.replace("PATH=/usr/local/sbin:", f"PATH={tmp_path}/bin:/usr/local/sbin:")
    process = subprocess.Popen(["dash", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    process.stderr.close()
    process.wait(timeout=30)
    assert shell.log.read_text().splitlines()[-1] == "installed"


def test_a_command_that_a_dead_run_has_left_is_waited_for(shell, tmp_path, monkeypatch):
    """Two of them would write one initramfs, or build one module, at the same time."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    shell.program("update-initramfs", f'[ "$1" != first ] || cat {fifo}; echo "end $1"')
    monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 30)

    def start(which: str) -> subprocess.Popen[bytes]:
        text = str(packages.command(f"update-initramfs {which}").get_raw_value())
        text = text.replace("PATH=/usr/local/sbin:", f"PATH={tmp_path}/bin:/usr/local/sbin:")
        return subprocess.Popen(["dash", "-c", text], stderr=subprocess.PIPE)

    first = start("first")
    with fifo.open("w"):  # opens once the first reads it
        monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 0)
        late = start("late")
        assert late.wait(timeout=30) == 75
        assert late.stderr is not None
        assert b"want no command of an earlier run at work" in late.stderr.read()
        monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 30)
        second = start("second")
    assert (first.wait(timeout=30), second.wait(timeout=30)) == (0, 0)
    said = [line for line in shell.log.read_text().splitlines() if line.startswith("end")]
    assert said == ["end first", "end second"]


@pytest.fixture
def rebooting(shell, tmp_path, monkeypatch):
    """What the reboot's command does on a host whose apt locks are ``lock-frontend``."""
    frontend = tmp_path / "lock-frontend"
    frontend.touch()
    monkeypatch.setattr(packages, "LOCKS", (str(frontend),))
    shell.program("systemctl", "")
    shell.program("sleep", "exit 0")

    def run() -> tuple[int, str]:
        sent = []

        class Host:
            name, current_op_global_arguments = "gpu01", {}

            def run_shell_command(self, command, **arguments):
                text = command.get_raw_value()
                if boot.BOOT_ID in text:
                    return True, SimpleNamespace(stdout_lines=["boot-1"])
                environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
                sent.append(
                    subprocess.run(
                        ["dash", "-c", text], capture_output=True, text=True, env=environment
                    )
                )
                lines = [OutputLine("stderr", line) for line in sent[0].stderr.splitlines()]
                return sent[0].returncode == 0, CommandOutput(lines)

            def log(self, *words):
                pass

        told = []
        monkeypatch.setattr(boot, "tell", lambda host, message: told.append(message))
        assert boot._reboot(None, Host(), "a reason", 0) is False
        return sent[0].returncode, told[0]

    run.frontend = frontend
    return run


def test_no_reboot_in_the_middle_of_somebodys_apt(rebooting, tmp_path):
    with rebooting.frontend.open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert rebooting() == (
            75, f"reboot: want apt's locks free, have pid {os.getpid()} hold one for 0 s; "
            "wait for it, or look at it on the host",
        )  # fmt: skip
        assert not (tmp_path / "calls").exists()
    code, said = rebooting()
    assert (code, said.split(",")[0]) == (0, "reboot: want another boot within 0 s")
    for _ in range(100):
        time.sleep(0.05)
        calls = tmp_path / "calls"
        if calls.exists() and "systemctl reboot" in calls.read_text():
            return
    raise AssertionError("never rebooted")


def test_no_reboot_in_the_middle_of_a_command_that_a_dead_run_has_left(rebooting, tmp_path):
    with (tmp_path / "packages.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert rebooting() == (
            75, "reboot: want no command of an earlier run at work, have one that does not end; "
            "look at it on the host",
        )  # fmt: skip
    assert not (tmp_path / "calls").exists()


def test_what_a_command_starts_for_good_does_not_hold_up_the_next(shell):
    shell.program("systemctl", "sleep 30 >/dev/null 2>&1 &")
    assert shell("systemctl start daemon").returncode == 0
    assert shell("systemctl start daemon").returncode == 0


def test_a_script_of_initramfs_rebuilds_only_what_has_nouveau(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "LOOKED_AT", str(tmp_path / "state/looked"))
    shell.program(
        "lsinitramfs", 'case "$1" in *-6.1) echo usr/lib/modules/nouveau.ko/nouveau.ko;; esac'
    )
    shell.program("update-initramfs", "")
    shell.program("stat", 'case "$*" in *initrd*) echo 7;; *) exec /usr/bin/stat "$@";; esac')
    text = str(nvidia.without_nouveau(["6.1", "6.12"]).get_raw_value())
    text = text.replace("PATH=/usr/local/sbin:", f"PATH={tmp_path}/bin:/usr/local/sbin:")
    done = subprocess.run(["dash", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [call for call in shell.calls() if call.startswith("update")] == [
        "update-initramfs -u -k 6.1"
    ]
    assert nvidia.looked_at((tmp_path / "state/looked").read_text()) == {"6.1": 7, "6.12": 7}


def test_an_initramfs_that_cannot_be_listed_is_rebuilt(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "LOOKED_AT", str(tmp_path / "state/looked"))
    shell.program("lsinitramfs", "echo 'unmkinitramfs: zstd: not found' >&2; exit 1")
    shell.program("update-initramfs", "")
    shell.program("stat", 'case "$*" in *initrd*) echo 7;; *) exec /usr/bin/stat "$@";; esac')
    text = str(nvidia.without_nouveau(["6.12"]).get_raw_value())
    text = text.replace("PATH=/usr/local/sbin:", f"PATH={tmp_path}/bin:/usr/local/sbin:")
    assert subprocess.run(["dash", "-c", text], capture_output=True).returncode == 0
    assert "update-initramfs -u -k 6.12" in shell.calls()


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda s: f"{s.id}-{s.version}")
def test_every_system_names_its_packages(system):
    from facts.packages import PackagesState

    wants = nvidia.wants(system, DRIVER, PackagesState("amd64", {}, False, ()))
    assert next(iter(wants)) == f"nvidia-driver-pinning-{DRIVER}"
    assert set(wants.values()) == {DRIVER}
    assert len(wants) > 1


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("nvidia-kernel-open-dkms", True),
        ("libnvidia-ml1", True),
        ("libcuda1", True),
        ("nvidia-fabricmanager", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("libcurl4", False),
    ],
)
def test_packages_of_the_driver_are_told_by_name(name, belongs):
    assert nvidia.of_the_driver(name) is belongs


STATUS = """\
Package: site-agent
Status: install ok installed
Maintainer: x <x@x>
Architecture: all
Version: 1.0
Depends: half
Description: somebody's

Package: half
Status: install ok unpacked
Maintainer: x <x@x>
Architecture: all
Version: 1.0
Depends: gone
Description: somebody's `dpkg -i`

"""


@pytest.fixture
def real_apt(shell, tmp_path: Path):
    """apt itself, on a system of its own with a package that somebody left half installed."""
    root = tmp_path / "root"
    for folder in (
        "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d",
        "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg",
    ):  # fmt: skip
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(STATUS)
    own = f"-o Dir={root} -o Dir::State::status={root}/var/lib/dpkg/status -o Debug::NoLocking=1"
    shell.program("apt-get", f'exec /usr/bin/apt-get -s {own} "$@"')
    shell.program("dpkg", "")
    shell.program("dpkg-query", "")
    return shell


def test_mending_dpkg_removes_no_package_of_others(real_apt):
    broken = {"half": SimpleNamespace(status="unpacked")}
    have = {Packages: SimpleNamespace(broken=broken, interrupted=False)}
    scripts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "command", lambda *script: scripts.append(script) or "sent")
        assert list(packages.repaired("repair dpkg", have).apply()) == ["sent"]
    done = real_apt(*scripts[0])
    said = sentence("base", "all packages whole", done.stderr.splitlines(), "look")
    assert said == (
        "base: want all packages whole, have packages of others that would have to go: "
        "half site-agent; remove them yourself if nobody needs them, or mend them, then run again"
    )
    assert "Remv" not in real_apt.log.read_text()


@pytest.mark.parametrize(("broken", "disrupts"), [("kubelet", True), ("half", False)])
def test_mending_what_pods_run_on_disrupts(broken, disrupts):
    state = {broken: SimpleNamespace(status="unpacked")}
    have = {Packages: SimpleNamespace(broken=state, interrupted=False)}
    assert packages.repaired("repair dpkg", have).disrupts is disrupts


@pytest.mark.parametrize(
    ("removed", "others"),
    [
        ("", ""),
        ("libnvidia-compute-570:amd64 nvidia-kernel-dkms", ""),
        ("nvidia-kernel-dkms site-agent", "site-agent"),
    ],
)
def test_an_installation_replaces_what_it_says_and_no_other(shell, removed, others):
    lines = "; ".join(f"echo Remv {name} [1.0]" for name in removed.split())
    shell.program("apt-get", f'case "$*" in -s*) {lines or ":"};; esac')
    done = shell(packages.install("install nvidia-open", nvidia.FAMILY.pattern))
    assert ("apt-get -y" in "".join(shell.calls()[-1:])) is not bool(others)
    assert (done.returncode == 0) is not bool(others)
    assert f"have apt remove {others} for it" in done.stderr or not others


def test_no_installation_removes_anything_unless_it_says_so(shell):
    shell.program("apt-get", "")
    shell(packages.install("install jq"), packages.apt("purge old"))
    assert [" --no-remove " in call for call in shell.calls() if "update" not in call] == [
        True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("held_by", ["somebody's apt", "a command of ours"])
def test_a_command_that_waits_dies_with_its_run(shell, tmp_path, monkeypatch, held_by):
    """It would reboot, or change, a node that the next run may have opened in the meantime."""
    frontend = tmp_path / "lock-frontend"
    monkeypatch.setattr(packages, "LOCKS", (str(frontend),))
    monkeypatch.setattr(lock, "PACKAGES_WAIT_S", 30)
    path = frontend if held_by == "somebody's apt" else tmp_path / "packages.lock"
    take = fcntl.lockf if held_by == "somebody's apt" else fcntl.flock
    frontend.touch()
    script = f"{packages.turn('reboot')}; touch {tmp_path}/acted"
    script = script.replace("flock -w 3", "flock -w 0.2").replace("sleep 3", "sleep 0.2")
    with path.open("w") as held:
        take(held, fcntl.LOCK_EX)
        # As sshd leaves it whose client has gone: no signal, and nobody who reads.
        child = subprocess.Popen(["dash", "-c", script], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"waiting\n"
        child.stdout.close()
    assert child.wait(timeout=30) != 0
    assert not (tmp_path / "acted").exists()
