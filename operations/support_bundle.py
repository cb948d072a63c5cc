"""What a maintainer needs to know of hosts and of the runs over them, without what is secret.

Nothing is changed on a host. Each item is asked under a time limit of its own, on hosts that may be
half broken: what could not be had is named in the bundle, with the reason.
"""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import json
import os
import platform
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from pyinfra.api import FunctionCommand, StringCommand, operation
from pyinfra.api.command import PyinfraCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import Cluster
from facts.files import Files
from facts.snapshot import MARK, Readings, parse_snapshot, registered
from nodespec import NodeSpec, read_all
from nodespec.problems import report
from nodespec.reading import merged
from operations import kubeadm, lock
from operations.have import Have
from operations.node import managed_files, planned
from operations.redaction import hide, redact, redacted, secrets_of
from operations.report import RUNS
from operations.step import Refusal, Step

LIMIT_S = 30
"""For one item. A tool that asks a GPU which has fallen off the bus never comes back by itself."""
GRACE_S = 15
"""How much later the connection is given up: a process that cannot be killed keeps it open."""
BUDGET_S = 900
"""For one host: where every item hangs, the last ones are left out."""
RUNS_KEPT = 5
"""Newest runs whose log and result are in the bundle."""

END = "== exit code "
"""Begins the last line of an answer: one without it was cut off."""

ENVIRONMENT = "export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

UNITS = ("kubelet", "containerd", "nvidia-*", "rackwright*")
KERNEL = "NVRM|Xid|nvidia|nouveau|mlx5|infiniband|ib_|AER|pcieport|Out of memory|I/O error"

ITEMS: dict[str, str] = {
    "versions": (
        "uname -a; cat /etc/os-release; cat /proc/cmdline; "
        "for t in 'containerd --version' 'runc --version' 'nvidia-ctk --version' "
        "'kubelet --version' 'kubeadm version -o short' 'modinfo -F version nvidia'; do "
        'echo "## $t"; $t 2>&1; done'
    ),
    "packages": (
        "dpkg -l | grep -E 'nvidia|cuda|libnv|containerd|runc|kube|cri-tools|rdma|ibverbs|"
        "linux-(image|headers)|dkms' ; apt-mark showhold; cat /etc/apt/sources.list "
        "/etc/apt/sources.list.d/* 2>/dev/null"
    ),
    "apt": "tail -n 300 /var/log/apt/history.log /var/log/dpkg.log /var/log/rackwright-apt.log",
    "dkms": (
        "dkms status; ls -lt /var/lib/dkms/nvidia*/ 2>/dev/null; "
        "for f in $(ls -t /var/lib/dkms/nvidia*/*/build/make.log "
        "/var/lib/dkms/nvidia*/*/log/make.log 2>/dev/null | head -n 2); do "
        'echo "## $f"; tail -n 150 "$f"; done'
    ),
    "kernel-log": f"dmesg -T | grep -E {shlex.quote(KERNEL)} | tail -n 1000",
    "journal-boots": "journalctl --list-boots --no-pager | tail -n 20",
    "units": "systemctl --failed --no-pager; systemctl list-units --no-pager "
    + " ".join(shlex.quote(f"{unit}.service") for unit in UNITS),
    "unit-files": "systemctl cat containerd kubelet nvidia-persistenced rackwright-mig --no-pager",
    "hardware": "lspci -nn -k -d 10de:; lspci -nn -k -d 15b3:; numactl -H; free -m; df -hT; lsblk",
    "modules": "lsmod; ls -l /dev/nvidia* /dev/infiniband 2>&1",
    "network": "ip -br address; ip route; ip -6 route; ibstat; rdma link; cat /etc/resolv.conf",
    "clock": "date -u; timedatectl; chronyc tracking",
    "gpus": "nvidia-smi -q",
    "containerd-configuration": "containerd config dump",
    "containers": "crictl --runtime-endpoint unix:///run/containerd/containerd.sock ps -a",
    "processes": "ps -eo pid,ppid,stat,wchan:24,etime,comm --sort=-etime | head -n 400",
    "lock": "head -n 5 /run/rackwright*.owner; ls -l /run/rackwright*; fuser -v /run/rackwright*",
    **{
        f"journal-{unit.rstrip('*-')}": f"journalctl -u {shlex.quote(unit)} -n 2000 --no-pager "
        "-o short-iso"
        for unit in UNITS
    },
}
"""Beside the snapshot's readings: one command each, by the name of its file."""

NOT_TAKEN = frozenset({kubeadm.JOIN_FILE})
"""Files of ours that are nothing but a secret."""


