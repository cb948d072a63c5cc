"""The images of the lab's registry, and what each is made of."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.command import run
from lab.errors import LabError
from lab.mirror import go
from lab.mirror.locking import locked
from lab.paths import BUILD, TREE
from lab.registry import debian, oci
from lab.registry.oci import File, Folder, Image, Layer, Link

PAUSE = "pause:3.10.2"
DEVICE_PLUGIN = "nvidia/k8s-device-plugin:v0.20.0"
RDMA_PLUGIN = f"mellanox/k8s-rdma-shared-dev-plugin:v{go.SETS['rdma-plugin'].version}"
CNI = "rackwright-lab/cni:1"
PROBE = "rackwright-lab/probe:1"

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIMULATED = {"org.opencontainers.image.description": "simulated stand-in, for the lab only"}

SOURCES = Path(__file__).resolve().parent

# Of the C library's package, what a dynamically linked program needs to start.
LIBC_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "libnss_files.so.2",
    "libnss_dns.so.2",
    "libresolv.so.2",
)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Recipe:
    inputs: Callable[[], Iterable[Path]]
    """Files that the image depends on, besides this module: its key."""
    make: Callable[[], Image]


def below(folder: Path) -> list[Path]:
    """A program's sources."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in (".go", ".c", ".mod", ".sum") and not path.name.endswith("_test.go")
    )


def pause() -> Image:
    program = compiled(
        "pause",
        below(SOURCES / "pause"),
        ["gcc", "-Os", "-static", "-s", "-o", "{output}", str(SOURCES / "pause/pause.c")],
    )
    return Image(PAUSE, [{"/pause": File(program, 0o755)}], entrypoint=["/pause"])


def cni() -> Image:
    layer = {"/lab-cni": File(go_program(SOURCES / "cni", cgo=False), 0o755)}
    return Image(CNI, [layer], entrypoint=["/lab-cni"])


