"""What we may do in the cluster, and need to: the same list as docs/rbac.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cluster.api import Api
from cluster.names import NAMESPACE

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    verb: str
    resource: str
    """Plural, with the subresource after a slash, as in ``nodes/status``."""
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        name = f" {self.name}" if self.name else ""
        space = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{space}"


def needed(namespace: str = NAMESPACE) -> list[Right]:
    return [
        Right("get", "nodes"),
        Right("list", "nodes"),
        Right("patch", "nodes"),
        Right("patch", "nodes/status"),
        Right("list", "pods"),
        Right("list", "daemonsets", "apps"),
        Right("list", "clusterpolicies", "nvidia.com"),
        Right("list", "nicclusterpolicies", "mellanox.com"),
        Right("get", "configmaps", namespace="kube-public", name="cluster-info"),
        # Neither get nor list: see tokens.token_id.
        Right("create", "secrets", namespace="kube-system"),
        Right("delete", "secrets", namespace="kube-system"),
        *(Right(verb, "daemonsets", "apps", namespace) for verb in ("get", "create", "patch")),
        *(Right(verb, "pods", "", namespace) for verb in ("get", "create", "delete")),
        Right("get", "pods/log", "", namespace),
        Right("list", "events", "", namespace),
    ]


def missing(api: Api, namespace: str = NAMESPACE) -> list[str]:
    return [str(right) for right in needed(namespace) if not _allowed(api, right)]


def _allowed(api: Api, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    review = api.post(
        REVIEWS,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
        },
    )
    return bool(review.get("status", {}).get("allowed"))
