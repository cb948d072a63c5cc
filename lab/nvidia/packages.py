"""
NVIDIA's driver packages as in its own debian13 repository, with the simulated driver inside.

Names, and that all of one version depend on each other exactly, are the vendor's; no file of the
vendor's is in them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lab.command import run
from lab.errors import LabError
from lab.mirror.deb import Deb, File, Link, pack
from lab.mirror.debs import unit_scripts
from lab.paths import BUILD

VERSIONS = ("580.159.03", "580.178.04", "595.71.05", "595.91.07")

SOURCES = Path(__file__).resolve().parent
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
KEPT = BUILD / "nvidia"

# Nothing that these link needs a newer C library; `_check_libc` holds it.
LIBC = "libc6 (>= 2.34)"

NOTE = """\
Simulated: made by the Rackwright lab for machines without GPUs. It drives no hardware and has no
code of NVIDIA's."""

Report = Callable[[str], None]


def deb_version(version: str) -> str:
    return f"{version}-1+sim1"


def build(out: Path, root: Path, report: Report = print) -> list[Path]:
    """
    Put the packages of all versions into ``out``; what has been built from these sources is kept.

    ``root`` is the guest's root file system: what is compiled here must run on its C library.
    """
    libc = _libc_of(root)
    out.mkdir(parents=True, exist_ok=True)
    built = []
    for version in VERSIONS:
        programs = _compile(version, report)
        for program in programs.values():
            _check_libc(program, libc)
        for deb in packages(version, programs):
            built.append(_link(pack(deb), out / deb.file_name))
    return built


def packages(version: str, programs: Mapping[str, Path]) -> list[Deb]:
    """All packages of one driver version, given its compiled programs and libraries."""
    exactly = f"(= {deb_version(version)})"

    def deb(
        name: str,
        synopsis: str,
        files: Mapping[str, File | Link],
        *depends: str,
        relations: Mapping[str, str] | None = None,
        scripts: Mapping[str, str] | None = None,
    ) -> Deb:
        return Deb(
            name=name,
            version=deb_version(version),
            description=f"{synopsis} (simulated)\n\n{NOTE}",
            files={
                **files,
                f"/usr/share/doc/{name}/copyright": File((SOURCES / "copyright").read_bytes()),
            },
            relations={**({"Depends": ", ".join(depends)} if depends else {}), **(relations or {})},
            scripts=scripts or {},
            section="contrib/kernel",
        )

    return [
        deb(
            "nvidia-kernel-open-dkms",
            "NVIDIA kernel modules, open flavour, for DKMS",
            _dkms_files(version),
            f"nvidia-kernel-support {exactly}",
            "dkms (>= 3.1)",
            relations={
                "Provides": f"nvidia-kernel-dkms, nvidia-kernel-{version}",
                "Conflicts": "nvidia-kernel-dkms",
            },
            scripts=_dkms_scripts(version),
        ),
        deb(
            "nvidia-kernel-support",
            "NVIDIA kernel module support files",
            {
                "/etc/modprobe.d/nvidia.conf": _text(MODPROBE),
                "/var/lib/rackwright-sim/inforom/README": _text(INFOROM),
            },
            f"nvidia-modprobe {exactly}",
        ),
        deb(
            "libnvidia-ml1",
            "NVIDIA Management Library (NVML) runtime library",
            _library(programs, "libnvidia-ml.so", version),
            LIBC,
        ),
        deb(
            "libcuda1",
            "NVIDIA CUDA Driver Library",
            _library(programs, "libcuda.so", version),
            LIBC,
        ),
        deb(
            "nvidia-driver-cuda",
            "NVIDIA driver for compute: nvidia-smi and what it needs",
            {"/usr/bin/nvidia-smi": File(programs["nvidia-smi"], 0o755)},
            LIBC,
            f"libcuda1 {exactly}",
            f"libnvidia-ml1 {exactly}",
            f"nvidia-persistenced {exactly}",
            f"nvidia-kernel-open-dkms {exactly}",
        ),
        deb(
            "nvidia-persistenced",
            "daemon to maintain persistent software state in the NVIDIA driver",
            {
                "/usr/bin/nvidia-persistenced": File(programs["nvidia-persistenced"], 0o755),
                "/usr/lib/systemd/system/nvidia-persistenced.service": File(
                    SOURCES / "persistenced/nvidia-persistenced.service"
                ),
                "/usr/lib/sysusers.d/nvidia-persistenced.conf": _text(PERSISTENCED_USER),
            },
            LIBC,
            f"nvidia-modprobe {exactly}",
            scripts=_persistenced_scripts(),
        ),
        deb(
            "nvidia-modprobe",
            "utility to load NVIDIA kernel modules",
            # Set-uid root, as the vendor's: it loads the modules for whoever uses a GPU first.
            {"/usr/bin/nvidia-modprobe": File(programs["nvidia-modprobe"], 0o4755)},
            LIBC,
        ),
        deb(
            f"nvidia-driver-pinning-{version}",
            f"pins the NVIDIA driver to {version}",
            {f"{PINNING_SHARE}/preferences": _text(_pinning(version))},
            relations={
                "Provides": "nvidia-driver-pinning",
                "Conflicts": "nvidia-driver-pinning",
                "Replaces": "nvidia-driver-pinning",
            },
            scripts=PINNING_SCRIPTS,
        ),
    ]


