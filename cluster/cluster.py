"""A Kubernetes cluster, as the operator's machine sees it with a kubeconfig of least rights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

from cluster import applying, certificates, charge, events, nodes, pods, probing, rights, tokens
from cluster.api import Api, Json
from cluster.errors import ClusterError
from cluster.names import NAMESPACE
from cluster.nodes import NodeState, Taint
from cluster.pods import PodState
from cluster.probing import ProbeResult
from cluster.tokens import JoinToken

TOKEN_TTL_S: Final = 900.0


class Cluster:
    """
    All that is asked of one Kubernetes API. Every method raises :class:`ClusterError` if the answer
    is not known.

    Made by :meth:`connect`; safe to share between threads and greenlets.
    """

    _connected: ClassVar[dict[tuple[Path, str | None], Cluster]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, api: Api) -> None:
        self._api = api

    @classmethod
    def connect(cls, kubeconfig: Path, server: str | None = None) -> Cluster:
        """
        The cluster of *kubeconfig*: one per file and server, shared by all hosts. Sends nothing
        yet.

        + kubeconfig: file of the operator's machine; how to make it is in docs/cluster-access.md
        + server: address to use in place of the one in the file, as in ``https://10.88.0.1:6443``
        """
        key = (kubeconfig.expanduser().absolute(), server)
        with cls._lock:
            if key not in cls._connected:
                cls._connected[key] = cls(Api(key[0], server))
            return cls._connected[key]

    @property
    def server(self) -> str:
        """Address of the API server, as in ``https://10.88.0.1:6443``."""
        return self._api.server

    def reachable(self) -> None:
        """Return if the API server answers and knows us; else raise, with the reason."""
        self._api.get("/version")

    def server_version(self) -> str:
        """Version of the API server, as in ``1.36.3``."""
        version = self._api.get("/version").get("gitVersion")
        if not isinstance(version, str):
            raise ClusterError(
                f"kubernetes api: want a version from {self.server}, have none; "
                "look what answers there: it is no API server"
            )
        return version.removeprefix("v")

    def server_time(self) -> datetime:
        """The API server's clock: certificates and tokens are judged by it."""
        date = self._api.request("GET", "/version").date
        if date is None:
            raise ClusterError(
                f"kubernetes api: want a Date header from {self.server}, have none; "
                "look for a proxy that removes it"
            )
        return date

    def missing_rights(self, namespace: str = NAMESPACE) -> list[str]:
        """What we need and may not do, as in ``create secrets in kube-system``."""
        return rights.missing(self._api, namespace)

    @property
    def ca_pem(self) -> bytes:
        """The cluster's certificate authority, from the kubeconfig."""
        return self._api.ca_pem

    def ca_hash(self) -> str:
        """
        Public-key hash of the cluster's CA for ``kubeadm join``, as in ``sha256:ab12...``.

        Raises if the CA of the kubeconfig is not the one in cluster-info.
        """
        return certificates.pinned_hash(self._api)

    def node(self, name: str) -> NodeState | None:
        """The Node object; ``None``: asked, and there is none."""
        return nodes.find(self._api, name)

    def twin(self, name: str, machine_id: str, system_uuid: str) -> str | None:
        """Another Node with the machine-id or system UUID of the host that is to be *name*."""
        return nodes.twin(self._api, name, machine_id, system_uuid)

    def taint(self, name: str, taint: Taint) -> bool:
        """Put *taint* on the node; true if it was not there."""
        return nodes.taint(self._api, name, taint)

    def untaint(self, name: str, key: str, effect: str) -> bool:
        """Take a taint off the node; true if it was there."""
        return nodes.untaint(self._api, name, key, effect)

    def label(self, name: str, labels: Mapping[str, str | None]) -> bool:
        """Set labels (``None`` removes one) and leave the others; true if any was different."""
        return nodes.label(self._api, name, labels)

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> bool:
        """Set annotations, as :meth:`label` does labels; true if any was different."""
        return nodes.annotate(self._api, name, annotations)

    def set_condition(self, name: str, type: str, status: str, reason: str, message: str) -> bool:
        """
        Set a condition of the node, with the time; true if it says something else than before.

        + type: as in ``RackwrightValidated``
        + status: ``True``, ``False`` or ``Unknown``
        + reason: one word in CamelCase
        """
        return nodes.set_condition(
            self._api, name, type, status=status, reason=reason, message=message
        )

    def join_token(self, node_name: str, ttl_s: float = TOKEN_TTL_S) -> JoinToken:
        """A new token for one node, signed in cluster-info; replaces one left from before."""
        return tokens.mint(self._api, node_name, ttl_s)

    def sweep_tokens(self, node_name: str) -> bool:
        """Delete the token that a killed run left for this node; true if there was one."""
        return tokens.sweep(self._api, node_name)

    def pods_on(self, name: str) -> list[PodState]:
        """All pods bound to the node."""
        return pods.on_node(self._api, name)

    def warning(self, pod: PodState) -> str:
        """The newest warning about a pod, in the kubelet's or scheduler's words; empty if none."""
        return events.warning(self._api, pod.namespace, pod.name)

    def delete_pod(self, pod: PodState, *, gone_within_s: float = 60) -> None:
        """Delete exactly this pod (another of its name is left alone) and wait until it is gone."""
        pods.delete(self._api, pod, gone_within_s)

    def apply(self, manifest: Json) -> bool:
        """Server-side apply; true if that changed the object."""
        return applying.apply(self._api, manifest)

    def differs(self, manifest: Json) -> bool:
        """Whether :meth:`apply` would change anything, asked of the server without changing it."""
        return applying.differs(self._api, manifest)

    def operator_in_charge(self) -> str | None:
        """Another manager of GPUs or RDMA devices in this cluster; ``None`` if there is none."""
        return charge.find(self._api)

    def run_probe(self, manifest: Json, timeout_s: float) -> ProbeResult:
        """Run one pod to its end, read its log, delete it."""
        return self.probes([manifest], timeout_s)[0]

    def probes(self, manifests: Sequence[Json], timeout_s: float) -> list[ProbeResult]:
        """Run pods, all at once, and delete them; results are in the order of *manifests*."""
        return probing.run(self._api, manifests, timeout_s)

    def sweep_probes(
        self, node_name: str, namespace: str = NAMESPACE, older_than_s: float = 600
    ) -> list[str]:
        """Delete probe pods that killed runs left on this node; returns their names."""
        return probing.sweep(self._api, node_name, namespace, older_than_s, self.server_time)
