"""The guests as libvirt domains: made, started, snapshotted, reverted."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jinja2

from lab import network
from lab.command import CommandError, run
from lab.description import Description, Node
from lab.errors import LabError
from lab.guest import identity, ssh
from lab.guest.accelerator import Accelerator
from lab.guest.image import Image
from lab.host import virsh
from lab.mirror import repositories
from lab.paths import STATE, TREE

TEMPLATE = TREE / "guest/domain.xml.j2"
BARE = "bare"
"""The snapshot after the first boot: what a rented machine looks like."""

GUEST_NICENESS = -10
BOOT_TIMEOUT_S = {"tcg": 600.0, "kvm": 90.0}
REVERT_TIMEOUT_S = 120.0

Outcome = Literal["kept", "reverted", "created"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One guest; every method may be called in any state."""

    node: Node
    network: str

    @property
    def name(self) -> str:
        return f"{self.network}-{self.node.name}"

    @property
    def folder(self) -> Path:
        return STATE / "nodes" / self.node.name

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def identity(self) -> Path:
        return self.folder / "identity.tar"

    @property
    def record(self) -> Path:
        return self.folder / "machine.json"

    @property
    def console_log(self) -> Path:
        return STATE / "logs" / f"{self.node.name}-console.log"

    def state(self) -> str | None:
        """libvirt's word for it, such as ``running``; ``None`` if there is no such domain."""
        if self.name not in virsh("list", "--all", "--name").split():
            return None
        return virsh("domstate", self.name).strip()

    def running(self) -> bool:
        return self.state() == "running"

    def snapshots(self) -> list[str]:
        if self.state() is None:
            return []
        return sorted(virsh("snapshot-list", self.name, "--name").split())

    def up(
        self,
        image: Image,
        accelerator: Accelerator,
        description: Description,
        apt_key: Path,
    ) -> Outcome:
        """Running and reachable; made anew if what it is made from has changed."""
        archive = identity.archive(self.node, description, apt_key)
        xml = self.render(accelerator, description)
        made_from = {
            "image": image.key,
            "identity": hashlib.sha256(archive).hexdigest(),
            "domain": hashlib.sha256(xml.encode()).hexdigest(),
        }
        if self.recorded() == made_from and BARE in self.snapshots():
            if self.running() and ssh.reachable(self.node):
                return "kept"
            self.revert(BARE)
            return "reverted"
        self.destroy()
        self.create(image, archive, xml)
        ssh.wait(self.node, timeout_s=BOOT_TIMEOUT_S[accelerator], alive=self.running)
        self.settle()
        self.snapshot(BARE)
        self.record.write_text(json.dumps(made_from, indent=1) + "\n")
        return "created"

    def create(self, image: Image, archive: bytes, xml: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.console_log.parent.mkdir(parents=True, exist_ok=True)
        self.identity.write_bytes(archive)
        self.identity.chmod(0o600)
        run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, self.disk]
        )  # fmt: skip
        definition = self.folder / "domain.xml"
        definition.write_text(xml)
        # libvirt tries out QEMU at its first use, which takes a while on a busy host.
        virsh("define", definition, timeout_s=300)
        virsh("start", self.name, timeout_s=300)
        self.prefer()

    def prefer(self) -> None:
        """Let the guest run before anything else on a busy lab host.

        What runs in it has time limits made for real machines; a starved guest fails them in ways
        that say nothing about the product.
        """
        pid = Path("/run/libvirt/qemu", f"{self.name}.pid").read_text().strip()
        for thread in Path("/proc", pid, "task").iterdir():
            with suppress(ProcessLookupError):  # threads come and go
                os.setpriority(os.PRIO_PROCESS, int(thread.name), GUEST_NICENESS)

    def settle(self) -> None:
        """Wait for the end of the boot, so that no reset starts with the rest of it."""
        shell = "systemctl is-system-running --wait || systemctl --failed --no-legend --plain"
        state, *failed = ssh.command(self.node, shell, timeout_s=300).splitlines()
        if state != "running":
            raise LabError(
                f"{self.node.name}: want a guest that boots without failures, have it {state}: "
                f"{'; '.join(failed)}; look: python -m lab ssh {self.node.name}"
            )

    def snapshot(self, name: str) -> None:
        """Disk and memory, under this name; one that has the name is replaced."""
        if not self.running():
            raise LabError(
                f"{self.node.name}: want it running for a snapshot, have {self.state()}; "
                "run: python -m lab up"
            )
        if name in self.snapshots():
            virsh("snapshot-delete", self.name, name, timeout_s=300)
        virsh("snapshot-create-as", self.name, name, timeout_s=300)

    def revert(self, name: str) -> None:
        """To the snapshot, reachable and with the right time."""
        if name not in self.snapshots():
            raise LabError(
                f"{self.node.name}: want a snapshot {name!r}, "
                f"have {', '.join(self.snapshots()) or 'none'}; "
                f"run: python -m lab {'up' if name == BARE else f'snapshot {name}'}"
            )
        self.undo_outside_faults()
        virsh("snapshot-revert", self.name, name, "--running", timeout_s=300)
        network.drop_connections(self.node.address)
        self.prefer()
        ssh.wait(self.node, timeout_s=REVERT_TIMEOUT_S, alive=self.running)
        ssh.set_clock(self.node)

    def undo_outside_faults(self) -> None:
        """What a fault changed around the guest: no snapshot of it holds that."""
        repositories.same_for_all(str(self.node.address))
        if self.state() not in ("running", "paused"):
            return
        virsh("set-lifecycle-action", self.name, "reboot", "restart", "--live")
        virsh("domif-setlink", self.name, self.node.mac, "up")

    def boot(self) -> None:
        """Power on, with what is on the disk, until it can be reached."""
        if self.state() == "shut off":
            virsh("start", self.name, timeout_s=300)
            self.prefer()
        # Nobody but `up` knows whether the guest is emulated; the longer wait does no harm.
        ssh.wait(self.node, timeout_s=max(BOOT_TIMEOUT_S.values()), alive=self.running)

    def stop(self) -> None:
        """Off at once, as by its power switch; disk and snapshots stay."""
        if self.state() not in (None, "shut off"):
            virsh("destroy", self.name)

    def destroy(self) -> None:
        """Nothing of the guest stays but its host key."""
        self.record.unlink(missing_ok=True)
        self.stop()
        if self.state() is not None:
            virsh("undefine", self.name, "--snapshots-metadata")
        for path in (self.disk, self.identity):
            path.unlink(missing_ok=True)

    def recorded(self) -> dict[str, str] | None:
        """What the domain was made from, written when it was complete."""
        try:
            content = json.loads(self.record.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def status(self) -> dict[str, object]:
        try:
            state: str | None = self.state()
            snapshots: list[str] | None = self.snapshots()
        except CommandError:
            state = snapshots = None  # libvirt does not answer
        return {
            "address": str(self.node.address),
            "domain": self.name,
            "state": state,
            "ssh": state == "running" and ssh.reachable(self.node),
            "snapshots": snapshots,
        }

    def render(self, accelerator: Accelerator, description: Description) -> str:
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)
        return environment.from_string(TEMPLATE.read_text()).render(
            name=self.name,
            node=self.node,
            network=description.network,
            accelerator=accelerator,
            identity=self.identity,
            disk=self.disk,
            console_log=self.console_log,
        )


def machines(description: Description, names: list[str]) -> list[Machine]:
    return [Machine(node, description.network.name) for node in description.select(names)]