# ---- what is in them ----

# Source: NVIDIA/open-gpu-kernel-modules has nvidia-uvm as a module of its own, which CUDA needs;
# distributions load it with nvidia by such a line. nouveau is left to whoever installs the driver.
MODPROBE = """\
# Of the simulated driver. nvidia-uvm comes with nvidia.
softdep nvidia post: nvidia-uvm
"""

INFOROM = """\
What a board's InfoROM would keep over a reboot: the MIG mode of Ampere GPUs. Simulated; written by
the simulated nvidia.ko, one file for each GPU, named by its UUID.
"""

PERSISTENCED_USER = 'u nvidia-persistenced - "NVIDIA Persistence Daemon" /nonexistent\n'

PINNED = (
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "nvidia-kernel-support",
    "nvidia-modprobe",
    "nvidia-persistenced",
)

PINNING_SHARE = "/usr/share/nvidia-driver-pinning"
PREFERENCES = "/etc/apt/preferences.d/nvidia-driver-pinning"

# Copied, not a conffile: one version's pin must not outlive its package when another replaces it.
PINNING_SCRIPTS = {
    "postinst": f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  install -D -m 0644 {PINNING_SHARE}/preferences {PREFERENCES}
fi
""",
    "prerm": f"""\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
  rm -f {PREFERENCES}
fi
""",
}


def _pinning(version: str) -> str:
    return f"""\
# Of nvidia-driver-pinning-{version}.
Package: {" ".join(PINNED)}
Pin: version {version}*
Pin-Priority: 1000
"""


MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


def _dkms_files(version: str) -> dict[str, File | Link]:
    tree = f"/usr/src/nvidia-{version}"
    lines = [
        'PACKAGE_NAME="nvidia"',
        f'PACKAGE_VERSION="{version}"',
        'AUTOINSTALL="yes"',
        'MAKE[0]="make -j$(nproc) KERNEL_UNAME=${kernelver} modules"',
        'CLEAN="true"',
    ]
    for number, module in enumerate(MODULES):
        lines += [
            f'BUILT_MODULE_NAME[{number}]="{module}"',
            f'DEST_MODULE_LOCATION[{number}]="/updates/dkms"',
        ]
    return {
        **{f"{tree}/{path.name}": File(path) for path in sorted((SOURCES / "kernel").iterdir())},
        f"{tree}/nv-version.h": _text(_version_header(version)),
        f"{tree}/dkms.conf": _text("".join(f"{line}\n" for line in lines)),
    }


def _dkms_scripts(version: str) -> dict[str, str]:
    # Source: Debian's dkms, /usr/lib/dkms/common.postinst, called as dh_dkms(1) has packages do.
    return {
        "postinst": f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  /usr/lib/dkms/common.postinst nvidia {version} /usr/share/nvidia-dkms "" $2
fi
""",
        "prerm": f"""\
#!/bin/sh
set -e
case "$1" in
  remove|upgrade|deconfigure)
    if [ "$(dkms status -m nvidia -v {version})" ]; then
      dkms remove -m nvidia -v {version} --all
    fi
    ;;
esac
""",
    }


def _persistenced_scripts() -> dict[str, str]:
    scripts = unit_scripts("nvidia-persistenced.service", start=True)
    user = "systemd-sysusers nvidia-persistenced.conf"
    marker = "set -e\n"
    return scripts | {"postinst": scripts["postinst"].replace(marker, f"{marker}{user}\n", 1)}


