"""Container images put together from files: an OCI image layout, the same bytes for the same input.

Source: OCI Image Format Specification 1.1.0, "Image Layout", "Image Layer Filesystem Changeset",
"Image Configuration" (read 2026-11-30).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"

# All times are this one: a digest tells of content, not of the day.
EPOCH = "1970-01-01T00:00:00Z"

# Emulated guests unpack them: a smaller image is not worth a slower one, and this level is both.
GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, slots=True)
class Folder:
    mode: int = 0o755


Layer = Mapping[str, File | Link | Folder]
"""What it adds, by absolute path; the folders above it need not be named."""


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    """Repository and tag."""
    layers: Sequence[Layer]
    command: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def write(image: Image, folder: Path) -> str:
    """Make *folder* an OCI layout with this one image in it; return its manifest's digest."""
    scratch = folder.with_name(folder.name + ".new")
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "blobs/sha256").mkdir(parents=True)
    plain = [tar(layer) for layer in image.layers]
    layers = [
        blob(scratch, LAYER_TYPE, gzip.compress(content, GZIP_LEVEL, mtime=0)) for content in plain
    ]
    config = blob(scratch, CONFIG_TYPE, as_json(configuration(image, plain)))
    manifest = blob(
        scratch,
        MANIFEST_TYPE,
        as_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": config,
                "layers": layers,
            }
        ),
    )
    tag = image.name.rpartition(":")[2]
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [manifest | {"annotations": {"org.opencontainers.image.ref.name": tag}}],
    }
    (scratch / "index.json").write_bytes(as_json(index))
    (scratch / "oci-layout").write_bytes(as_json({"imageLayoutVersion": "1.0.0"}))
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    return digest_of(folder)


def digest_of(folder: Path) -> str:
    """The digest of the manifest of a layout's only image."""
    return str(json.loads((folder / "index.json").read_text())["manifests"][0]["digest"])


def configuration(image: Image, plain_layers: Sequence[bytes]) -> dict[str, object]:
    run = {
        "Env": [f"{name}={value}" for name, value in sorted(image.env.items())],
        "Entrypoint": list(image.entrypoint) or None,
        "Cmd": list(image.command) or None,
        "Labels": dict(sorted(image.labels.items())) or None,
        "WorkingDir": "/",
    }
    return {
        "created": EPOCH,
        "architecture": "amd64",
        "os": "linux",
        "config": {key: value for key, value in run.items() if value is not None},
        "rootfs": {"type": "layers", "diff_ids": [digest(content) for content in plain_layers]},
        "history": [{"created": EPOCH, "created_by": "rackwright lab"} for _ in plain_layers],
    }


def tar(layer: Layer) -> bytes:
    entries: dict[str, File | Link | Folder] = {}
    for path, entry in layer.items():
        if not path.startswith("/"):
            raise ValueError(f"layer: want absolute paths, have {path!r}")
        for parent in PurePosixPath(path).parents:
            entries.setdefault(str(parent), Folder())
        entries[path] = entry
    entries.pop("/", None)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(entries):
            add(archive, path.lstrip("/"), entries[path])
    return buffer.getvalue()


def add(archive: tarfile.TarFile, name: str, entry: File | Link | Folder) -> None:
    info = tarfile.TarInfo(name)  # root's, of the epoch
    if isinstance(entry, File):
        info.mode, info.size = entry.mode, len(entry.content)
        archive.addfile(info, io.BytesIO(entry.content))
        return
    if isinstance(entry, Link):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
    else:
        info.type, info.mode = tarfile.DIRTYPE, entry.mode
    archive.addfile(info)


def blob(folder: Path, media_type: str, content: bytes) -> dict[str, object]:
    """Store it; return its descriptor."""
    name = digest(content)
    (folder / "blobs" / name.replace(":", "/")).write_bytes(content)
    return {"mediaType": media_type, "digest": name, "size": len(content)}


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def as_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
