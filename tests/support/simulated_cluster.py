"""A small cluster with state, and what its kubelets do on simulated hosts.

It stands where ``cluster.Cluster`` does, answers in the same types, and judges as a real one
would: a token that was deleted joins nobody, a Node object that is there already gets no taints
from its kubelet, a DaemonSet has a pod where its label is. The counter of its hosts,
``SimulatedHost.cut_after``, counts its changes too: after that many the operator's process is
dead, and nothing that it would still have tidied up happens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import yaml

from cluster import (
    CLOSED_TAINT,
    NODE_LABEL,
    PROBE_LABEL,
    ClusterError,
    Condition,
    NodeState,
    NotFound,
    PodState,
    ProbeResult,
    Taint,
)
from facts.kubernetes import BOOTSTRAP_CONF
from operations.kubeadm import JOIN_FILE
from tests.support.simulated_node import Moments, SimulatedHost

VERSION = "1.36.3"
CA = "-----BEGIN CERTIFICATE-----\nT3Vycw==\n-----END CERTIFICATE-----\n"
CA_HASH = "sha256:" + "ab" * 32
EMPTY = NodeState(
    name="", uid="", ready=False, ready_reason="NeverReported", ready_message="no word yet",
    unschedulable=False, taints=(), labels={}, annotations={}, allocatable={}, capacity={},
    conditions={}, kubelet_version="", container_runtime_version="", kernel_version="",
    machine_id="", system_uuid="", boot_id="", pod_cidr="", addresses=(),
)  # fmt: skip
CNI_MISSING = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
    "message:Network plugin returns error: cni plugin not initialized"
)
GPU_LOG = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)"


class Dead(ClusterError):
    """The operator's process has been killed: this call was never made."""


@dataclass
class Kubelet:
    """A host's side: files of kubeadm, and the service."""

    api_server: str | None = None
    bootstrapping: bool = False
    ca: bool = False
    active: bool = False
    enabled: bool = False
    taints: tuple[Taint, ...] = ()
    """Of its own flags: put on a Node object that it makes, not on one that is there."""
    version: str = VERSION
    """Of the process that runs."""
    token: str = ""
    """In its bootstrap credentials."""
    cni: list[str] = field(default_factory=list)
    """Names in /etc/cni/net.d."""
    endpoint: str = ""
    joins: int = 0

    started_s: int = 0

    def read(self, now_s: int) -> str:
        server = f"server: {self.api_server}" if self.api_server else "absent"
        yes = {True: "yes", False: "no"}
        unit = "enabled" if self.enabled else "disabled"
        return (
            f"## server\n{server}\n## bootstrap\n{yes[self.bootstrapping]}\n## ca\n{yes[self.ca]}\n"
            f"## unit\nActiveState={'active' if self.active else 'inactive'}\n"
            f"UnitFileState={unit}\nExecMainStartTimestampMonotonic={self.started_s * 1_000_000}\n"
            f"## uptime\n{now_s}.00 1.00\n## cni\n"
            + "".join(f"{name}\n" for name in self.cni)
            + "## sockets\n## done"
        )


