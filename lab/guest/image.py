"""The guests' disk image: Debian with GRUB, the simulated hardware, no vendor's software.

It is made without loop devices and without booting anything, in two stages: the packages (minutes,
changes seldom) and the lab's own files on top (seconds). Each is kept under a hash of what it is
made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jinja2
from rich.console import Console

from lab import simhw
from lab.command import run
from lab.description import Description
from lab.errors import LabError
from lab.paths import IMAGE, TREE
from lab.progress import step

SUITE = "trixie"
DISK_SIZE_MIB = 16 * 1024
PARTITION_START_SECTOR = 2048
SECTOR_BYTES = 512
BLOCK_BYTES = 4096

PACKAGES = (
    # The generic flavour: the `cloud` one has no RDMA drivers.
    "linux-image-amd64",
    "linux-headers-amd64",
    "grub-pc",
    "initramfs-tools",
    "lz4",
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "e2fsprogs",
    "procps",
    "less",
    "netbase",
    "openssh-server",
    "sudo",
    "iproute2",
    "iputils-ping",
    "curl",
    "ca-certificates",
    "pciutils",
    # What a driver package needs to build its modules; installing it in a guest takes minutes.
    "dkms",
    "gcc",
    "make",
    # Stand-ins for vendors' tools are written in it.
    "python3",
)

# Half of the files of a small Debian, and nobody reads them in the lab.
# Kernel modules of hardware that no guest has: every DKMS build runs depmod over what is left, and
# under emulation that took longer than compiling the driver (6.2 s of native CPU for Debian's 4200
# modules, 1.6 s for the 1500 that stay: nouveau, RDMA, virtio and the file systems among them).
KERNEL = "/usr/lib/modules/*/kernel"
NO_HARDWARE = (
    "sound",
    *(
        f"drivers/{name}"
        for name in (
            "bluetooth", "comedi", "hid", "hwmon", "iio", "input", "isdn", "media", "mtd",
            "net/wireless", "platform", "scsi", "staging", "usb",
        )
    ),
    *(f"drivers/gpu/drm/{name}" for name in ("amd", "i915", "radeon", "xe")),
)  # fmt: skip
LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    *(f"{KERNEL}/{name}/*" for name in NO_HARDWARE),
)

INITRAMFS_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "ext4")

GRUB_MODULES = (
    "biosdisk",
    "part_msdos",
    "ext2",
    "normal",
    "linux",
    "search",
    "search_label",
    "configfile",
    "serial",
)

ENABLED_UNITS = ("systemd-networkd.service", "ssh.service", "rackwright-lab-node.service")

# What costs seconds at every boot, or starts work at a time that no test expects.
MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "grub-common.service",
    "ldconfig.service",
    "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-network-generator.service",
    "systemd-networkd-persistent-storage.service",
    "systemd-networkd-wait-online.service",
    "systemd-pstore.service",
    "systemd-rfkill.socket",
    "systemd-udev-load-credentials.service",
)

PRIVATE_FILES = {"etc/sudoers.d/lab": 0o440}

USER = "lab"
USER_ID = 1000

GUEST_FILES = TREE / "guest/root"


@dataclass(frozen=True, slots=True)
class Image:
    key: str
    """Changes with anything that the image is made from."""

    @property
    def folder(self) -> Path:
        return IMAGE / f"disk-{self.key}"

    @property
    def disk(self) -> Path:
        """Raw and sparse: the guests' overlays lie on it, nothing writes to it."""
        return self.folder / "disk.raw"

    @property
    def kernel(self) -> Path:
        """The guest's kernel on its own, to try whether an accelerator works."""
        return self.folder / "vmlinuz"


def build(description: Description, console: Console) -> Image:
    """The image for this description, made if it is not there."""
    image = Image(key=image_key(description))
    if not image.disk.is_file():
        packages = build_packages(console)
        with step(console, f"disk image {image.key}"):
            build_disk(image, packages, description)
    return image


