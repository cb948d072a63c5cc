"""One node is broken: it ends closed with cause and remedy, and the other as it would have been.

The faults come one after the other on nodes that are open; what cannot be undone is reset.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.guest.lab import INVENTORY, Done, Lab, changed_inventory, say, stream

pytestmark = [pytest.mark.guest, pytest.mark.long]

BROKEN, OTHER = "gpu02", "gpu01"
OF_BROKEN = '"hca_rate_gbps": 400,'
"""A line of the lab's inventory, among what is asked of that node alone."""

# A package that is wanted, and nothing that apt could know of it without asking.
MISSING_PACKAGE = (
    "dpkg --purge --force-depends infiniband-diags && rm -rf /var/lib/apt/lists/* "
    "/var/lib/rackwright/apt-updated"
)
# Another driver than the installed one is loaded, as far as anyone can read: until a reboot.
OTHER_DRIVER = (
    "sed 's/580.178.04/580.159.03/' /proc/driver/nvidia/version >/run/other-driver && "
    "mount --bind /run/other-driver /proc/driver/nvidia/version"
)


@dataclass(frozen=True)
class Case:
    fault: str
    tells: str
    """Pattern of the one sentence: what is wanted, what is there, what to do."""
    state: str = "failed"
    work: str = ""
    """Shell that gives the run something to do, on a node that was closed before."""
    arguments: tuple[str, ...] = ()
    asked: str = ""
    """More that the inventory asks of the node."""
    changes: tuple[str, ...] = ()
    """Steps that the run may have done before the fault bit."""
    undone: tuple[tuple[str, str], ...] = ()
    """Switches that end the fault, after which the next run opens the node; none: a reset does."""
    settles: str = ""
    """Condition of the Node that goes some minutes after the fault; pods are sent there then."""
    validation: str = ""
    """Pattern of what the validation suite says of an open node with this fault."""


def switched_off(fault: str) -> tuple[tuple[str, str], ...]:
    return ((fault, "off"),)


CASES = [
    Case(
        "hca-port-down",
        r"rdma: want mlx5_0 port 1 \(\S+\) active, have DOWN.*; look at the cable",
        undone=switched_off("hca-port-down"),
        validation=r"test_claim\[gpu02-ports\]|ports-gpu02",
    ),
    Case(
        "repository-key-expired",
        r"ofed: want infiniband-diags installed, have .*http://10.88.0.1:8080/debian.* signed with "
        r"a key that has expired.*; its vendor has to renew it",
        work=MISSING_PACKAGE,
        undone=switched_off("repository-key-expired"),
    ),
    Case(
        "api-unreachable",
        r"kubernetes api: want 10.88.0.1:6443 reachable from the host, have no connection; "
        r"look at the network",
        undone=switched_off("api-unreachable"),
    ),
    Case(
        "disk-full",
        r"disk: want 10240 MiB free on .*/var.*, have \d+ MiB; make room",
        undone=switched_off("disk-full"),
        settles="DiskPressure",
    ),
    Case(
        "apt-locked",
        r"packages: want apt's locks free, have pid \d+ hold one for \d+ s; wait for it, or",
        work=MISSING_PACKAGE,
        arguments=("tests/guest/impatient.py",),
        undone=switched_off("apt-locked"),
    ),
    Case(
        "clock-off",
        r"clock: want within 30 s of the API server's, have -7[12]\d\d s; set the host's clock",
        undone=switched_off("clock-off"),
    ),
    Case(
        "driver-mismatch",
        r"want .*, have .*(?i:mismatch).*; .+",
        undone=switched_off("driver-mismatch"),
        validation=r"management_library",
    ),
    Case(
        "nvml-hangs",
        r"reading Gpus: want it made, have unknown \(timed out\); read `dmesg` on the host",
        undone=switched_off("nvml-hangs"),
    ),
    Case(
        "dns-broken",
        r"ofed: want infiniband-diags installed, have no address for lab .*; "
        r"mend the host's name resolution",
        work=MISSING_PACKAGE,
        # The lab's inventory has addresses, which no resolver is asked for.
        asked='"debian_repository_url": "http://lab:8080/debian",',
        changes=("base | add the debian repository",),
        undone=switched_off("dns-broken"),
    ),
    Case(
        "no-return-from-reboot",
        r"reboot: want another boot within 100 s, have .*; look at the console",
        work=OTHER_DRIVER,
        arguments=("--data", "reboot_timeout_s=100"),
        undone=(("no-return-from-reboot", "off"), ("power-off", "off")),
    ),
    Case(
        "gpu-missing",
        r"hardware: want 2 GPUs of H100-SXM5-80GB, have 1; look for the GPU with lspci",
        undone=switched_off("gpu-missing"),
        validation=r"gpus_present.*gpu02|gpu02.*gpus_present",
    ),
    Case(
        "pcie-width-degraded",
        r"hardware: want 0001:\S+ at x16, have x8; reseat the card",
        undone=switched_off("pcie-width-degraded"),
    ),
    Case(
        "gpu-lost",
        r"want .*, have .*; .+",
    ),
    Case(
        "xid",
        r"hardware: want no fatal Xid of GPU 0001:\S+ since the boot, have Xid 79: .*; "
        r"reboot the host",
    ),
]