@dataclass
class Bundle:
    """One bundle of this process: a folder while it is filled, a ``tar.gz`` in the end."""

    folder: Path | None = None
    state: State | None = None
    specs: Mapping[str, NodeSpec] = field(default_factory=dict)
    """Of the hosts whose inventory data have no problem."""
    inventory: list[str] = field(default_factory=list)
    """Its problems."""
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    """What could not be had, and why, by host and item."""

    def open(self, state: State) -> Path:
        if self.folder is None:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            self.folder = RUNS / f"support-{stamp}-{os.getpid()}"
            self.folder.mkdir(parents=True, mode=0o700)
            self.state = state
            data = {host.name: merged(host) for host in state.inventory}
            self.specs, problems = read_all(data, local_files=False)
            self.inventory = report(problems)
            atexit.register(self.close)
        return self.folder

    def close(self) -> Path | None:
        """Add what is known here, and pack it all: once, when every host is done."""
        if self.folder is None or self.state is None:
            return None
        folder, self.folder = self.folder, None
        for host in self.state.inventory:
            if host.name not in self.missing:
                why = (
                    "not reached: the connection failed, its message is at the terminal"
                    if self.state.is_host_in_limit(host)
                    else "not asked for (--limit or --exclude)"
                )
                self.missing[host.name] = {"everything": why}
        write_json(folder / "bundle.json", {
            "rackwright": revision(), "python": platform.python_version(),
            "system": platform.platform(), "could_not_be_had": self.missing,
            "problems_of_the_inventory": self.inventory,
            "libraries": {d.name: d.version for d in distributions()},
        })  # fmt: skip
        for run in sorted((p for p in RUNS.glob("2*") if p.is_dir()), reverse=True)[:RUNS_KEPT]:
            for name in ("run.log", "result.json"):
                if (run / name).is_file():
                    write(
                        folder / "runs" / run.name / name,
                        (run / name).read_text("utf-8", "replace"),
                    )
        packed = folder.with_name(f"{folder.name}.tar.gz")
        with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
            packed.chmod(0o600)
            archive.add(folder, arcname=folder.name)
        shutil.rmtree(folder)
        asked = {host.name for host in self.state.inventory if self.state.is_host_in_limit(host)}
        lacking = {name: self.missing[name] for name in self.missing if name in asked}
        lacking = {name: items for name, items in lacking.items() if items}
        for name, items in lacking.items():
            few = ", ".join(list(items)[:4]) + (", ..." if len(items) > 4 else "")
            click.echo(f"{name}: could not be had: {len(items)} ({few})", err=True)
        click.echo(f"support bundle: {packed}; its bundle.json says what is not in it", err=True)
        return packed


BUNDLE = Bundle()


def write(path: Path, text: str) -> None:
    """The one way into the bundle for text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(redact(text))


def write_json(path: Path, value: Any) -> None:
    """The one way into the bundle for anything else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(redacted(value), indent=2, default=str) + "\n")


def revision() -> str:
    """Of this tree, as git tells it."""
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown: not a clone"


def collect(*, name: str, phases: Sequence[ModuleType]) -> None:
    """
    Collect from all hosts at once. Called from a deploy.

    + phases: of the main job, whose plan for each host is part of the bundle
    """
    _collect(name=name, phases=phases)


@operation(is_idempotent=False)
def _collect(phases: Sequence[ModuleType]) -> Generator[PyinfraCommand, None, None]:
    """Collect from one host. It is not changed, and does not fail by what cannot be had."""
    yield FunctionCommand(of_host, (tuple(phases),), {})


def of_host(state: State, host: Host, phases: tuple[ModuleType, ...]) -> bool:
    """One host's folder."""
    folder = BUNDLE.open(state) / host.name.replace("/", "_")
    missing = BUNDLE.missing.setdefault(host.name, {})
    data = merged(host)
    hide(*secrets_of(data))
    spec = BUNDLE.specs.get(host.name)
    asking = Asking(host, missing)

    files: tuple[str, ...] = ()
    api_server: tuple[str, ...] = ()
    cluster: Cluster | None = None
    if spec is not None:
        hide(*secrets_of({}, spec.kube_kubeconfig))
        write_json(folder / "spec.json", spec.model_dump(mode="json"))
        files = managed_files(phases, spec)
        try:
            cluster = Cluster.connect(spec.kube_kubeconfig)
            api_server = (spec.kube_api_server, cluster.ca_pem.decode())
        except Exception as error:
            missing["cluster"] = str(error)
    else:
        missing["spec.json"] = "the inventory has problems: bundle.json tells them"

    readings = read(asking, folder, files, api_server)
    for path, file in (readings.known(Files) or {}).items():
        if file is not None and file.text is not None and path not in NOT_TAKEN:
            write(folder / "files" / path.lstrip("/"), file.text)
    for name, command in ITEMS.items():
        if (answer := asking.ask(name, command)) is not None:
            write(folder / f"{name}.txt", answer.text)
    if spec is not None and cluster is not None:
        of_cluster(folder, spec, cluster, missing)
        try:
            write_json(folder / "plan.json", plan_of(phases, Have(readings, spec, cluster)))
        except Exception as error:
            missing["plan.json"] = f"{type(error).__name__}: {error}"
    return True


