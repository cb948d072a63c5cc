"""The lab in the hands of a test: runs, commands in guests, counts, snapshots."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client, config

from lab.paths import KUBECONFIG_ADMIN

ROOT = Path(__file__).resolve().parent.parent.parent
INVENTORY = "inventories/lab.py"
JOB = "deploys/gpu_node.py"
NODES = ("gpu01", "gpu02")


@dataclass(frozen=True)
class Done:
    """A finished run of pyinfra."""

    code: int
    seconds: float
    output: str
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of the run's ``result.json``, by node."""


def say(text: str) -> None:
    """Progress for whoever watches: a run of an hour must not look like one that hangs."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def stream(command: Sequence[str], log: Path, *, every: str = "") -> tuple[int, str]:
    """Run *command*, keep its whole output in *log*, and show the lines that match *every*."""
    say(f"$ {' '.join(command)}")
    lines: list[str] = []
    with log.open("a") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line)
            if every and re.search(every, line):
                say(re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip())[:200])
    return process.wait(), "".join(lines)


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        folder.mkdir(parents=True, exist_ok=True)

    def command(self, *words: str) -> str:
        """``python -m lab ...``; fails the test if it fails."""
        code, output = stream(
            [sys.executable, "-m", "lab", *words], self.folder / "lab.log", every="."
        )
        assert code == 0, output[-2000:]
        return output

    def up(self) -> None:
        self.command("up", "--install")

    def reset(self, *nodes: str, to: str = "bare") -> None:
        self.command("reset", *nodes, "--to", to)

    def snapshot(self, name: str) -> None:
        self.command("snapshot", name)

    def fault(self, node: str, kind: str, state: str) -> None:
        self.command("fault", node, kind, state)

    def ssh(self, node: str, command: str, *, check: bool = True) -> str:
        """Standard output of *command*, run as root in the guest."""
        done = subprocess.run(
            [sys.executable, "-m", "lab", "ssh", node, "--", f"sudo sh -c {shlex.quote(command)}"],
            cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kubernetes(self) -> Any:
        """The cluster, with an administrator's rights."""
        return client.CoreV1Api(config.new_client_from_config(str(KUBECONFIG_ADMIN)))

    def offers(self, node: str, boot_id: str) -> dict[str, str]:
        """What a Ready node offers in its boot *boot_id*; nothing while it is of another."""
        status = self.kubernetes().read_node(node).status
        ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions)
        if status.node_info.boot_id != boot_id or not ready:
            return {}
        return {
            k: v for k, v in status.allocatable.items() if k.startswith(("nvidia.com/", "rdma/"))
        }

    def wait_offering(self, timeout_s: float = 300) -> dict[str, dict[str, str]]:
        """Both nodes Ready and offering GPUs and RDMA, in the boot that they are in."""
        deadline = time.monotonic() + timeout_s
        found: dict[str, dict[str, str]] = {}
        for node in NODES:
            boot_id = self.ssh(node, "cat /proc/sys/kernel/random/boot_id").strip()
            while True:
                found[node] = {k: v for k, v in self.offers(node, boot_id).items() if v != "0"}
                if {name.partition("/")[0] for name in found[node]} == {"nvidia.com", "rdma"}:
                    break
                assert time.monotonic() < deadline, f"{node} offers {found[node]}"
                time.sleep(2)
        return found

    def arguments(self, *extra: str, job: str = JOB) -> list[str]:
        return [sys.executable, "-m", "pyinfra", "-y", INVENTORY, job, *extra]

    def run(self, *extra: str, job: str = JOB) -> Done:
        """The main job, as an operator starts it."""
        before = set(self.runs.glob("*/result.json"))
        started = time.monotonic()
        os.environ["RACKWRIGHT_RUNS"] = str(self.runs)
        code, output = stream(
            self.arguments(*extra, job=job), self.folder / "runs.log",
            every=r"\] (\S+ \| |plan: |rebooting|back after|waiting|.*want .*have )",
        )  # fmt: skip
        seconds = time.monotonic() - started
        new = sorted(set(self.runs.glob("*/result.json")) - before)
        rows = json.loads(new[-1].read_text())["nodes"] if new else []
        say(f"exit code {code} after {seconds:.0f} s")
        return Done(code, seconds, output, {row["node"]: row for row in rows})

    def validate(self) -> None:
        """The validation suite over both nodes; with free devices nothing is left untested."""
        code, output = stream(
            [sys.executable, "-m", "pytest", "-q", "tests/validation", "--inventory", INVENTORY,
             f"--junitxml={self.folder}/validation.xml"],
            self.folder / "validation.log", every=r"passed|failed|FAILED|SKIPPED",
        )  # fmt: skip
        assert code == 0, output[-4000:]
        assert "skipped" not in output.splitlines()[-1]

    def killed(self, after: str, *, within_s: float = 1800) -> None:
        """Start the main job, and kill -9 it as soon as a line of its output matches *after*."""
        os.environ["RACKWRIGHT_RUNS"] = str(self.runs)
        process = subprocess.Popen(
            self.arguments(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        deadline = time.monotonic() + within_s
        try:
            for line in process.stdout:
                if re.search(after, line):
                    say(f"kill -9 after: {line.strip()[:160]}")
                    return
                assert time.monotonic() < deadline, f"never seen: {after}"
            raise AssertionError(f"the run ended without: {after}")
        finally:
            process.kill()
            process.wait()

    def remote_commands(self, node: str) -> int:
        """Commands that the guest's sshd has started since its boot, for the product's user."""
        # sudo logs this very command, pattern included: only sshd's own lines begin so.
        log = self.ssh(node, "journalctl -b -u ssh -o cat | grep -c '^Starting session: ' || true")
        return int(log.strip() or 0)

    def processes(self, node: str) -> dict[str, str]:
        """Process ids of what must survive a run on a converged node."""
        text = self.ssh(
            node,
            "for u in kubelet containerd nvidia-persistenced; do "
            'echo "$u $(systemctl show $u -p MainPID --value)"; done; '
            # In brackets: a pattern that does not find the shell it stands in.
            "echo pods $(pgrep -x nvidia-device-p -d, ; pgrep -f '[k]8s-rdma-shared-dp' -d,)",
        )
        return dict(line.split(" ", 1) for line in text.splitlines())
