"""Simulated GPUs and HCAs in a guest's kernel: the module, and the file that describes them."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

from lab.command import run
from lab.description import Node
from lab.errors import LabError

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER / "src"
FILES = FOLDER / "root"
"""What goes into the guest as it is: unit, blacklist."""

UNIT = "simhw.service"
CHECK = "usr/local/sbin/simhw-check"
BUILD = "usr/src/simhw"


class HardwareError(LabError):
    """The description asks for a device that the module does not have."""


def install(root: Path, kernel: str) -> None:
    """Build the module in a guest's root file system, with the guest's own compiler, and enable it.

    + kernel: the release that ``uname -r`` prints in the guest; its headers must be in the root
    """
    build = root / BUILD
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(SOURCES, build)
    headers = f"/lib/modules/{kernel}/build"
    if not (root / f"usr/src/linux-headers-{kernel}").is_dir():
        raise LabError(
            f"simhw: want headers of {kernel} in {root}, have none; "
            "install linux-headers-amd64 in the image"
        )
    # Debugging information is forty times the module, and type information a slow step.
    chroot(
        root, "make", "-C", headers, f"M=/{BUILD}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules",
        timeout_s=900,
    )  # fmt: skip
    chroot(root, "strip", "--strip-debug", f"/{BUILD}/simhw.ko")
    module = root / f"lib/modules/{kernel}/extra/simhw.ko"
    module.parent.mkdir(exist_ok=True)
    shutil.copyfile(build / "simhw.ko", module)
    shutil.rmtree(build)
    chroot(root, "depmod", kernel)
    for source in sorted(FILES.rglob("*")):
        if source.is_file():
            target = root / source.relative_to(FILES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o644)
    shutil.copyfile(FOLDER / "check.sh", root / CHECK)
    (root / CHECK).chmod(0o755)
    chroot(root, "systemctl", "enable", UNIT)


def chroot(root: Path, *argv: str, timeout_s: float = 300.0) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    run(["/usr/sbin/chroot", root, *argv], timeout_s=timeout_s, env=environment)


def config(node: Node) -> str:
    """The text of ``/etc/simhw.conf``: GPUs first, each device in the order of the description."""
    for kind, models in (
        ("GPU", [gpu.model for gpu in node.gpus]),
        ("HCA", [hca.model for hca in node.hcas]),
    ):
        for model in models:
            if model not in known_models()[kind]:
                raise HardwareError(
                    f"simhw: want {kind} model {model} on {node.name}, have "
                    f"{', '.join(known_models()[kind])}; use one of them, or add it to src/models.c"
                )
    lines = [
        "# Simulated hardware; each line is written to /proc/simhw at boot.",
        f"seed={node.name}",
    ]
    lines += [f"gpu model={gpu.model} numa={gpu.numa}" for gpu in node.gpus]
    lines += [
        f"hca model={hca.model} link_layer={hca.link_layer} rate_gbps={hca.rate_gbps} "
        f"state={hca.state} numa={hca.numa}"
        for hca in node.hcas
    ]
    return "".join(f"{line}\n" for line in lines)


@cache
def known_models() -> dict[str, tuple[str, ...]]:
    """Names by kind, from the module's own table: there is no second list."""
    entries = re.findall(r'^\t(GPU|HCA)\("([^"]+)"', (SOURCES / "models.c").read_text(), re.M)
    return {
        kind: tuple(name for found, name in entries if found == kind) for kind in ("GPU", "HCA")
    }