@dataclass
class SimulatedCluster:
    """See the module. Faults are fields: set one, and mend it, between two runs."""

    hosts: dict[str, SimulatedHost] = field(default_factory=dict)
    nodes: dict[str, NodeState] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """By node."""
    applied: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: list[PodState] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Changes, in order."""
    minted: list[str] = field(default_factory=list)
    """Every token there ever was."""
    closed_at_start: list[bool] = field(default_factory=list)
    """Whether the Node object was closed when a kubelet first spoke for it."""

    join_fails: str = ""
    cni_missing: bool = False
    csinode_fails: bool = False
    """The first start of a kubelet does not get to Ready, a restart does."""
    late: int = 0
    """How often a Node object is asked for before its kubelet has made it."""
    stuck: str = ""
    """What no restart mends."""
    pod_waits: str = ""
    """Why plugin pods do not start."""
    twin_of: str | None = None
    """A Node with the same machine-id."""
    pod_warns: str = ""
    """The newest event about them."""
    offers_nothing_until_restart: bool = False
    probe_logs: dict[str, str] = field(default_factory=dict)
    probe_results: dict[str, dict[str, Any]] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)
    """Names of methods that the API refuses."""
    problem: str = ""
    """What every question is answered with, if it fails."""
    version: str = VERSION
    ahead_s: float = 0.0
    """How far its clock is ahead of ours."""
    operator: str | None = None
    """Another manager of GPUs."""
    rights: list[str] = field(default_factory=list)
    """Those that are missing."""
    probe_runs: list[bool] = field(default_factory=list)
    """Whether the node was closed while its pods ran."""

    moments: Moments | None = None

    ca_pem = CA.encode()

    def _change(self, what: str, name: str = "") -> None:
        host = self.hosts.get(name) or next(iter(self.hosts.values()), None)
        if host is not None and host.cut_after is not None:
            if host.cut_after == 0:
                raise Dead(f"killed before: {what}")
            host.cut_after -= 1
        if self.moments is not None:
            self.moments.pass_one(what)
        self.log.append(what)

    def _ask(self, method: str) -> None:
        if self.moments is not None:
            self.moments.pass_one(f"ask {method}")
        if self.problem:
            raise ClusterError(self.problem)
        if method in self.fails:
            raise ClusterError(f"kubernetes api: want {method}, have 503; look at the API server")

    # --- the cluster as a whole ---------------------------------------------------------------

    def server_version(self) -> str:
        self._ask("server_version")
        return self.version

    def server_time(self) -> datetime:
        self._ask("server_time")
        return datetime.fromtimestamp(int(time.time() + self.ahead_s), UTC)

    def operator_in_charge(self) -> str | None:
        self._ask("operator_in_charge")
        return self.operator

    def missing_rights(self, namespace: str) -> list[str]:
        self._ask("missing_rights")
        return self.rights

    # --- nodes --------------------------------------------------------------------------------

    def node(self, name: str) -> NodeState | None:
        self._ask("node")
        if name in self.nodes and self.late > 0:
            self.late -= 1
            return None
        return self.nodes.get(name)

    def twin(self, name: str, machine_id: str, system_uuid: str) -> str | None:
        self._ask("twin")
        return self.twin_of

    def _existing(self, name: str) -> NodeState:
        if name not in self.nodes:
            raise NotFound(f"node {name}: want a Node object, have none")
        return self.nodes[name]

    def taint(self, name: str, taint: Taint) -> bool:
        self._ask("taint")
        node = self._existing(name)
        if taint in node.taints:
            return False
        self._change(f"taint {taint}", name)
        others = [t for t in node.taints if (t.key, t.effect) != (taint.key, taint.effect)]
        self.nodes[name] = replace(node, taints=(*others, taint))
        return True

    def untaint(self, name: str, key: str, effect: str) -> bool:
        self._ask("untaint")
        node = self._existing(name)
        left = tuple(t for t in node.taints if (t.key, t.effect) != (key, effect))
        if left == node.taints:
            return False
        self._change(f"untaint {key}", name)
        self.nodes[name] = replace(node, taints=left)
        return True

    def label(self, name: str, labels: dict[str, str | None]) -> bool:
        self._ask("label")
        node = self._existing(name)
        self._change(f"label {sorted(labels)}", name)
        merged = {k: v for k, v in {**node.labels, **labels}.items() if v is not None}
        self.nodes[name] = replace(node, labels=merged)
        self._reconcile()
        return True

    def annotate(self, name: str, annotations: dict[str, str | None]) -> bool:
        self._ask("annotate")
        node = self._existing(name)
        self._change(f"annotate {sorted(annotations)}", name)
        merged = {k: v for k, v in {**node.annotations, **annotations}.items() if v is not None}
        self.nodes[name] = replace(node, annotations=merged)
        return True

    def set_condition(self, name: str, type: str, status: str, reason: str, message: str) -> bool:
        self._ask("set_condition")
        node = self._existing(name)
        self._change(f"condition {status} {reason}", name)
        condition = Condition(status, reason, message, "2026-11-30T00:00:00Z")
        self.nodes[name] = replace(node, conditions={**node.conditions, type: condition})
        return True

    # --- joining ------------------------------------------------------------------------------

    def ca_hash(self) -> str:
        self._ask("ca_hash")
        return CA_HASH

    @contextmanager
    def join_token(self, name: str, ttl_s: float = 900) -> Iterator[Any]:
        self._ask("join_token")
        self._change("mint a token", name)
        token = f"abcdef.{len(self.minted):016d}"
        self.minted.append(token)
        self.tokens[name] = token
        try:
            yield JoinToken(token)
        finally:
            self._change("delete the token", name)
            self.tokens.pop(name, None)

    def sweep_tokens(self, name: str) -> bool:
        if name not in self.tokens:
            return False
        self._change("sweep a token", name)
        del self.tokens[name]
        return True

    def start(self, host: SimulatedHost, *, again: bool = False) -> None:
        """A kubelet starts: it makes its Node object, or speaks for the one that is there."""
        kubelet: Kubelet = host.values["kubelet"]
        kubelet.active, kubelet.started_s = True, host.now_s
        kubelet.version = host.values["machine"].packages["kubelet"].version.partition("-")[0]
        if kubelet.api_server is None:
            return
        name = host.name
        node = self.nodes.get(name) or replace(
            EMPTY, name=name, uid=f"uid-{len(self.log)}", taints=kubelet.taints
        )
        reason, message = "", ""
        if self.stuck:
            reason, message = "KubeletNotReady", self.stuck
        elif self.cni_missing:
            reason, message = "KubeletNotReady", CNI_MISSING
        elif self.csinode_fails and not again:
            reason, message = "KubeletNotReady", f"[{CNI_MISSING}, CSINode is not yet initialized]"
        self.closed_at_start.append(node.closed)
        self.nodes[name] = replace(
            node, ready=not reason, ready_reason=reason or "KubeletReady", ready_message=message,
            kubelet_version=f"v{kubelet.version}", boot_id=f"boot-{host.boot}",
            machine_id=host.values["machine"].machine_id,
            system_uuid=host.values["machine"].product_uuid,
            allocatable={**node.allocatable, "cpu": "2"},
        )  # fmt: skip
        self._reconcile()

    # --- device plugins -----------------------------------------------------------------------

    def differs(self, manifest: dict[str, Any]) -> bool:
        self._ask("differs")
        return self.applied.get(manifest["metadata"]["name"]) != manifest

    def apply(self, manifest: dict[str, Any]) -> bool:
        self._ask("apply")
        self._change(f"apply {manifest['metadata']['name']}")
        self.applied[manifest["metadata"]["name"]] = manifest
        self._reconcile()
        return True

    def pods_on(self, name: str) -> list[PodState]:
        self._ask("pods_on")
        return [pod for pod in self.pods if pod.node == name]

    def warning(self, pod: PodState) -> str:
        return self.pod_warns

    def delete_pod(self, pod: PodState) -> None:
        self._ask("delete_pod")
        self._change(f"delete {re.sub('-[0-9]+$', '', pod.name)}", pod.node)
        self.pods = [other for other in self.pods if other.uid != pod.uid]
        self.offers_nothing_until_restart = False
        self._reconcile()

    def _reconcile(self) -> None:
        """The DaemonSet controller and the kubelets, at once."""
        for name, manifest in self.applied.items():
            ((label, value),) = manifest["spec"]["template"]["spec"]["nodeSelector"].items()
            for node in list(self.nodes.values()):
                selected = node.labels.get(label) == value
                mine = [
                    pod for pod in self.pods
                    if (pod.node, pod.owner_name) == (node.name, name)
                    and pod.namespace == manifest["metadata"]["namespace"]
                ]  # fmt: skip
                if not selected:
                    self.pods = [pod for pod in self.pods if pod not in mine]
                elif not mine:
                    self.pods.append(self._plugin_pod(name, manifest, node.name))

    def _plugin_pod(self, name: str, manifest: dict[str, Any], node: str) -> PodState:
        host = self.hosts[node]
        meta = manifest["spec"]["template"]["metadata"]
        uid = f"pod-{len(self.log)}-{len(self.pods)}"
        if not self.pod_waits:
            self._offer(name, manifest, node)
        return pod(
            f"{name}-{len(self.log)}", node, uid=uid, owner_kind="DaemonSet", owner_name=name,
            ready=not self.pod_waits, waiting_reason=self.pod_waits,
            started_at="" if self.pod_waits else at(host.now_s + 1),
            labels=dict(meta["labels"]), annotations=dict(meta["annotations"]),
        )  # fmt: skip

    def _offer(self, name: str, manifest: dict[str, Any], node: str) -> None:
        if self.offers_nothing_until_restart:
            return
        host = self.hosts[node]
        (path,) = [path for path in host.files if f"/{name}." in path]
        if name == "nvidia-device-plugin":
            assert yaml.safe_load(host.files[path].text)["flags"]["failOnInitError"]
            offered = host.values.get("gpus_offered", {"nvidia.com/gpu": "2"})
            offered = offered(host) if callable(offered) else offered
        else:
            (entry,) = json.loads(host.files[path].text)["configList"]
            offered = {f"{entry['resourcePrefix']}/{entry['resourceName']}": entry["rdmaHcaMax"]}
            offered = {key: "1k" if n == 1000 else str(n) for key, n in offered.items()}
        state = self.nodes[node]
        self.nodes[node] = replace(state, allocatable={**state.allocatable, **offered})

    # --- probes -------------------------------------------------------------------------------

    def probes(self, manifests: list[dict[str, Any]], timeout_s: float) -> list[ProbeResult]:
        self._ask("probes")
        created = []
        node = ""
        for manifest in manifests:
            meta = manifest["metadata"]
            node = meta["labels"][NODE_LABEL]
            self._change(f"probe {meta['labels'][PROBE_LABEL]}", node)
            created.append(pod(meta["name"], node, labels=dict(meta["labels"]), uid=meta["name"]))
            self.pods.append(created[-1])
        self.probe_runs.append(self.nodes[node].closed)
        results = [self._result(entry) for entry in created]
        self._change("delete the probes", node)
        self.pods = [entry for entry in self.pods if entry not in created]
        return results

    def _result(self, entry: PodState) -> ProbeResult:
        kind = entry.labels[PROBE_LABEL]
        gpu, rdma = kind == "gpu", kind == "rdma"
        host = self.hosts[entry.node]
        listed = host.values.get("gpu_listed", lambda h: GPU_LOG)(host)
        log = "\n".join(
            ["## visible", "## nvidia-smi", listed if gpu else "sh: nvidia-smi: not found",
             "## nvidia-smi-exit", "0" if gpu else "127", "## gpu-files",
             *(["/dev/nvidia0"] if gpu else []), "## rdma-files",
             *(["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"] if rdma else []),
             "## memlock", "unlimited", "## end"]
        )  # fmt: skip
        values = {"phase": "Succeeded", "log": self.probe_logs.get(kind, log), "reason": ""}
        values |= {"scheduled": True, "node": entry.node} | self.probe_results.get(kind, {})
        return ProbeResult(name=entry.name, **values)

    def sweep_probes(
        self, node_name: str, namespace: str = "rackwright", older_than_s: float = 600
    ) -> list[str]:
        # All that are left here are young: none is older than its deadline.
        return []


@dataclass(frozen=True)
class JoinToken:
    token: str


def at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name: str, node: str, **values: Any) -> PodState:
    return PodState(
        **{
            "namespace": "rackwright", "uid": name, "owner_kind": "", "owner_name": "",
            "phase": "Running", "requests": {}, "ready": True, "restart_count": 0,
            "waiting_reason": "", "deleting": False, "started_at": "", "labels": {},
            "annotations": {}, "name": name, "node": node, **values,
        }
    )  # fmt: skip


def connect(cluster: SimulatedCluster, host: SimulatedHost) -> SimulatedHost:
    """Give *host* what kubeadm and a kubelet do; the newest description of a command wins."""
    cluster.hosts[host.name] = host
    kubelet = host.values.setdefault("kubelet", Kubelet())
    archive = host.values["machine"].archive
    archive |= {"kubelet": ["1.36.2-1.1", "1.36.3-1.1"], "kubeadm": ["1.36.3-1.1"]}
    archive |= {"cri-tools": ["1.36.0-1.1"], "kubernetes-cni": ["1.7.1-1.1"]}
    archive |= {name: ["1.0-1"] for name in ("conntrack", "ethtool", "iptables", "socat")}
    host.facts["Kubelet"] = lambda h: h.values["kubelet"].read(h.now_s)
    host.facts["PodBridge"] = lambda h: h.values.get("bridge", "absent\n## done")
    host.on(
        r"^mv -T --backup=numbered /etc/cni/net.d/(\S+) /etc/cni/net.d/\1.disabled$",
        lambda h, match, stdin: not kubelet.cni.remove(match[1]),
    )
    host.on("^ip link delete cni0$", lambda h, match, stdin: bool(h.values.pop("bridge", "")))

    def begin(h: SimulatedHost) -> str | None:
        """What kubeadm does before the kubelet has credentials of its own; the token."""
        file = h.files[JOIN_FILE]
        assert file.mode == "0600"
        config = yaml.safe_load(file.text)
        assert config["discovery"]["bootstrapToken"]["caCertHashes"] == [CA_HASH]
        token: str = config["discovery"]["bootstrapToken"]["token"]
        if token not in cluster.tokens.values():
            return None
        kubelet.ca = kubelet.bootstrapping = True
        kubelet.taints = tuple(
            Taint(t["key"], t.get("value", ""), t["effect"])
            for t in config["nodeRegistration"]["taints"]
        )
        kubelet.token = token
        kubelet.endpoint = config["discovery"]["bootstrapToken"]["apiServerEndpoint"]
        return token

    def finish(h: SimulatedHost) -> None:
        """The kubelet changes its token for credentials and registers, with kubeadm or alone."""
        kubelet.api_server = f"https://{kubelet.endpoint}"
        kubelet.joins += 1
        cluster.start(h)

    def join(h: SimulatedHost, match: re.Match[str], stdin: str) -> tuple[bool, str]:
        if JOIN_FILE not in h.files or kubelet.api_server or kubelet.bootstrapping:
            return False, "[ERROR FileAvailable--etc-kubernetes-kubelet.conf]: already exists"
        if (there := cluster.nodes.get(h.name)) and there.ready:
            return False, 'error: a Node with name "x" and status "Ready" already exists'
        token = begin(h)
        h.files.pop(JOIN_FILE)
        if token is None:
            return False, "error: the token id is invalid for this cluster or it has expired"
        if cluster.join_fails:
            return False, f"{cluster.join_fails} {token}"
        kubelet.bootstrapping = False
        finish(h)
        return True, ""

    def half_join(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        """kubeadm is killed before its kubelet has got anywhere; at a boot that may go on."""
        return begin(h) is not None

    def join_alone(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        """kubeadm is killed while its kubelet gets there: nobody tidies up."""
        begin(h)
        finish(h)
        return True

    before = host.values["on_boot"]

    def boot(h: SimulatedHost) -> None:
        before(h)
        kubelet.active = False
        if not kubelet.enabled or "kubelet" not in h.values["machine"].packages:
            return
        if kubelet.bootstrapping and not kubelet.api_server:
            if kubelet.token in cluster.tokens.values():
                finish(h)
        else:
            cluster.start(h)

    host.values["on_boot"] = boot

    def reset(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        kubelet.ca = kubelet.bootstrapping = kubelet.active = False
        kubelet.api_server, kubelet.token = None, ""
        h.files.pop(JOIN_FILE, None)
        return True

    def enable(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        kubelet.enabled = True
        if "--now" in match[0] and not kubelet.active:
            cluster.start(h)
        return True

    def restart(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        cluster.start(h, again=True)
        return True

    def forget(h: SimulatedHost, match: re.Match[str], stdin: str) -> bool:
        h.files.pop(JOIN_FILE, None)
        kubelet.bootstrapping = False
        return True

    host.on(r"kubeadm join --config", join)
    host.half(r"kubeadm join --config", half_join, join_alone)
    host.on(r"kubeadm reset -f", reset)
    host.on(r"^systemctl enable (--no-reload --now )?kubelet\.service$", enable)
    host.on(r"^systemctl restart kubelet\.service$", restart)
    host.on(rf"^rm -f {JOIN_FILE} {BOOTSTRAP_CONF}$", forget)
    host.on(r"^journalctl -u kubelet", lambda h, m, s: "E1130 kubelet.go: no luck\n")
    return host


def closed(node: NodeState) -> bool:
    return CLOSED_TAINT in node.taints
