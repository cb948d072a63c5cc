"""The guests for Vagrant: the image as a box, and each identity where QEMU may read it."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from lab.command import run
from lab.description import Description
from lab.guest import identity
from lab.guest.image import DISK_SIZE_MIB, Image
from lab.host import virsh
from lab.paths import IMAGE, SSH_KEY
from lab.progress import step

POOL = "rackwright"
# Not in the cache: vagrant-libvirt runs QEMU as a user who may not look into root's home.
POOL_FOLDER = Path("/var/lib/libvirt/images/rackwright")
QEMU_USER = "libvirt-qemu"


def pack(image: Image, description: Description, apt_key: Path, console: Console) -> Path:
    """The box file for ``vagrant box add``, and what the Vagrantfile expects beside it."""
    make_pool()
    for node in description.nodes:
        path = POOL_FOLDER / f"{node.name}.tar"
        path.write_bytes(identity.archive(node, description, apt_key))
        path.chmod(0o600)
        shutil.chown(path, QEMU_USER)
    box = IMAGE / f"rackwright-trixie-{image.key}.box"
    if not box.is_file():
        with step(console, f"box {box.name}"), TemporaryDirectory(dir=IMAGE) as scratch:
            folder = Path(scratch)
            write_contents(folder, image)
            new = folder / "new.box"
            with tarfile.open(new, "w:gz", compresslevel=1) as tar:
                for name in ("metadata.json", "Vagrantfile", "box.img"):
                    tar.add(folder / name, arcname=name)
            for old in IMAGE.glob("rackwright-trixie-*.box"):
                old.unlink()
            new.rename(box)
    return box


def write_contents(folder: Path, image: Image) -> None:
    run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", image.disk, folder / "box.img"],
        timeout_s=600,
    )
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": DISK_SIZE_MIB // 1024}
    (folder / "metadata.json").write_text(json.dumps(metadata) + "\n")
    (folder / "Vagrantfile").write_text(
        "# The lab's own key: the guests have no other.\n"
        "Vagrant.configure('2') do |config|\n"
        "  config.ssh.username = 'lab'\n"
        f"  config.ssh.private_key_path = '{SSH_KEY}'\n"
        "end\n"
    )


def make_pool() -> None:
    """A storage pool of the lab's own, so that nothing lies among the host's other machines."""
    POOL_FOLDER.mkdir(parents=True, exist_ok=True)
    if POOL not in virsh("pool-list", "--all", "--name").split():
        virsh("pool-define-as", POOL, "dir", "--target", POOL_FOLDER)
    if POOL not in virsh("pool-list", "--name").split():
        virsh("pool-start", POOL)