def device_plugin() -> Image:
    program = File(go_program(TREE / "device_plugin", cgo=True), 0o755)
    return Image(
        DEVICE_PLUGIN,
        [system(), {"/usr/bin/nvidia-device-plugin": program}],
        entrypoint=["nvidia-device-plugin"],
        # Source: NVIDIA/k8s-device-plugin, deployments/container/Dockerfile (read 2026-11-30). They
        # make the nvidia runtime put the driver's libraries into the container.
        env={
            "PATH": PATH,
            "NVIDIA_DISABLE_REQUIRE": "true",
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        labels=SIMULATED,
    )


def rdma_plugin() -> Image:
    """The real program; upstream's image is Alpine with the list of PCI names."""
    program = go.build("rdma-plugin")["k8s-rdma-shared-dp"]
    names = dict(debian.files(debian.packages("pci.ids")["pci.ids"]))["/usr/share/misc/pci.ids"]
    return Image(
        RDMA_PLUGIN,
        [
            {
                "/bin/k8s-rdma-shared-dp": File(program.read_bytes(), 0o755),
                "/usr/share/hwdata/pci.ids": names,
            }
        ],
        # Source: Mellanox/k8s-rdma-shared-dev-plugin, Dockerfile (read 2026-11-30): a command, not
        # an entrypoint.
        command=["/bin/k8s-rdma-shared-dp"],
        env={"PATH": PATH},
    )


def probe() -> Image:
    """A shell to look around with, in which injected programs of the host run."""
    return Image(PROBE, [system()], command=["sh"], env={"PATH": PATH})


def system() -> Layer:
    """A C library and a shell with the usual tools. One layer: nodes pull it once."""
    chosen = debian.packages("libc6", "busybox-static")
    libc = dict(debian.files(chosen["libc6"]))
    layer: dict[str, File | Link | Folder] = {
        f"{LIBRARIES}/{name}": libc[f"{LIBRARIES}/{name}"] for name in LIBC_LIBRARIES
    }
    layer["/usr/lib64/ld-linux-x86-64.so.2"] = Link(f"..{LIBRARIES[4:]}/ld-linux-x86-64.so.2")
    layer |= {f"/{name}": Link(f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")}
    layer |= {f"/{name}": Folder() for name in ("dev", "proc", "sys", "run", "root", "var")}
    layer |= {"/tmp": Folder(0o1777), "/usr/sbin": Folder()}
    layer |= {
        "/etc/passwd": File(b"root:x:0:0:root:/root:/bin/sh\n"),
        "/etc/group": File(b"root:x:0:\n"),
        "/etc/ld.so.conf": File(b"include /etc/ld.so.conf.d/*.conf\n"),
        "/etc/ld.so.conf.d": Folder(),
    }
    busybox = dict(debian.files(chosen["busybox-static"]))
    program = next(
        entry
        for path, entry in busybox.items()
        if path.endswith("bin/busybox") and isinstance(entry, File)
    )
    layer["/usr/bin/busybox"] = program
    layer |= {f"/usr/bin/{applet}": Link("busybox") for applet in applets(program)}
    return layer


def applets(busybox: File) -> list[str]:
    with locked(BUILD / "images/busybox.lock"):
        program = BUILD / "images/busybox"
        program.write_bytes(busybox.content)
        program.chmod(0o755)
        listed = run([program, "--list"]).split()
    return [name for name in listed if name != "busybox"]


def go_program(folder: Path, *, cgo: bool) -> bytes:
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", "-s -w"]
    argv = [go.go(), "-C", str(folder), "build", *flags, "-o", "{output}", "."]
    env = {"CGO_ENABLED": "1" if cgo else "0", "GOFLAGS": "", "GOWORK": "off", "GOOS": "linux"}
    return compiled(folder.name, below(folder), argv, env | {"GOARCH": "amd64"})


def compiled(
    name: str, sources: list[Path], argv: list[str], env: dict[str, str] | None = None
) -> bytes:
    """The program, built if its sources or the command have changed."""
    key = hashlib.sha256(repr((argv, env)).encode())
    for path in sources:
        key.update(path.read_bytes())
    output = BUILD / "images/programs" / f"{name}-{key.hexdigest()[:12]}"
    with locked(output.with_name(f"{name}.lock")):
        if not output.is_file():
            scratch = output.with_name(f"{output.name}.new")
            done = subprocess.run(
                [scratch if word == "{output}" else word for word in argv],
                env=os.environ | (env or {}),
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise LabError(
                    f"{name}: want it built, have exit code {done.returncode} from {argv[0]}; "
                    f"see its output:\n{done.stderr[-2000:]}"
                )
            scratch.rename(output)
    return output.read_bytes()


def rdma_sources() -> list[Path]:
    folder = go.SOURCES / "rdma-plugin"
    return [folder / "go.mod", folder / "go.sum"]


def no_more() -> list[Path]:
    return []


RECIPES: dict[str, Recipe] = {
    PAUSE: Recipe(lambda: below(SOURCES / "pause"), pause),
    CNI: Recipe(lambda: below(SOURCES / "cni"), cni),
    PROBE: Recipe(no_more, probe),
    DEVICE_PLUGIN: Recipe(lambda: below(TREE / "device_plugin"), device_plugin),
    RDMA_PLUGIN: Recipe(rdma_sources, rdma_plugin),
}


def key(name: str) -> str:
    digest = hashlib.sha256()
    modules = [SOURCES / module for module in ("images.py", "oci.py", "debian.py")]
    for path in [*modules, *RECIPES[name].inputs()]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def layout(name: str) -> Path:
    """Where the image is kept, as an OCI layout, if it has been built."""
    return BUILD / "images" / name.replace("/", "_").replace(":", "_") / key(name)


def build(name: str) -> Path:
    """The image's layout, made if the cache has none for its inputs."""
    folder = layout(name)
    with locked(folder.with_name("lock")):
        if not folder.is_dir():
            oci.write(RECIPES[name].make(), folder)
    return folder