def _library(programs: Mapping[str, Path], name: str, version: str) -> dict[str, File | Link]:
    return {
        f"{LIBRARIES}/{name}.{version}": File(programs[name], 0o644),
        f"{LIBRARIES}/{name}.1": Link(f"{name}.{version}"),
    }


def _text(text: str) -> File:
    return File(text.encode())


def _version_header(version: str) -> str:
    return f'#define NV_VERSION_STRING "{version}"\n'


# ---- compiling ----

C_FLAGS = [
    *("-O2", "-g0", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"),
    *("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-Wl,-z,relro", "-Wl,-z,now"),
]


def _compile(version: str, report: Report) -> dict[str, Path]:
    """Programs and libraries of one version, by name; compiled once from the same sources."""
    directory = KEPT / _key() / version
    names = (
        "libnvidia-ml.so",
        "libcuda.so",
        "nvidia-smi",
        "nvidia-persistenced",
        "nvidia-modprobe",
    )
    programs = {name: directory / name for name in names}
    if all(path.is_file() for path in programs.values()):
        return programs
    report(f"nvidia: compiling {version}")
    scratch = directory.with_name(f"{version}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    (scratch / "nv-version.h").write_text(_version_header(version))

    def cc(output: str, sources: Iterable[Path], *options: str) -> None:
        includes = [f"-I{scratch}", f"-I{SOURCES / 'kernel'}"]
        run(["gcc", *C_FLAGS, *includes, "-o", scratch / output, *sources, *options], timeout_s=120)

    cc("libnvidia-ml.so", sorted((SOURCES / "nvml").glob("*.c")), *_shared("libnvidia-ml.so.1"))
    cc("libcuda.so", [SOURCES / "cuda/cuda.c"], *_shared("libcuda.so.1"))
    cc("nvidia-persistenced", [SOURCES / "persistenced/nvidia-persistenced.c"])
    cc("nvidia-modprobe", [SOURCES / "modprobe/nvidia-modprobe.c"])
    run(
        [
            *("go", "build", "-C", SOURCES / "smi", "-trimpath", "-mod=readonly"),
            *("-ldflags", f"-s -w -X main.version={version}", "-o", scratch / "nvidia-smi", "."),
        ],
        timeout_s=600,
        env=os.environ | {"CGO_ENABLED": "1", "GOARCH": "amd64", "GOFLAGS": "-buildvcs=false"},
    )
    for name in ("libnvidia-ml.so", "libcuda.so", "nvidia-persistenced", "nvidia-modprobe"):
        run(["strip", "--strip-unneeded", scratch / name])
    shutil.rmtree(directory, ignore_errors=True)
    scratch.rename(directory)
    for old in KEPT.iterdir():
        if old.name != directory.parent.name:
            shutil.rmtree(old)
    return programs


def _shared(soname: str) -> list[str]:
    return ["-shared", f"-Wl,-soname,{soname}", "-Wl,--no-undefined", "-lpthread"]


def _key() -> str:
    """What the compiled files are made from: sources, flags and compilers."""
    digest = hashlib.sha256(repr(C_FLAGS).encode())
    digest.update(run(["gcc", "--version"]).encode())
    digest.update(run(["go", "version"]).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in {".c", ".h", ".go", ".mod", ".sum"}:
            digest.update(f"{path.relative_to(SOURCES)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _libc_of(root: Path) -> tuple[int, int]:
    """Version of the C library in a Debian root file system."""
    library = root / "usr/lib/x86_64-linux-gnu/libc.so.6"
    try:
        found = re.search(
            rb"GNU C Library \(.*?\) stable release version (\d+)\.(\d+)", library.read_bytes()
        )
    except OSError as error:
        raise LabError(
            f"nvidia: want the guest's root file system in {root}, have {error}; build the image"
        ) from error
    if found is None:
        raise LabError(f"nvidia: want a version in {library}, have none; build the image again")
    return int(found[1]), int(found[2])


def _check_libc(program: Path, libc: tuple[int, int]) -> None:
    """Refuse what was compiled against a newer C library than the guest's."""
    needed = re.findall(r"\bGLIBC_(\d+)\.(\d+)", run(["objdump", "-T", program]))
    newest = max(((int(a), int(b)) for a, b in needed), default=(0, 0))
    if newest > libc:
        raise LabError(
            f"nvidia: want {program.name} to run on glibc {libc[0]}.{libc[1]}, have it need "
            f"{newest[0]}.{newest[1]}; build on a system no newer than the guest's"
        )


def _link(source: Path, target: Path) -> Path:
    """The same file under another name, or a copy where file systems differ."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
