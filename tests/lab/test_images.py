"""The lab's images: the same bytes for the same input, and layouts that a registry accepts."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.registry import images, oci
from lab.registry.oci import File, Folder, Image, Link

IMAGE = Image(
    "some/where:1",
    layers=[
        {"/usr/bin/tool": File(b"#!/bin/sh\n", 0o755), "/bin": Link("usr/bin")},
        {"/tmp": Folder(0o1777), "/etc/a": File(b"x")},
    ],
    entrypoint=["tool"],
    env={"B": "2", "A": "1"},
)


def read_blob(folder: Path, descriptor: dict[str, object]) -> bytes:
    content = (folder / "blobs" / str(descriptor["digest"]).replace(":", "/")).read_bytes()
    assert oci.digest(content) == descriptor["digest"]
    assert len(content) == descriptor["size"]
    return content


def members(layer: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as archive:
        return {member.name: member for member in archive}


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    oci.write(IMAGE, tmp_path / "layout")
    return tmp_path / "layout"


@pytest.fixture
def manifest(layout: Path) -> dict[str, list[dict[str, object]]]:
    index = json.loads((layout / "index.json").read_text())
    parsed: dict[str, list[dict[str, object]]] = json.loads(
        read_blob(layout, index["manifests"][0])
    )
    return parsed


def test_every_descriptor_names_a_blob_of_that_digest_and_size(
    layout: Path, manifest: dict[str, list[dict[str, object]]]
) -> None:
    config = json.loads(read_blob(layout, manifest["config"]))  # type: ignore[arg-type]
    plain = [gzip.decompress(read_blob(layout, layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [oci.digest(content) for content in plain]
    assert config["config"]["Env"] == ["A=1", "B=2"]
    assert config["config"]["Entrypoint"] == ["tool"]
    assert "Cmd" not in config["config"]


def test_layer_has_modes_links_and_the_folders_above(
    layout: Path, manifest: dict[str, list[dict[str, object]]]
) -> None:
    first, second = (members(read_blob(layout, layer)) for layer in manifest["layers"])
    assert list(first) == ["bin", "usr", "usr/bin", "usr/bin/tool"]
    assert first["bin"].linkname == "usr/bin"
    assert first["usr/bin/tool"].mode == 0o755
    assert first["usr"].isdir()
    assert second["tmp"].mode == 0o1777


def test_same_input_same_digest(tmp_path: Path) -> None:
    assert oci.write(IMAGE, tmp_path / "a") == oci.write(IMAGE, tmp_path / "b")


def test_other_content_other_digest(tmp_path: Path) -> None:
    other = Image(IMAGE.name, [{"/usr/bin/tool": File(b"#!/bin/sh\nexit\n", 0o755)}])
    assert oci.write(IMAGE, tmp_path / "a") != oci.write(other, tmp_path / "b")


def test_relative_path_is_refused() -> None:
    with pytest.raises(ValueError, match="want absolute paths"):
        oci.tar({"etc/a": File(b"")})


def test_images_keep_the_upstream_names() -> None:
    assert set(images.RECIPES) == {
        "pause:3.10.2",
        "nvidia/k8s-device-plugin:v0.20.0",
        "mellanox/k8s-rdma-shared-dev-plugin:v1.5.3",
        "rackwright-lab/cni:1",
        "rackwright-lab/probe:1",
    }


def test_key_depends_on_the_programs_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images.key(images.PAUSE)
    (tmp_path / "pause").mkdir()
    (tmp_path / "pause/pause.c").write_text("int main(void) { return 0; }\n")
    for module in ("images.py", "oci.py", "debian.py"):
        (tmp_path / module).write_bytes((images.SOURCES / module).read_bytes())
    monkeypatch.setattr(images, "SOURCES", tmp_path)
    assert images.key(images.PAUSE) != before


def test_pause_is_static_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BUILD", tmp_path)
    image = images.pause()
    assert image.entrypoint == ["/pause"]
    entry = image.layers[0]["/pause"]
    assert isinstance(entry, File)
    program = tmp_path / "pause"
    program.write_bytes(entry.content)
    program.chmod(entry.mode)
    headers = subprocess.run(["readelf", "-l", program], check=True, capture_output=True)
    assert b"INTERP" not in headers.stdout
    with subprocess.Popen([program]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        assert process.wait(5) == 0


def test_program_is_built_once_for_the_same_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BUILD", tmp_path)
    source = tmp_path / "source.c"
    source.write_text("1")
    count = tmp_path / "count"
    argv = ["sh", "-c", f'echo >> {count}; cp {source} "$0"', "{output}"]
    assert images.compiled("p", [source], argv) == b"1"
    assert images.compiled("p", [source], argv) == b"1"
    assert count.read_text() == "\n"
    source.write_text("2")
    assert images.compiled("p", [source], argv) == b"2"
    assert count.read_text() == "\n\n"


def test_failed_build_says_what_the_compiler_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "BUILD", tmp_path)
    with pytest.raises(LabError, match="want it built, have exit code 3") as caught:
        images.compiled("p", [], ["sh", "-c", "echo no such type >&2; exit 3"])
    assert "no such type" in str(caught.value)
