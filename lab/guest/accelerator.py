"""Whether guests run on the processor or are emulated."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Literal, cast, get_args

from rich.console import Console

from lab.errors import LabError
from lab.paths import STATE

Accelerator = Literal["tcg", "kvm"]
VARIABLE = "LAB_ACCEL"
TRIAL_TIMEOUT_S = 20.0
TRIAL = STATE / "kvm.json"


def choose(kernel: Path, console: Console) -> Accelerator:
    """What ``LAB_ACCEL`` says; ``auto``, the default, tries KVM with the guests' own kernel."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted in get_args(Accelerator):
        return cast("Accelerator", wanted)
    if wanted != "auto":
        raise LabError(f"{VARIABLE}: want tcg, kvm or auto, have {wanted!r}; set it to one of them")
    problem = remembered_problem(kernel)
    if problem is None:
        return "kvm"
    console.print(
        f"[bold red]No KVM: {problem}.[/] The guests are emulated, some 10 to 20 times slower. "
        f"Set {VARIABLE}=tcg to skip this trial."
    )
    return "tcg"


def remembered_problem(kernel: Path) -> str | None:
    """The outcome of the trial, which is made once per boot of the lab host and kernel."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    key = f"{boot_id} {kernel}"
    try:
        outcome = json.loads(TRIAL.read_text())
        if outcome["key"] == key:
            return None if outcome["problem"] is None else str(outcome["problem"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass  # no trial yet, or one that was interrupted
    problem = kvm_problem(kernel)
    TRIAL.parent.mkdir(parents=True, exist_ok=True)
    TRIAL.write_text(json.dumps({"key": key, "problem": problem}) + "\n")
    return problem


def kvm_problem(kernel: Path) -> str | None:
    """Why KVM cannot be used, or ``None``: a device file that opens is not enough."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "/dev/kvm is missing or may not be opened"
    # Without a root file system the kernel panics, reboots by `panic=-1`, and so ends QEMU:
    # a whole boot up to that point in about a second, where KVM works.
    argv = [
        "qemu-system-x86_64", "-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "512",
        "-display", "none", "-nodefaults", "-no-reboot", "-kernel", str(kernel),
        "-append", "panic=-1 quiet",
    ]  # fmt: skip
    started = time.monotonic()
    try:
        subprocess.run(argv, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired:
        return f"a guest kernel on /dev/kvm made no progress in {TRIAL_TIMEOUT_S:g} s"
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return f"QEMU on /dev/kvm failed after {time.monotonic() - started:.0f} s: {last}"
    return None
