"""The hardware is what the inventory expects, and in order."""

from __future__ import annotations

from collections.abc import Iterator

from claims.finding import Finding
from cluster import NodeState
from facts.pci import PciDevice, PciDevices
from facts.snapshot import Readings
from facts.xid import Xids
from nodespec import NodeSpec, catalogue

# Xids after which a GPU does no more work until it is reset or replaced.
# Source: NVIDIA "XID Errors" r580, "Xid Error Listing" (read 2026-11-30): 48 double-bit ECC,
# 74 NVLink, 79 off the bus, 95 uncontained ECC, 119 and 120 GSP.
FATAL_XIDS = {48, 74, 79, 95, 119, 120}


def gpus(devices: tuple[PciDevice, ...], spec: NodeSpec) -> list[PciDevice]:
    """GPUs of the declared model."""
    if spec.gpu_model is None:
        return []
    ids = catalogue.gpu(spec.gpu_model).pci_device_ids
    return [device for device in devices if device.is_gpu and device.device in ids]


def hcas(devices: tuple[PciDevice, ...], spec: NodeSpec) -> list[PciDevice]:
    """HCAs of the declared model: a host may have others, for storage or management."""
    if spec.hca_model is None:
        return []
    ids = catalogue.hca(spec.hca_model).pci_device_ids
    return [device for device in devices if device.is_hca and device.device in ids]


def gpus_present(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    devices = have.of(PciDevices)
    every = [device for device in devices if device.is_gpu]
    right = gpus(devices, spec)
    others = [device for device in every if device not in right]
    if len(right) != spec.gpu_count or others:
        models = ", ".join(sorted({model_name(device) for device in others}))
        yield Finding(
            "hardware",
            f"{spec.gpu_count} GPUs" + (f" of {spec.gpu_model}" if spec.gpu_model else ""),
            f"{len(right)}" + (f" and {len(others)} of {models}" if others else ""),
            "look for the GPU with lspci and in the BMC's log, or correct gpu_count and gpu_model",
        )


def model_name(device: PciDevice) -> str:
    model = catalogue.gpu_of(device.device)
    return model.name if model else f"{device.vendor}:{device.device}"


def hcas_present(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    right = hcas(have.of(PciDevices), spec)
    if len(right) != spec.hca_count:
        yield Finding(
            "hardware", f"{spec.hca_count} HCAs of {spec.hca_model}", str(len(right)),
            "look for the adapter with lspci and in the BMC's log, or correct hca_count",
        )  # fmt: skip


def slips(devices: tuple[PciDevice, ...], spec: NodeSpec) -> set[str]:
    """
    Names of the claims above against which it is the inventory's word that is doubtful: no card is
    missing, there are more than declared or others in their place.
    """
    every_gpu = [device for device in devices if device.is_gpu]
    every_hca = [device for device in devices if device.is_hca]
    right = hcas(devices, spec)
    found = set()
    if len(every_gpu) >= spec.gpu_count:
        found.add("gpus_present")
    # A host may have others besides, for storage: they stand for none that is missing.
    if len(right) > spec.hca_count or (not right and len(every_hca) >= spec.hca_count):
        found.add("hcas_present")
    return found


def links_at_full_width(
    have: Readings, node: NodeState | None, spec: NodeSpec
) -> Iterator[Finding]:
    """Speed drops when a GPU rests; width does not, unless a lane is broken."""
    devices = have.of(PciDevices)
    for device in [*gpus(devices, spec), *hcas(devices, spec)]:
        if device.link_width is None or device.link_width_max is None:
            continue  # a device behind a virtual bridge has no link
        if device.link_width < device.link_width_max:
            yield Finding(
                "hardware", f"{device.address} at x{device.link_width_max}",
                f"x{device.link_width}", "reseat the card, or have the slot repaired",
            )  # fmt: skip


def no_fatal_xid(have: Readings, node: NodeState | None, spec: NodeSpec) -> Iterator[Finding]:
    """By the log that there is: that its beginning is gone is nothing against a host."""
    for xid in have.of(Xids).errors:
        if xid.number in FATAL_XIDS:
            yield Finding(
                "hardware", f"no fatal Xid of GPU {xid.pci_address} since the boot",
                f"Xid {xid.number}: {xid.text}",
                "reboot the host; if it comes again, have the GPU replaced",
            )  # fmt: skip
