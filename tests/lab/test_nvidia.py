"""The simulated driver: where MIG instances go, and how its packages hang together. No guest."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.mirror.deb import Deb, File
from lab.nvidia import packages

SOURCES = packages.SOURCES

# One GPU as the library sees it, driven from here: profiles by id, -1 where there is no room.
HARNESS = """
#include <string.h>
#include "placement.h"

static struct nvsim_gpu gpu;

void start(void) { memset(&gpu, 0, sizeof(gpu)); }

int create(unsigned int board, unsigned int id)
{
    const struct model *model = model_for(board);
    const struct gi_profile *profile = profile_by_id(model, id);
    int at = gi_place(model, &gpu, profile);
    if (at < 0)
        return -1;
    unsigned int gi = gi_id(profile, at);
    if (gpu.gi[gi].used)
        return -2;
    gpu.gi[gi] = (struct nvsim_gpu_instance){ 1, id, at, profile->size };
    return gi;
}

unsigned int capacity(unsigned int board, unsigned int id)
{
    return gi_capacity(&gpu, profile_by_id(model_for(board), id));
}
"""

A100, H100, T4 = 0x20B0, 0x2330, 0x1EB8


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    directory = tmp_path_factory.mktemp("placement")
    (directory / "harness.c").write_text(HARNESS)
    library = directory / "harness.so"
    sources = [directory / "harness.c", SOURCES / "nvml/placement.c", SOURCES / "nvml/models.c"]
    includes = [f"-I{SOURCES / 'nvml'}", f"-I{SOURCES / 'kernel'}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *includes, "-o", library, *sources], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def create(board: ctypes.CDLL) -> Callable[[int, str], list[int]]:
    def run(model: int, profiles: str) -> list[int]:
        board.start()
        return [board.create(model, int(profile)) for profile in profiles.split(",")]

    return run


# Source: NVIDIA "Multi-Instance GPU User Guide", "Creating GPU Instances" (ids as shown there).
@pytest.mark.parametrize(
    ("profiles", "ids"),
    [
        ("9,19,14,19", [2, 7, 4, 8]),
        ("19,19,14,9", [13, 11, 3, -1]),
        ("19,14,5", [13, 5, 1]),
        ("9,9", [2, 1]),
        ("19,19,19,19,19,19,19,19", [13, 11, 12, 7, 8, 9, 10, -1]),
        ("0,19", [0, -1]),
        ("20,20", [13, -1]),
        ("15,15,15,15,19", [6, 5, 3, 4, -1]),
    ],
)
@pytest.mark.parametrize("model", [A100, H100])
def test_instances_go_where_the_vendor_shows(
    create: Callable[[int, str], list[int]], model: int, profiles: str, ids: list[int]
) -> None:
    assert create(model, profiles) == ids


def test_a_3g_instance_leaves_no_room_for_4g_beside_another(
    board: ctypes.CDLL, create: Callable[[int, str], list[int]]
) -> None:
    create(A100, "9")
    assert board.capacity(A100, 5) == 1
    create(A100, "9,9")
    assert [board.capacity(A100, profile) for profile in (19, 14, 9, 5, 0)] == [0, 0, 0, 0, 0]


@pytest.fixture
def built(tmp_path: Path) -> Callable[[str], dict[str, Deb]]:
    names = (
        "libnvidia-ml.so",
        "libcuda.so",
        "nvidia-smi",
        "nvidia-persistenced",
        "nvidia-modprobe",
    )
    programs = {name: tmp_path / name for name in names}
    for program in programs.values():
        program.write_bytes(b"")
    return lambda version: {deb.name: deb for deb in packages.packages(version, programs)}


@pytest.mark.parametrize("version", packages.VERSIONS)
def test_one_version_depends_on_itself_only(
    built: Callable[[str], dict[str, Deb]], version: str
) -> None:
    debs = built(version)
    own = set(debs)
    for deb in debs.values():
        assert deb.version == f"{version}-1+sim1"
        for one in deb.relations.get("Depends", "").split(", "):
            name, _, relation = one.partition(" ")
            if name in own:
                assert relation == f"(= {version}-1+sim1)", one
    assert {"nvidia-kernel-open-dkms", "libnvidia-ml1"} <= {
        one.split()[0] for one in debs["nvidia-driver-cuda"].relations["Depends"].split(", ")
    }


def test_the_pin_covers_every_package(built: Callable[[str], dict[str, Deb]]) -> None:
    debs = built("580.178.04")
    pin = debs.pop("nvidia-driver-pinning-580.178.04")
    (preferences,) = (file for path, file in pin.files.items() if path.endswith("/preferences"))
    assert isinstance(preferences, File)
    assert isinstance(preferences.content, bytes)
    fields = dict(re.findall(r"^(\S+): (.*)$", preferences.content.decode(), re.MULTILINE))
    assert set(fields["Package"].split()) == set(debs)
    assert fields["Pin"] == "version 580.178.04*"


def test_nothing_claims_to_be_the_vendors(built: Callable[[str], dict[str, Deb]]) -> None:
    for deb in built("580.178.04").values():
        assert "(simulated)" in deb.description
        # nouveau is kept away by whoever installs the driver, not by this package.
        assert not any("blacklist" in str(file) for file in deb.files.values())


def test_dkms_builds_every_module_the_sources_have(
    built: Callable[[str], dict[str, Deb]],
) -> None:
    deb = built("580.178.04")["nvidia-kernel-open-dkms"]
    conf = deb.files["/usr/src/nvidia-580.178.04/dkms.conf"]
    assert isinstance(conf, File)
    assert isinstance(conf.content, bytes)
    named = re.findall(r'^BUILT_MODULE_NAME\[\d+\]="(.*)"$', conf.content.decode(), re.MULTILINE)
    objects = re.search(r"^obj-m := (.*)$", (SOURCES / "kernel/Kbuild").read_text(), re.MULTILINE)
    assert objects is not None
    assert sorted(named) == sorted(name.removesuffix(".o") for name in objects[1].split())
    header = deb.files["/usr/src/nvidia-580.178.04/nv-version.h"]
    assert isinstance(header, File)
    assert header.content == b'#define NV_VERSION_STRING "580.178.04"\n'
