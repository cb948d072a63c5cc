"""The API's Node objects, kept in step with guests that go back in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import control_plane
from lab.paths import STATE

# What somebody decided about the node; the rest is what its kubelet says of it anyway.
KEPT_SPEC = ("podCIDR", "podCIDRs", "providerID", "taints", "unschedulable")
KEPT_METADATA = ("name", "labels", "annotations")


def keep(names: Sequence[str], snapshot: str) -> None:
    """Remember the nodes as they are with the guests' snapshot of this name."""
    answers = control_plane.status()["answers"]
    for name in names:
        path = kept(name, snapshot)
        path.unlink(missing_ok=True)
        if not answers:
            continue
        text = control_plane.kubectl("get", "node", name, "--ignore-not-found", "--output=json")
        if text.strip():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(reduced(json.loads(text)), indent=1) + "\n")


def revert(names: Sequence[str], snapshot: str) -> None:
    """Delete the nodes and their pods; make them again as they were with the snapshot."""
    if not control_plane.status()["answers"]:
        return
    control_plane.forget(names)
    for name in names:
        path = kept(name, snapshot)
        if path.is_file():
            control_plane.kubectl("create", "--filename=-", stdin=path.read_text())


def kept(name: str, snapshot: str) -> Path:
    return STATE / "nodes" / name / "objects" / f"{snapshot}.json"


def reduced(node: dict[str, Any]) -> dict[str, Any]:
    """A Node that can be created again."""
    metadata, spec = node["metadata"], node.get("spec", {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {key: metadata[key] for key in KEPT_METADATA if key in metadata},
        "spec": {key: spec[key] for key in KEPT_SPEC if key in spec},
    }
