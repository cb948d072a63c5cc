"""GPU and HCA models as data: what an inventory may name, and what the vendor says about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

NVIDIA = "10de"
MELLANOX = "15b3"
"""PCI vendor ids."""

OPEN_MODULES_DRIVER_MIN = "515.43.04"
"""First release of the open GPU kernel modules.
Source: NVIDIA/open-gpu-kernel-modules, tag 515.43.04 (the repository's first; read 2026-11-30)."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size of MIG device on one GPU model."""

    name: str
    gpu_instance_profile_id: int
    count_max: int
    memory_slices: int
    compute_slices: int
    placements: tuple[int, ...]
    """Memory slices at which a device of this profile may start."""
    driver_min: str | None = None
    """First driver with this profile, where that is later than MIG itself on that GPU."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model. ``mig_profiles`` is empty where the GPU has no MIG."""

    name: str
    pci_device_ids: tuple[str, ...]
    architecture: str
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_memory_slices: int = 0
    mig_compute_slices: int = 0
    mig_balanced: tuple[str, ...] = ()
    """Profiles of the layout ``all-balanced``.
    Source: NVIDIA/mig-parted deployments/systemd/config-default.yaml at bd7160f4 (v0.15.0)."""
    driver_min: str = OPEN_MODULES_DRIVER_MIN
    """First driver that supports the product (with MIG, where it has MIG), open modules or not."""
    open_module_supported: bool = True
    proprietary_module_supported: bool = True

    @property
    def open_driver_min(self) -> str:
        """First driver whose open modules support the product."""
        return max(self.driver_min, OPEN_MODULES_DRIVER_MIN, key=Version)

    @property
    def mig_capable(self) -> bool:
        return bool(self.mig_profiles)

    @property
    def mig_reset_required(self) -> bool:
        """Whether a change of MIG mode needs a GPU reset, which no client of the GPU survives.

        Source: NVIDIA MIG User Guide, "Enable MIG Mode" (read 2026-11-30): Ampere needs a reset and
        keeps the mode over reboots; Hopper and later switch at once and lose it with the driver.
        """
        return self.mig_capable and self.architecture == "Ampere"

    def profile(self, name: str) -> MigProfile | None:
        return next((profile for profile in self.mig_profiles if profile.name == name), None)


@dataclass(frozen=True, slots=True)
class HcaModel:
    """A host channel adapter model."""

    name: str
    pci_device_ids: tuple[str, ...]
    """Of its physical functions; virtual functions have ids of their own."""
    rate_gbps_max: int
    """Of one port."""


# Source: NVIDIA MIG User Guide, "Supported MIG Profiles" (read 2026-11-30): profile ids, counts and
# placements, which all GPUs of seven compute slices share; for H200 and Blackwell the placements
# are taken to be those of H100. Memory is counted in eighths.
def _seven_slices(
    one: str, two: str, four: str, eight: str, *, two_driver_min: str | None = None
) -> tuple[MigProfile, ...]:
    """Profiles of a GPU by the memory of one, two, four and eight eighths in their names."""
    return (
        MigProfile(f"7g.{eight}", 0, 1, 8, 7, (0,)),
        MigProfile(f"4g.{four}", 5, 1, 4, 4, (0,)),
        MigProfile(f"3g.{four}", 9, 2, 4, 3, (0, 4)),
        MigProfile(f"2g.{two}", 14, 3, 2, 2, (0, 2, 4)),
        MigProfile(f"1g.{two}", 15, 4, 2, 1, (0, 2, 4, 6), two_driver_min),
        MigProfile(f"1g.{one}", 19, 7, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfile(f"1g.{one}+me", 20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    )


# Source: NVIDIA MIG User Guide, "A30 MIG Profiles" (read 2026-11-30). Memory in quarters.
_A30 = (
    MigProfile("4g.24gb", 0, 1, 4, 4, (0,)),
    MigProfile("2g.12gb", 5, 2, 2, 2, (0, 2)),
    MigProfile("2g.12gb+me", 6, 1, 2, 2, (0, 2), "525.60.13"),
    MigProfile("1g.6gb", 14, 4, 1, 1, (0, 1, 2, 3)),
    MigProfile("1g.6gb+me", 21, 1, 1, 1, (0, 1, 2, 3)),
)

# Source: NVIDIA MIG User Guide, "RTX PRO 6000 Blackwell MIG Profiles" (read 2026-11-30), without
# the graphics profiles. Memory in twelfths.
_RTX_PRO_6000 = (
    MigProfile("4g.96gb", 0, 1, 12, 4, (0,)),
    MigProfile("2g.48gb", 5, 2, 6, 2, (0, 6)),
    MigProfile("1g.24gb", 14, 4, 3, 1, (0, 3, 6, 9)),
    MigProfile("1g.24gb+me", 21, 1, 3, 1, (0, 3, 6, 9)),
)

# Source: NVIDIA MIG User Guide, "A100 MIG Profiles" (read 2026-11-30): 1g with double memory
# came with R525.
_FIRST_R525 = "525.60.13"


def _seven(
    name: str,
    pci_device_ids: tuple[str, ...],
    architecture: str,
    memory: tuple[str, str, str, str],
    driver_min: str,
    *,
    proprietary: bool = True,
    two_driver_min: str | None = None,
) -> GpuModel:
    one, two, four, _ = memory
    return GpuModel(
        name=name,
        pci_device_ids=pci_device_ids,
        architecture=architecture,
        mig_profiles=_seven_slices(*memory, two_driver_min=two_driver_min),
        mig_memory_slices=8,
        mig_compute_slices=7,
        mig_balanced=(f"3g.{four}", f"2g.{two}", f"1g.{one}", f"1g.{one}"),
        driver_min=driver_min,
        proprietary_module_supported=proprietary,
    )


_40GB = ("5gb", "10gb", "20gb", "40gb")
_80GB = ("10gb", "20gb", "40gb", "80gb")
_94GB = ("12gb", "24gb", "47gb", "94gb")
_96GB = ("12gb", "24gb", "48gb", "96gb")
_141GB = ("18gb", "35gb", "71gb", "141gb")
_180GB = ("23gb", "45gb", "90gb", "180gb")
_269GB = ("34gb", "67gb", "135gb", "269gb")

# Source for the ids: pciutils/pciids pci.ids at c1c1254 and the table of supported GPUs in
# NVIDIA/open-gpu-kernel-modules README.md at df1c9a3d (595.45.04), which also says which GPUs the
# open modules drive. Source for the drivers: NVIDIA MIG User Guide 620, "Deployment
# Considerations". The open modules are required from Blackwell on: NVIDIA Driver Installation
# Guide release 620, "Kernel Modules" (read 2026-11-30).
GPUS: tuple[GpuModel, ...] = (
    _seven("A100-SXM4-40GB", ("20b0",), "Ampere", _40GB, "450.80.02", two_driver_min=_FIRST_R525),
    _seven(
        "A100-PCIe-40GB",
        ("20b1", "20f1"),
        "Ampere",
        _40GB,
        "450.80.02",
        two_driver_min=_FIRST_R525,
    ),
    _seven("A100-SXM4-80GB", ("20b2",), "Ampere", _80GB, "450.80.02", two_driver_min=_FIRST_R525),
    _seven("A100-PCIe-80GB", ("20b5",), "Ampere", _80GB, "450.80.02", two_driver_min=_FIRST_R525),
    GpuModel(
        name="A30",
        pci_device_ids=("20b7",),
        architecture="Ampere",
        mig_profiles=_A30,
        mig_memory_slices=4,
        mig_compute_slices=4,
        mig_balanced=("2g.12gb", "1g.6gb", "1g.6gb"),
        driver_min="460.73.01",
    ),
    GpuModel("A10", ("2236",), "Ampere"),
    GpuModel("A40", ("2235",), "Ampere"),
    GpuModel(
        "V100",
        ("1db1", "1db4", "1db5", "1db6", "1db8", "1df6"),
        "Volta",
        open_module_supported=False,
    ),
    GpuModel("T4", ("1eb8",), "Turing"),
    GpuModel("L4", ("27b8",), "Ada"),
    GpuModel("L40", ("26b5",), "Ada"),
    GpuModel("L40S", ("26b9",), "Ada"),
    _seven("H100-SXM5-80GB", ("2330",), "Hopper", _80GB, "525.85.12"),
    _seven("H100-PCIe", ("2331",), "Hopper", _80GB, "525.85.12"),
    _seven("H100-NVL", ("2321",), "Hopper", _94GB, "525.85.12"),
    _seven("H20", ("2329",), "Hopper", _96GB, "535.161.07"),
    _seven("H200-SXM", ("2335",), "Hopper", _141GB, "550.90.07"),
    _seven("H200-NVL", ("233b",), "Hopper", _141GB, "550.90.07"),
    _seven("B200", ("2901",), "Blackwell", _180GB, "570.133.20", proprietary=False),
    _seven("B300", ("3182",), "Blackwell", _269GB, "580.82.07", proprietary=False),
    GpuModel(
        name="RTX-PRO-6000",
        pci_device_ids=("2bb5",),
        architecture="Blackwell",
        mig_profiles=_RTX_PRO_6000,
        mig_memory_slices=12,
        mig_compute_slices=4,
        mig_balanced=("2g.48gb", "1g.24gb", "1g.24gb"),
        driver_min="575.51.03",
        proprietary_module_supported=False,
    ),
)

# Source for the ids: pciutils/pciids pci.ids at c1c1254, vendor 15b3 (physical functions only).
# Rates: NVIDIA's product names (EDR 100, HDR 200, NDR 400, XDR 800).
HCAS: tuple[HcaModel, ...] = (
    HcaModel("ConnectX-5", ("1017", "1019"), 100),
    HcaModel("ConnectX-6", ("101b",), 200),
    HcaModel("ConnectX-6-Dx", ("101d",), 200),
    HcaModel("ConnectX-7", ("1021",), 400),
    HcaModel("ConnectX-8", ("1023",), 800),
    HcaModel("BlueField-2", ("a2d6",), 200),
    HcaModel("BlueField-3", ("a2dc",), 400),
)

_GPUS = {model.name: model for model in GPUS}
_HCAS = {model.name: model for model in HCAS}


def gpu(name: str) -> GpuModel:
    """Return the GPU model *name*. Raises ``KeyError`` for one the catalogue does not have."""
    return _GPUS[name]


def hca(name: str) -> HcaModel:
    """Return the HCA model *name*. Raises ``KeyError`` for one the catalogue does not have."""
    return _HCAS[name]


def gpu_of(pci_device_id: str) -> GpuModel | None:
    """Return the model of a PCI device of NVIDIA, or None if the catalogue does not know it."""
    return next((model for model in GPUS if pci_device_id.lower() in model.pci_device_ids), None)


def hca_of(pci_device_id: str) -> HcaModel | None:
    """Return the model of a PCI device of Mellanox, or None if the catalogue does not know it."""
    return next((model for model in HCAS if pci_device_id.lower() in model.pci_device_ids), None)


def names(models: Iterable[GpuModel] | Iterable[HcaModel]) -> str:
    return ", ".join(model.name for model in models)