@dataclass(frozen=True, slots=True)
class Answer:
    lines: tuple[str, ...]
    errors: tuple[str, ...]
    code: str

    @property
    def text(self) -> str:
        said = [*self.lines, *(["## standard error", *self.errors] if self.errors else [])]
        return "\n".join([*said, f"{END}{self.code}", ""])


@dataclass
class Asking:
    """Commands to one host that come back, or are given up."""

    host: Host
    missing: dict[str, str]
    gone: str = ""
    """Why nothing more is asked, if so."""
    until_s: float = field(default_factory=lambda: time.monotonic() + BUDGET_S)

    def ask(self, name: str, command: str, limit_s: int = LIMIT_S) -> Answer | None:
        """The answer; ``None`` if there was none, and the reason is noted."""
        if time.monotonic() > self.until_s:
            self.gone = self.gone or f"not asked: {BUDGET_S} s are over"
        if self.gone:
            self.missing[name] = self.gone
            return None
        script = f"{ENVIRONMENT}; timeout -k 2 {limit_s} sh -c {shlex.quote(command)} </dev/null"
        try:
            answer = self._send(f"{script}; rc=$?; echo; echo '{END}'$rc", limit_s + GRACE_S)
        except Exception as error:  # a dying connection raises whatever layer it dies in
            self.missing[name] = f"no answer within {limit_s} s ({type(error).__name__})"
            self._look()
            return None
        if answer.code in ("124", "137"):
            self.missing[name] = f"cut off after {limit_s} s"
        elif not answer.code:
            self.missing[name] = " ".join((*answer.errors, *answer.lines))[:300] or "no answer"
            return None
        return answer

    def _send(self, script: str, timeout_s: int) -> Answer:
        arguments = {**lock.connector_arguments(self.host), "_timeout": timeout_s}
        _, output = self.host.run_shell_command(StringCommand(script), **arguments)
        lines = list(output.stdout_lines)
        code = ""
        if lines and lines[-1].startswith(END):
            code = lines.pop().removeprefix(END)
            if lines and not lines[-1]:
                lines.pop()
        return Answer(tuple(lines), tuple(output.stderr_lines), code)

    def _look(self) -> None:
        """One item that hangs is that item's; a host that answers nothing is asked no more."""
        try:
            self._send("true", GRACE_S)
        except Exception as error:
            self.gone = f"not asked: the host no longer answers ({type(error).__name__})"


def read(asking: Asking, folder: Path, files: Sequence[str], api_server: Sequence[str]) -> Readings:
    """Each reading of the snapshot by itself: its raw output into the bundle, its value for us."""
    given = {"files": files, "api_server": api_server}
    marked: list[str] = []
    for fact in registered():
        asked = inspect.signature(fact.command).parameters
        command = str(fact().command(**{k: v for k, v in given.items() if k in asked}))
        limit_s = min(LIMIT_S, getattr(fact, "timeout_s", LIMIT_S))
        answer = asking.ask(f"reading {fact.__name__}", command, limit_s)
        if answer is None:
            continue
        if fact is not Files:  # which has content in base64, that no redaction looks into
            write(folder / "readings" / f"{fact.__name__}.txt", answer.text)
        marked += [f"{MARK} {fact.__name__}", *answer.lines, f"{MARK} rc {answer.code}"]
    readings = parse_snapshot(marked, registered())
    write_json(folder / "readings" / "unread.json", readings.unread)
    return readings


def of_cluster(folder: Path, spec: NodeSpec, cluster: Cluster, missing: dict[str, str]) -> None:
    """What the Kubernetes API says of the node."""
    name = spec.kube_node_name
    for item, ask in (
        ("node.json", lambda: as_json(cluster.node(name))),
        ("pods.json", lambda: [as_json(pod) for pod in cluster.pods_on(name)]),
        ("api-server.json", lambda: {"version": cluster.server_version()}),
    ):
        try:
            write_json(folder / item, ask())
        except Exception as error:
            missing[item] = str(error)


def as_json(value: Any) -> Any:
    return None if value is None else dataclasses.asdict(value)


def plan_of(phases: Sequence[ModuleType], have: Have) -> list[Mapping[str, Any]]:
    """The plan that a run would make now, with its refusals."""
    return [told(name, item) for name, item in planned(phases, have.spec, have)]


def told(phase: str, item: Step | Refusal) -> dict[str, Any]:
    kind = "step" if isinstance(item, Step) else "refusal"
    fields = {
        entry.name: getattr(item, entry.name)
        for entry in dataclasses.fields(item)
        if entry.name != "apply"
    }
    return {"phase": phase, "kind": kind, **fields}
