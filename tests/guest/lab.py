"""The lab in the hands of a test: runs, commands in guests, counts, snapshots."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client, config

from lab.paths import KUBECONFIG_ADMIN

ROOT = Path(__file__).resolve().parent.parent.parent
INVENTORY = "inventories/lab.py"
JOB = "deploys/gpu_node.py"
NODES = ("gpu01", "gpu02")
CLOSED = "rackwright.io/not-validated"
SETTLED_S = 40
"""Within this two nodes offer their devices again after a reset, unless pods are made anew."""
SHOWN = r"\] (\S+ \| |plan: |rebooting|back after|waiting|.*want .*have )"
"""Lines of a run that whoever watches a test wants to see."""


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


def changed_inventory(folder: Path, changes: dict[str, str], more: str = "") -> Path:
    """The lab's inventory with some of its text replaced and *more* at its end, in *folder*."""
    text = (ROOT / INVENTORY).read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "group_data").mkdir()
    (folder / "group_data/all.py").symlink_to(ROOT / "inventories/group_data/all.py")
    inventory = folder / "changed.py"
    inventory.write_text(text + more)
    return inventory


def at_work(names: str) -> str:
    """Shell condition: a program of one of *names*, a pattern, runs; also one that is a script."""
    return f"ps -eo args | grep -qE '^([^ ]*/)?((ba|da)?sh (-[^ ]+ )*([^ ]*/)?)?({names})( |$)'"


@dataclass(frozen=True)
class Verdict:
    """What users and operators see of a node in the cluster."""

    closed: bool
    validated: str
    message: str

    @property
    def open(self) -> bool:
        return not self.closed and self.validated == "True"