@dataclass
class Table:
    lines: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, fault: str, done: Done) -> None:
        row, other = done.nodes[BROKEN], done.nodes[OTHER]
        self.lines.append(
            (
                fault,
                row["state"],
                " / ".join(row["problems"]),
                f"{row['seconds']:.0f} ({OTHER} {other['state']}, {other['seconds']:.0f})",
            )
        )

    def text(self) -> str:
        head = ("fault", "result", "sentence", "seconds")
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, ("---",) * 4, *self.lines])


@pytest.fixture(scope="module")
def table(lab: Lab) -> Iterator[Table]:
    table = Table()
    yield table
    (lab.folder / "faults.md").write_text(table.text() + "\n")
    say("\n" + table.text())


@pytest.fixture
def open_nodes(lab: Lab, request: pytest.FixtureRequest) -> Iterator[None]:
    """Both open, with nothing to do; from the snapshot if a test before has left it otherwise."""
    failed_before = request.session.testsfailed
    if not all(lab.verdict(node).open for node in (BROKEN, OTHER)):
        lab.to_open()
    lab.wait_offering()
    yield
    if request.session.testsfailed > failed_before:
        lab.reset(to="open")  # what it has left would be the next one's fault


@pytest.fixture(scope="module")
def usual_s(lab: Lab) -> float:
    """Seconds of the other node's part of a run in which nothing is wrong, and nothing to do."""
    lab.to_open()
    done = lab.run()
    assert done.code == 0, done.output[-4000:]
    seconds: float = done.nodes[OTHER]["seconds"]
    return seconds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_a_broken_node_ends_closed_with_cause_and_remedy_and_the_other_as_ever(
    lab: Lab, usual_s: float, open_nodes: None, table: Table, case: Case, tmp_path: Path
) -> None:
    if case.work:
        lab.close(BROKEN)
        lab.ssh(BROKEN, case.work)
    lab.fault(BROKEN, case.fault, "on")
    if case.validation:
        seen_by_the_validation(lab, case.validation)

    inventory = INVENTORY
    if case.asked:
        inventory = str(changed_inventory(tmp_path, {OF_BROKEN: OF_BROKEN + case.asked}))
    done = lab.run(*case.arguments, inventory=inventory)
    table.add(case.fault, done)
    row, other = done.nodes[BROKEN], done.nodes[OTHER]
    assert done.code != 0
    assert row["state"] in ("failed", "closed")
    assert len(row["problems"]) == 1, row["problems"]
    assert re.search(case.tells, row["problems"][0]), row["problems"]
    assert row["changes"] == list(case.changes)
    verdict = lab.verdict(BROKEN)
    assert (verdict.closed, verdict.validated) == (True, "False")
    assert re.search(case.tells, verdict.message), verdict.message

    assert (other["state"], other["changes"]) == ("open", [])
    assert other["seconds"] <= 1.5 * usual_s + 10
    assert lab.verdict(OTHER).open

    if not case.undone:
        lab.reset(to="open")
        return
    for fault, state in case.undone:
        lab.fault(BROKEN, fault, state)
    if case.settles:
        lab.wait_condition(BROKEN, case.settles, "False")
    again = lab.run(inventory=inventory)
    assert again.code == 0, again.output[-4000:]
    assert lab.verdict(BROKEN).open
    table.lines[-1] = (case.fault, f"{row['state']}, open after it", *table.lines[-1][2:])
    if case.asked:
        lab.reset(to="open")


def seen_by_the_validation(lab: Lab, told: str) -> None:
    code, output = stream(
        [sys.executable, "-m", "pytest", "-q", "tests/validation/test_claims.py", "-k", BROKEN,
         "--inventory", INVENTORY],
        lab.folder / "validation.log", every=r"passed|failed|FAILED",
    )  # fmt: skip
    assert code == 1, output[-4000:]
    failed = [line for line in output.splitlines() if line.startswith("FAILED")]
    assert any(re.search(told, line) for line in failed), output[-4000:]
