"""The .deb format: what a package consists of, and packing it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.command import run
from lab.paths import BUILD

KEPT = BUILD / "debs"

# A fixed time in the archives, so that the same content is the same file on each build.
SOURCE_DATE_EPOCH = "1793404800"


@dataclass(frozen=True, slots=True)
class File:
    """Content that is a file of this machine or the bytes themselves."""

    content: Path | bytes
    mode: int = 0o644

    def identity(self) -> str:
        """Changes whenever the content may have; a binary of 80 MB is not read for it."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        stat = self.content.stat()
        return f"{self.content} {stat.st_size} {stat.st_mtime_ns}"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.content, bytes):
            path.write_bytes(self.content)
        else:
            shutil.copyfile(self.content, path)
        path.chmod(self.mode)


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str
    mode: int = 0o777

    def identity(self) -> str:
        return f"-> {self.target}"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.target)


@dataclass(frozen=True, slots=True)
class Deb:
    """A binary package. ``files`` is by absolute path; a path below /etc is a conffile."""

    name: str
    version: str
    description: str
    files: Mapping[str, File | Link]
    relations: Mapping[str, str] = field(default_factory=dict)
    """``Depends``, ``Conflicts`` and so on."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """``postinst`` and so on."""
    architecture: str = "amd64"
    section: str = "admin"

    @property
    def file_name(self) -> str:
        """A version's epoch is not part of a package's file name."""
        return f"{self.name}_{self.version.rsplit(':', 1)[-1]}_{self.architecture}.deb"

    def control(self, installed_kib: int) -> str:
        """Render ``DEBIAN/control``; the description's first line is the synopsis."""
        synopsis, *more = self.description.strip().splitlines()
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "Rackwright lab <lab@rackwright.invalid>",
            "Installed-Size": str(installed_kib),
            **self.relations,
            "Section": self.section,
            "Priority": "optional",
            "Description": synopsis,
        }
        lines = [f"{name}: {value}" for name, value in fields.items()]
        # An empty line would end the record: the format writes it as a full stop.
        lines += [f" {line.strip() or '.'}" for line in more]
        return "\n".join(lines) + "\n"

    def conffiles(self) -> str:
        return "".join(f"{path}\n" for path in sorted(self.files) if path.startswith("/etc/"))

    def key(self) -> str:
        digest = hashlib.sha256(self.control(0).encode())
        for path, file in sorted(self.files.items()):
            digest.update(f"{path} {file.mode:o} {file.identity()}\n".encode())
        for name, text in sorted(self.scripts.items()):
            digest.update(f"{name} {text}".encode())
        return digest.hexdigest()


def pack(deb: Deb) -> Path:
    """Return the package's file, packed first unless the cache has it from the same content."""
    packed = KEPT / deb.file_name
    key_file = KEPT / f"{deb.file_name}.key"
    key = deb.key()
    if packed.is_file() and key_file.is_file() and key_file.read_text() == key:
        return packed
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix=f"{deb.name}.") as scratch:
        root = Path(scratch) / "root"
        for path, file in deb.files.items():
            file.write(root / path.lstrip("/"))
        size = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
        meta = {"control": File(deb.control(size // 1024 + 1).encode())}
        if conffiles := deb.conffiles():
            meta["conffiles"] = File(conffiles.encode())
        for name, text in deb.scripts.items():
            meta[name] = File(text.encode(), 0o755)
        for name, file in meta.items():
            file.write(root / "DEBIAN" / name)
        for directory in [root, *(p for p in root.rglob("*") if p.is_dir())]:
            directory.chmod(0o755)
        result = Path(scratch) / deb.file_name
        # Emulated guests unpack these: zstd costs them a fraction of xz.
        run(
            ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z6", "--build", root, result],
            timeout_s=600,
            env=os.environ | {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH},
        )
        result.replace(packed)
    key_file.write_text(key)
    return packed
