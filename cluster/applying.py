"""Server-side apply: say what is ours of an object, and nothing of the rest."""

from __future__ import annotations

from typing import Any, Final

from cluster.api import APPLY_PATCH, Api, Json
from cluster.errors import ClusterError, Conflict
from cluster.names import FIELD_MANAGER, MANAGED_BY

# Plural and whether it lives in a namespace, of the kinds that we apply.
KINDS: Final = {
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("v1", "Pod"): ("pods", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
}


def path_of(manifest: Json) -> str:
    version, kind = manifest["apiVersion"], manifest["kind"]
    try:
        plural, namespaced = KINDS[version, kind]
    except KeyError:
        raise ClusterError(
            f"apply: want one of {sorted(KINDS)}, have {version} {kind}; report it as a bug"
        ) from None
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    meta = manifest["metadata"]
    space = f"/namespaces/{meta['namespace']}" if namespaced else ""
    return f"{root}{space}/{plural}/{meta['name']}"


def describe(manifest: Json) -> str:
    meta = manifest["metadata"]
    space = f"{meta['namespace']}/" if "namespace" in meta else ""
    return f"{manifest['kind']} {space}{meta['name']}"


def apply(api: Api, manifest: Json) -> bool:
    before = api.find(path_of(manifest))
    after = _patch(api, manifest, before, dry_run=False)
    # The server does not write an apply that changes nothing, so the version stays.
    return before is None or _version(before) != _version(after)


def differs(api: Api, manifest: Json) -> bool:
    before = api.find(path_of(manifest))
    if before is None:
        return True
    return _wanted(before) != _wanted(_patch(api, manifest, before, dry_run=True))


def _patch(api: Api, manifest: Json, before: Json | None, *, dry_run: bool) -> Json:
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    if dry_run:
        query["dryRun"] = "All"
    try:
        return api.patch(path_of(manifest), manifest, APPLY_PATCH, **query)
    except Conflict as conflict:
        # Somebody edited what is ours (kubectl edit, a cluster's garbage of an earlier field
        # manager): take it back. What is not ours is not taken from anybody.
        if before is None or not _ours(before):
            raise ClusterError(
                f"{describe(manifest)}: want to manage it, have another owner ({conflict}); "
                "remove that object, or give ours another namespace"
            ) from conflict
        return api.patch(path_of(manifest), manifest, APPLY_PATCH, force="true", **query)


def _ours(live: Json) -> bool:
    labels: dict[str, str] = live["metadata"].get("labels", {})
    return MANAGED_BY.items() <= labels.items()


def _version(live: Json) -> str:
    return str(live["metadata"]["resourceVersion"])


def _wanted(live: Json) -> dict[str, Any]:
    """The object without what the server counts and times itself."""
    meta = {
        key: value
        for key, value in live["metadata"].items()
        if key not in {"managedFields", "resourceVersion", "generation"}
    }
    return {**{key: value for key, value in live.items() if key != "status"}, "metadata": meta}