def plain(line: str) -> str:
    """A line of the terminal, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip())


def stream(
    command: Sequence[str], log: Path, *, every: str = "", environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run *command*, keep its whole output in *log*, and show the lines that match *every*."""
    say(f"$ {' '.join(command)}")
    lines: list[str] = []
    with log.open("a") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line)
            if every and re.search(every, line):
                say(plain(line)[:200])
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

    def to_open(self) -> dict[str, dict[str, str]]:
        """
        Back to the snapshot of two open nodes; what each offers.

        A test that made other pods, or another Node object, leaves a snapshot whose pods are of
        those before: they are made anew, and so is the snapshot. If the plugins' old pods take the
        sockets of the new ones with them, the job mends that.
        """
        self.reset(to="open")
        started = time.monotonic()
        try:
            offers = self.wait_offering(90)
        except AssertionError as error:
            say(f"the snapshot does not get on by itself: {error}")
            done = self.run()
            assert done.code == 0, done.output[-4000:]
        else:
            if time.monotonic() - started < SETTLED_S:
                return offers
        offers = self.wait_offering()
        self.snapshot("open")
        return offers

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

    def arguments(self, *extra: str, job: str = JOB, inventory: str = INVENTORY) -> list[str]:
        return [sys.executable, "-m", "pyinfra", "-y", inventory, job, *extra]

    def run(self, *extra: str, job: str = JOB, inventory: str = INVENTORY) -> Done:
        """The main job, as an operator starts it."""
        before = self.results()
        started = time.monotonic()
        code, output = stream(
            self.arguments(*extra, job=job, inventory=inventory), self.folder / "runs.log",
            every=SHOWN, environment=self.environment(),
        )  # fmt: skip
        return self.done(code, time.monotonic() - started, output, before)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RACKWRIGHT_RUNS": str(self.runs)}

    def results(self) -> set[Path]:
        return set(self.runs.glob("*/result.json"))

    def done(self, code: int, seconds: float, output: str, before: set[Path]) -> Done:
        new = sorted(self.results() - before)
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

    def disturbed(
        self, after: str, then: Callable[[subprocess.Popen[str]], None], *extra: str,
        delay_s: float = 0, within_s: float = 1800,
    ) -> Done:  # fmt: skip
        """Start the main job; *delay_s* after a line of its output matches *after*, do *then*."""
        before, started = self.results(), time.monotonic()
        say(f"$ the main job, until: {after}")
        process = subprocess.Popen(
            self.arguments(*extra), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, stdin=subprocess.DEVNULL, env=self.environment(),
        )  # fmt: skip
        lines: list[str] = []
        seen = threading.Event()

        def watch() -> None:
            assert process.stdout is not None
            with (self.folder / "runs.log").open("a") as file:
                for line in process.stdout:
                    file.write(line)
                    lines.append(line)
                    if re.search(SHOWN, line):
                        say(plain(line)[:200])
                    if re.search(after, line):
                        seen.set()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            while not seen.wait(0.05):
                assert process.poll() is None, f"the run ended without: {after}"
                assert time.monotonic() - started < within_s, f"never seen: {after}"
            time.sleep(delay_s)
            assert process.poll() is None, "the run ended before it could be disturbed"
            then(process)
            code = process.wait(timeout=within_s)
        finally:
            process.kill()
            process.wait()
            watcher.join(10)
        return self.done(code, time.monotonic() - started, "".join(lines), before)

    def killed(self, after: str, *, delay_s: float = 0, node: str = "", until: str = "") -> None:
        """
        Start the main job, and kill -9 it *delay_s* after a line matches *after*.

        + until: and not before this shell condition holds on *node*
        """

        def kill(process: subprocess.Popen[str]) -> None:
            if until:
                self.wait_until(node, until)
            assert process.poll() is None, "the run ended before it could be killed"
            say("kill -9")
            process.kill()

        self.disturbed(after, kill, delay_s=delay_s)

    def wait_until(self, node: str, condition: str, timeout_s: int = 300) -> None:
        """Until the shell *condition* holds in the guest, looked at there: it may soon be over."""
        say(f"{node}: waiting for {condition}")
        script = (
            f"end=$(($(date +%s) + {timeout_s})); until {condition}; do "
            f"[ $(date +%s) -lt $end ] || exit 1; sleep 0.1; done"
        )
        self.ssh(node, script)

    def wait_registered(self, node: str, timeout_s: float = 180) -> None:
        """Until the kubelet has made its Node object, which is a while after the join."""
        deadline = time.monotonic() + timeout_s
        while node not in [found.metadata.name for found in self.kubernetes().list_node().items]:
            assert time.monotonic() < deadline, f"{node} makes no Node object"
            time.sleep(0.5)

    def wait_condition(self, node: str, name: str, status: str, timeout_s: float = 600) -> None:
        """Until the kubelet gives its Node the condition *name* that *status*."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = {c.type: c.status for c in self.kubernetes().read_node(node).status.conditions}
            if found.get(name) == status:
                return
            assert time.monotonic() < deadline, f"{node}: {name} is {found.get(name)}"
            time.sleep(5)

    def serves(self, node: str) -> bool:
        """Whether users' pods may be sent there; not if there is no such Node."""
        names = [found.metadata.name for found in self.kubernetes().list_node().items]
        return node in names and not self.verdict(node).closed

    def bootstrap_tokens(self) -> list[Any]:
        """Secrets with which a host could join."""
        found = self.kubernetes().list_namespaced_secret(
            "kube-system", field_selector="type=bootstrap.kubernetes.io/token"
        )
        return list(found.items)

    def delete_pods(self, node: str) -> None:
        """All of a node, to be made anew by whoever wants them."""
        api = self.kubernetes()
        for pod in api.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items:
            api.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace)

    def verdict(self, node: str) -> Verdict:
        """What the cluster is told of the node."""
        found = self.kubernetes().read_node(node)
        told = [c for c in found.status.conditions if c.type == "RackwrightValidated"]
        return Verdict(
            closed=CLOSED in [taint.key for taint in found.spec.taints or []],
            validated=told[0].status if told else "",
            message=told[0].message if told else "",
        )

    def close(self, node: str) -> None:
        """Keep users off the node, as an operator does before it is worked on."""
        taints = self.kubernetes().read_node(node).spec.taints or []
        taints = [t for t in taints if t.key != CLOSED]
        taints.append(client.V1Taint(key=CLOSED, effect="NoSchedule"))
        self.kubernetes().patch_node(
            node, {"spec": {"taints": [{"key": t.key, "value": t.value, "effect": t.effect}
                                       for t in taints]}},
        )  # fmt: skip

    def wait_back(self, node: str, boot_id: str, timeout_s: float = 900) -> None:
        """Until the node answers in another boot than *boot_id*."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert time.monotonic() < deadline, f"{node} does not come back"
            with suppress(AssertionError, subprocess.TimeoutExpired):
                if self.boot_id(node) != boot_id:
                    return
            time.sleep(3)

    def boot_id(self, node: str) -> str:
        return self.ssh(node, "cat /proc/sys/kernel/random/boot_id").strip()

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