def image_key(description: Description) -> str:
    inputs = {"packages": packages_key(), "network": description.network.model_dump_json()}
    recipe = Path(__file__)
    for path in sorted([recipe, *files_below(GUEST_FILES), *files_below(simhw.FOLDER)]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        inputs[str(path.relative_to(TREE))] = f"{content} {path.stat().st_mode & 0o111:o}"
    return digest(inputs)


def packages_key() -> str:
    parts = (SUITE, PACKAGES, LEFT_OUT, INITRAMFS_MODULES)
    return digest({str(index): repr(part) for index, part in enumerate(parts)})


def digest(inputs: dict[str, str]) -> str:
    text = "\n".join(f"{name} {value}" for name, value in sorted(inputs.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def files_below(folder: Path) -> list[Path]:
    """Those that can make a difference to the image."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    ]


def debian_mirror() -> str:
    """The mirror that the lab host itself installs from; nothing of it stays in the image."""
    if chosen := os.environ.get("LAB_DEBIAN_MIRROR"):
        return chosen
    lines = run(
        [
            "apt-get", "indextargets",
            "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI) $(CODENAME)",
            "Created-By: Packages",
        ]
    ).splitlines()  # fmt: skip
    for line in lines:
        origin, component, uri, codename = line.split()
        # Updates and security have suites of their own, with a hyphen in the name.
        if (origin, component) == ("Debian", "main") and "-" not in codename:
            return uri
    raise LabError(
        "image: want a Debian mirror, have none in the host's apt sources; "
        "run apt-get update, or set LAB_DEBIAN_MIRROR"
    )


def build_packages(console: Console) -> Path:
    """A tar file of a Debian with the packages and nothing of the lab's own."""
    tar = IMAGE / f"packages-{packages_key()}.tar"
    if tar.is_file():
        return tar
    IMAGE.mkdir(parents=True, exist_ok=True)
    scratch = tar.with_suffix(".new.tar")
    hook = (
        'mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"; '
        # The list, not what the host that builds the image happens to have.
        'printf "MODULES=list\\nCOMPRESS=lz4\\n" > "$1/etc/initramfs-tools/conf.d/rackwright-lab"; '
        f'printf "%s\\n" {" ".join(INITRAMFS_MODULES)} '
        '> "$1/usr/share/initramfs-tools/modules.d/rackwright-lab.conf"; '
        # The disk that GRUB goes to does not exist yet.
        'echo "grub-pc grub-pc/install_devices_empty boolean true" '
        '| chroot "$1" debconf-set-selections'
    )
    with step(console, f"Debian {SUITE} and {len(PACKAGES)} packages"):
        run(
            [
                "mmdebstrap",
                "--mode=root",
                "--variant=minbase",
                "--components=main",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
                f"--essential-hook={hook}",
                f"--include={','.join(PACKAGES)}",
                SUITE,
                scratch,
                debian_mirror(),
            ],
            timeout_s=1800,
        )
        scratch.rename(tar)
    return tar


def build_disk(image: Image, packages: Path, description: Description) -> None:
    with TemporaryDirectory(dir=IMAGE, prefix="new-") as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        run(["tar", "-C", root, "--numeric-owner", "-xpf", packages], timeout_s=600)
        kernel = only_kernel(root)
        add_lab_files(root, description)
        add_user(root)
        set_units(root)
        simhw.install(root, kernel)
        add_grub(root)
        forget_the_build(root)
        folder = Path(scratch, "disk")
        folder.mkdir()
        write_disk(root, folder / "disk.raw")
        shutil.copyfile(root / f"boot/vmlinuz-{kernel}", folder / "vmlinuz")
        shutil.rmtree(image.folder, ignore_errors=True)  # what an interrupted build left
        folder.rename(image.folder)


def only_kernel(root: Path) -> str:
    kernels = [path.name for path in (root / "lib/modules").iterdir()]
    if len(kernels) != 1:
        raise LabError(
            f"image: want one kernel in {root}, have {kernels or 'none'}; "
            f"delete {IMAGE}/packages-*.tar and build again"
        )
    return kernels[0]


def chroot(root: Path, *argv: str, timeout_s: float = 300.0) -> str:
    """Run a program of the guest at the host's speed."""
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    return run(["/usr/sbin/chroot", root, *argv], timeout_s=timeout_s, env=environment)


def add_lab_files(root: Path, description: Description) -> None:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    for source in files_below(GUEST_FILES):
        name = str(source.relative_to(GUEST_FILES))
        target = root / name.removesuffix(".j2")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # it may be a link, /etc/resolv.conf say
        text = source.read_text()
        if source.suffix == ".j2":
            text = environment.from_string(text).render(network=description.network)
        target.write_text(text)
        executable = bool(source.stat().st_mode & 0o100)
        target.chmod(PRIVATE_FILES.get(name, 0o755 if executable else 0o644))


def add_user(root: Path) -> None:
    chroot(root, "useradd", "--create-home", "--uid", str(USER_ID), "--shell", "/bin/bash", USER)


def set_units(root: Path) -> None:
    chroot(root, "systemctl", "enable", *ENABLED_UNITS)
    chroot(root, "systemctl", "mask", *MASKED_UNITS)
    chroot(root, "systemctl", "set-default", "multi-user.target")


def add_grub(root: Path) -> None:
    """GRUB's own files; ``grub-install`` would want the disk."""
    folder = root / "boot/grub/i386-pc"
    shutil.copytree(root / "usr/lib/grub/i386-pc", folder, dirs_exist_ok=True)
    chroot(
        root,
        "grub-mkimage",
        "--format=i386-pc",
        # The prefix is baked in: GRUB finds its configuration there.
        "--prefix=(hd0,msdos1)/boot/grub",
        "--output=/boot/grub/i386-pc/core.img",
        *GRUB_MODULES,
    )


def forget_the_build(root: Path) -> None:
    """Leave neither the lab host's names nor anything that each guest must have for itself."""
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for path in (root / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    for folder in ("var/lib/apt/lists", "var/cache/apt", "var/log", "tmp", "var/tmp"):
        for path in (root / folder).iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / "var/lib/apt/lists/partial").mkdir()
    # Empty, not missing: the guest makes one, and systemd does not take it for a first boot.
    (root / "etc/machine-id").write_text("")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    (root / "etc/hostname").write_text("lab\n")
    for stamp in ("etc/.updated", "var/.updated"):
        (root / stamp).touch()


def write_disk(root: Path, disk: Path) -> None:
    """One MBR partition with GRUB before it and the root file system in it."""
    sectors = DISK_SIZE_MIB * 1024 * 1024 // SECTOR_BYTES
    with disk.open("wb") as file:
        file.truncate(sectors * SECTOR_BYTES)
    run(["/usr/sbin/sfdisk", "--quiet", disk], stdin=f"{PARTITION_START_SECTOR},,L,*\n")
    offset = PARTITION_START_SECTOR * SECTOR_BYTES
    blocks = (sectors * SECTOR_BYTES - offset) // BLOCK_BYTES
    run(
        [
            "/usr/sbin/mke2fs", "-q", "-t", "ext4", "-L", "root", "-b", str(BLOCK_BYTES),
            "-E", f"offset={offset},lazy_itable_init=1,lazy_journal_init=1",
            "-d", root, disk, str(blocks),
        ],
        timeout_s=600,
    )  # fmt: skip
    boot, core = (root / f"boot/grub/i386-pc/{name}.img" for name in ("boot", "core"))
    room_bytes = (PARTITION_START_SECTOR - 1) * SECTOR_BYTES
    if core.stat().st_size > room_bytes:
        raise LabError(
            f"image: want GRUB's core in {room_bytes} bytes before the partition, "
            f"have {core.stat().st_size}; load fewer modules into it"
        )
    with disk.open("r+b") as file:
        file.write(boot.read_bytes()[:440])  # the rest of the sector is the partition table
        file.seek(SECTOR_BYTES)
        file.write(core.read_bytes())


def forget_others(current: Image) -> None:
    """Delete earlier images; call it when every guest is made from the current one."""
    for folder in IMAGE.glob("disk-*"):
        if folder != current.folder:
            shutil.rmtree(folder)
