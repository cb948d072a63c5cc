"""What makes a guest this guest: name, host key, authorized key, simulated hardware.

The lab host makes all of it, so that strict host-key checking holds from the first contact. The
guest unpacks it at its first boot (``rackwright-lab-node``).
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from lab import simhw
from lab.command import run
from lab.description import Description, Node
from lab.guest.image import USER, USER_ID
from lab.paths import KNOWN_HOSTS, SSH_KEY, STATE


def make_keys(description: Description) -> None:
    """The lab's key pair, every guest's host key, and the list of them."""
    make_key(SSH_KEY, comment="rackwright lab")
    lines = []
    for node in description.nodes:
        key = host_key(node)
        make_key(key, comment=node.name)
        public = " ".join(public_half(key).read_text().split()[:2])
        lines.append(f"{node.address},{node.name} {public}\n")
    KNOWN_HOSTS.write_text("".join(lines))


def make_key(path: Path, comment: str) -> None:
    if path.is_file() and public_half(path).is_file():
        return
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def public_half(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def host_key(node: Node) -> Path:
    return STATE / "nodes" / node.name / "ssh_host_ed25519_key"


def archive(node: Node, description: Description, apt_key: Path) -> bytes:
    """A tar file to unpack at the guest's root; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # The host key comes last: with it there, the guest takes the rest as done.
        add(tar, "etc/hostname", f"{node.name}\n")
        add(tar, "etc/hosts", hosts(node, description))
        add(tar, f"home/{USER}/.ssh", None, mode=0o700, owner=USER_ID)
        authorized = public_half(SSH_KEY).read_text()
        add(tar, f"home/{USER}/.ssh/authorized_keys", authorized, mode=0o600, owner=USER_ID)
        add(tar, "etc/apt/keyrings/rackwright-lab.asc", apt_key.read_text())
        add(tar, "etc/simhw.conf", simhw.config(node))
        key = host_key(node)
        add(tar, "etc/ssh/ssh_host_ed25519_key.pub", public_half(key).read_text())
        add(tar, "etc/ssh/ssh_host_ed25519_key", key.read_text(), mode=0o600)
    return buffer.getvalue()


def add(
    tar: tarfile.TarFile, name: str, text: str | None, mode: int = 0o644, owner: int = 0
) -> None:
    """A file, or a folder where there is no text."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.uid, entry.gid = mode, owner, owner
    content = (text or "").encode()
    if text is None:
        entry.type = tarfile.DIRTYPE
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def hosts(node: Node, description: Description) -> str:
    lines = [
        "127.0.0.1 localhost",
        f"{node.address} {node.name}",
        f"{description.network.host} lab",
    ]
    return "".join(f"{line}\n" for line in lines)
