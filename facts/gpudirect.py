"""How HCAs can reach GPU memory on a host: a pure function of what was read and asked."""

from __future__ import annotations

import re
from typing import Literal

Mode = Literal["dmabuf", "peermem", "none"]

# Source: NVIDIA/cloud-native-docs gpu-operator/gpu-operator-rdma.rst at 52dcb7b8, "Prerequisites":
# DMA-BUF needs the open kernel modules and Linux 5.12; nvidia-peermem needs the peer-memory API.
DMABUF_KERNEL = (5, 12)


def kernel_version(release: str) -> tuple[int, int]:
    """``(6, 12)`` of ``6.12.57+deb13-amd64``; ``(0, 0)`` of what is no version."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def mode(asked: str, *, kernel: str, open_module: bool, peer_memory: bool) -> Mode | None:
    """
    The way to GPU memory, ``None`` if what is asked cannot be had.

    + asked: ``auto``, ``dmabuf``, ``peermem`` or ``none``
    + kernel: release, as in ``6.12.57+deb13-amd64``
    + open_module: whether the GPUs run the open kernel module
    + peer_memory: whether the kernel offers ``ib_register_peer_memory_client``
    """
    dmabuf = open_module and kernel_version(kernel) >= DMABUF_KERNEL
    if asked == "none":
        return "none"
    if asked in ("auto", "dmabuf") and dmabuf:
        return "dmabuf"
    if asked in ("auto", "peermem") and peer_memory:
        return "peermem"
    return None
