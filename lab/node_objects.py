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

KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
"""Conditions that the kubelet sets by itself."""


def keep(names: Sequence[str], snapshot: str) -> None:
    """Remember the nodes as they are with the guests' snapshot of this name."""
    answers = control_plane.status()["answers"]
    for name in names:
        path = kept(name, snapshot)
        path.unlink(missing_ok=True)
        if not answers:
            continue
        node = current(name)
        if node is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(remembered(node), indent=1) + "\n")


def revert(names: Sequence[str], snapshot: str) -> None:
    """Bring the nodes back to what they were with the snapshot.

    A Node that is still the same object keeps its pods, which the guest's kubelet runs again after
    it went back. Any other is deleted with its pods, and made again.
    """
    if not control_plane.status()["answers"]:
        return
    for name in names:
        path = kept(name, snapshot)
        if not path.is_file():
            control_plane.forget([name])
            continue
        then = json.loads(path.read_text())
        now = current(name)
        if now is not None and now["metadata"]["uid"] == then["uid"]:
            spec = then["node"]["spec"]
            patch = {key: spec.get(key) for key in ("taints", "unschedulable")}
            control_plane.kubectl(
                "patch", "node", name, "--type=merge", f"--patch={json.dumps({'spec': patch})}"
            )
        else:
            control_plane.forget([name])
            control_plane.kubectl("create", "--filename=-", stdin=json.dumps(then["node"]))
        conditions = {"status": {"conditions": then["conditions"]}}
        control_plane.kubectl(
            "patch", "node", name, "--subresource=status", "--type=strategic",
            f"--patch={json.dumps(conditions)}",
        )  # fmt: skip


def current(name: str) -> dict[str, Any] | None:
    text = control_plane.kubectl("get", "node", name, "--ignore-not-found", "--output=json")
    node: dict[str, Any] | None = json.loads(text) if text.strip() else None
    return node


def remembered(node: dict[str, Any]) -> dict[str, Any]:
    """What it takes to bring a Node back: identity, object, and what others say of its state."""
    return {
        "uid": node["metadata"]["uid"],
        "node": reduced(node),
        "conditions": [
            condition
            for condition in node.get("status", {}).get("conditions", [])
            if condition["type"] not in KUBELETS
        ],
    }


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
