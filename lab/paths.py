"""Where the lab keeps what it builds and runs: outside the tree, shared by all checkouts."""

from __future__ import annotations

import os
from pathlib import Path

TREE = Path(__file__).resolve().parent
"""The lab's own sources."""

CACHE = Path(os.environ.get("RACKWRIGHT_CACHE") or Path.home() / ".cache/rackwright")
"""Everything below may be deleted; it is then built again."""

BUILD = CACHE / "build"
"""Binaries built from Go modules and C, keyed by what they are made from."""

MIRROR = CACHE / "mirror"
"""Web root of the package mirror: vendors' layouts below ``/cuda``, ``/docker`` and so on."""

MIRROR_FOR_CLIENT = CACHE / "mirror-for-client"
"""Files that only the client of an address gets, in place of the mirror's: a folder per address."""

REGISTRY = CACHE / "registry"
"""Storage of the container registry."""

IMAGE = CACHE / "image"
"""Guest root file system and base disk image."""

STATE = CACHE / "state"
"""Of the running lab: disks, keys, kubeconfig, control-plane data, logs, process ids."""

SSH_KEY = STATE / "ssh/id_ed25519"
KNOWN_HOSTS = STATE / "ssh/known_hosts"
KUBECONFIG_ADMIN = STATE / "control-plane/admin.kubeconfig"
KUBECONFIG_RACKWRIGHT = STATE / "control-plane/rackwright.kubeconfig"
"""Least rights: what the product uses."""

KUBECTL = BUILD / "go/kubernetes/bin/kubectl"
