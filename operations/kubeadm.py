"""Joining a cluster, and undoing half a join."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

import gevent
import yaml
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import CLOSED_TAINT, Cluster, ClusterError, NodeState, Taint
from facts.kubernetes import BOOTSTRAP_CONF, KUBELET_CONF
from nodespec import NodeSpec
from operations import lock
from operations.failure import calling, tell
from operations.files import put
from operations.have import Have
from operations.redaction import hide
from operations.step import Step

JOIN_FILE = "/etc/kubernetes/rackwright-join.yaml"
CRI_SOCKET = "unix:///run/containerd/containerd.sock"

READY_TIMEOUT_S = 420
REPAIR_AFTER_S = 90
REGISTERS_S = 180
"""How long a kubelet may take from its start to its Node object: on a slow host, with a join."""
GONE_TIMEOUT_S = 120
"""For a Node object to be given up: the control plane waits 50 s for a kubelet's word."""
POLL_S = 2.0

# A run that died may have left its kubeadm running on the host: never two at once.
# Source: its own limits, TLSBootstrap and Discovery, are 5 minutes each (kubeadm v1beta4).
ALONE = (
    "exec 8>/run/rackwright-kubeadm.lock && { flock -w 660 8 || { echo 'error: another kubeadm of "
    "ours has been running for 660 s; look at it with ps'; false; }; }"
)


def join_configuration(spec: NodeSpec, token: str, ca_hash: str) -> str:
    """
    kubeadm's ``JoinConfiguration``: CA pinned, the node closed from its first second.

    Source: Kubernetes documentation, "kubeadm Configuration (v1beta4)" (read 2026-11-30);
    v1beta3 was removed in 1.37.
    """
    taints = [CLOSED_TAINT, *map(Taint.parse, spec.kube_taints)]
    arguments = [{"name": "node-ip", "value": spec.kube_node_ip}] if spec.kube_node_ip else []
    config = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "token": token,
                "apiServerEndpoint": spec.kube_api_server,
                "caCertHashes": [ca_hash],
            }
        },
        "nodeRegistration": {
            "name": spec.kube_node_name,
            # Always named: with a second runtime on the host kubeadm would stop and ask.
            "criSocket": CRI_SOCKET,
            "taints": [taint.to_json() for taint in taints],
            "kubeletExtraArgs": arguments,
            "imagePullPolicy": "IfNotPresent",
        },
    }
    return yaml.safe_dump(config, sort_keys=False)


def join(spec: NodeSpec, cluster: Cluster) -> FunctionCommand:
    """
    Join the host to the cluster with a token of its own, deleted afterwards however it went.

    A Node object that is already there is closed before the kubelet starts.
    """
    return calling(_join, spec, cluster)


def _join(state: State, host: Host, spec: NodeSpec, cluster: Cluster) -> bool:
    arguments = lock.connector_arguments(host)
    name = spec.kube_node_name
    ca_hash = cluster.ca_hash()
    if not _given_up(host, cluster, name):
        return False
    if cluster.node(name) is not None:
        # Its kubelet adds no taints to an object that is there already.
        cluster.taint(name, CLOSED_TAINT)
    with cluster.join_token(name) as token:
        hide(token.token.partition(".")[2])
        wrote = put(JOIN_FILE, join_configuration(spec, token.token, ca_hash), "0600")
        ok, output = host.run_shell_command(wrote, **{**arguments, **wrote.connector_arguments})
        if ok:
            ok, output = host.run_shell_command(
                StringCommand(
                    f"{ALONE} && kubeadm join --config {JOIN_FILE} 2>&1; rc=$?; "
                    f"rm -f {JOIN_FILE}; exit $rc"
                ),
                **arguments,
            )
        if not ok:
            said = join_problem(output.stdout_lines)
            tell(host, f"kubernetes: want the host joined, have {said}; {join_remedy(said)}")
    return bool(ok)


def _given_up(host: Host, cluster: Cluster, name: str) -> bool:
    """
    Wait until no kubelet vouches for the Node object of this name any more.

    kubeadm refuses the name of a Ready node, and for a while that is this very host, before it
    was reset. Whether it is another machine was asked by preflight.
    """
    started, told = time.monotonic(), False
    while (node := cluster.node(name)) is not None and node.ready:
        if time.monotonic() - started > GONE_TIMEOUT_S:
            tell(
                host,
                f"kubernetes: want Node {name} given up before this host joins under its name, "
                f"have it Ready after {GONE_TIMEOUT_S} s; find the kubelet that reports as {name}, "
                "or give this host another kube_node_name",
            )
            return False
        if not told:
            host.log(f"waiting for Node {name} of an earlier life to be given up")
            told = True
        gevent.sleep(POLL_S)
    return True


# Source: kubernetes 1.36.3, cmd/kubeadm/app/preflight/checks.go and discovery/token/token.go.
# The first that is found counts.
REMEDIES = (
    (
        r"token id .*(invalid|expired)|JWS|bootstrap token",
        "run again, which makes a new token; if it stays so, look whether the controller manager "
        "runs bootstrapsigner and tokencleaner",
    ),
    (
        r"x509|pinned|certificate",
        "compare the host's clock, kube_api_server, and the CA in kube_kubeconfig",
    ),
    (r"\[ERROR Port-", "look what holds it with `ss -ltnp` on the host, and end that"),
    (
        r"\[ERROR (File|Dir)Available|already exists",
        "run `kubeadm reset -f` on the host, if nothing on it is needed any more",
    ),
    (r"\[ERROR KubeletVersion", "set kube_version to one that is not newer than the control plane"),
    (
        r"\[ERROR FileContent",
        "run `sysctl --system` on the host: a file that is read later sets another value",
    ),
    (r"\[ERROR FileExisting-", "install that program on the host"),
    (r"\[ERROR SystemVerification", "boot the host with cgroup v2, or another kernel"),
    (
        r"CRI",
        "read `ctr plugins ls` and `journalctl -u containerd` on the host: it has no CRI",
    ),
)


def join_remedy(problem: str) -> str:
    """What to do about a join that failed for *problem*."""
    for words, remedy in REMEDIES:
        if re.search(words, problem):
            return remedy
    return "mend that, then run again"


def join_problem(lines: Sequence[str]) -> str:
    """The lines of kubeadm's output that say why: its preflight errors, or the last ones."""
    said = [line.strip() for line in lines]
    errors = [line for line in said if "[ERROR " in line or line.startswith("error")]
    return "; ".join(errors[:5] or said[-3:]) or "no word of kubeadm"


def reset() -> StringCommand:
    """
    Undo half a join. Only for a host that has no credentials of its own yet, and no control plane.

    A join that a dead run left behind is waited for: it may end well.
    """
    return StringCommand(
        f"{ALONE} && {{ [ -e {KUBELET_CONF} ] || {{ "
        "if ls -A /etc/kubernetes/manifests /var/lib/etcd 2>/dev/null | grep -q '[^:]$'; "
        "then echo 'kubernetes: want a worker to undo the join of, have the files of a control "
        "plane; look at /etc/kubernetes/manifests and /var/lib/etcd' >&2; exit 1; fi; "
        f"kubeadm reset -f --cri-socket {CRI_SOCKET} && rm -f {JOIN_FILE}; }}; }}"
    )


def forget_credentials() -> StringCommand:
    """Remove what a join that was cut off left of its token."""
    return StringCommand("rm", "-f", JOIN_FILE, BOOTSTRAP_CONF)


def lacks(spec: NodeSpec, node: NodeState | None, boot_id: str = "") -> str:
    """What a node lacks to be a Ready one of this boot; empty if nothing."""
    if node is None:
        return "no Node object"
    if not node.ready:
        return f"{node.ready_reason}: {node.ready_message}"
    if boot_id and node.boot_id and node.boot_id != boot_id:
        return "Ready, but not heard of since the host has booted"
    return ""


def outdated(spec: NodeSpec, node: NodeState) -> str:
    """The version of the kubelet that runs, if it is not the one that is asked for."""
    version = node.kubelet_version.removeprefix("v")
    return "" if version == spec.kube_version else version or "unknown"


def labelled(
    title: str, wanted: Mapping[str, str | None], have: Have, *, waits_for: str | None = None
) -> Step | None:
    """
    The step that gives the node labels (``None`` takes one away); ``None`` if they are so.

    + waits_for: why it is only shown yet, if so
    """
    now = have.node.labels if have.node else {}
    differing = {key: value for key, value in wanted.items() if now.get(key) != value}
    if not differing:
        return None

    def label(state: State, host: Host) -> None:
        have.cluster.label(have.spec.kube_node_name, differing)

    def shown(key: str, value: str | None) -> str:
        return f"no {key}" if value is None else f"{key}={value}"

    return Step(
        title,
        ", ".join(shown(key, value) for key, value in differing.items()),
        ", ".join(shown(key, now.get(key)) for key in differing),
        lambda: iter([calling(label)]),
        waits_for=waits_for,
        remedy="look for a controller that writes these labels too",
    )


def wait_ready(
    spec: NodeSpec, cluster: Cluster, *, boot_id: str = "", restart: bool = False
) -> FunctionCommand:
    """
    Wait until the node is Ready; restart the kubelet once if it does not get there by itself.

    On a slow host the first start can end in ``failed to initialize CSINode`` and stay
    NotReady until the kubelet is restarted.

    + boot_id: of the host as it runs now, if a word from before does not count
    + restart: begin with that: a kubelet makes its Node object and reads its version only at start
    """
    return calling(_wait_ready, spec, cluster, boot_id, restart)


def _wait_ready(
    state: State, host: Host, spec: NodeSpec, cluster: Cluster, boot_id: str, restart: bool
) -> bool:
    arguments = lock.connector_arguments(host)
    cluster.sweep_tokens(spec.kube_node_name)  # of a run that died with the join
    started = time.monotonic()
    said = ""
    restarted = False
    while (waited := time.monotonic() - started) < READY_TIMEOUT_S:
        try:
            node = cluster.node(spec.kube_node_name)
            now = lacks(spec, node, boot_id)
            # What an old kubelet said last still stands a moment after its restart.
            if not now and restart and node is not None and (old := outdated(spec, node)):
                now = f"Ready with kubelet {old}"
        except ClusterError as error:
            now = str(error)
        if not now:
            return True
        if now != said:
            host.log(f"waiting for Ready: {now}")
            said = now
        # A missing CNI is nothing that a restart of the kubelet brings.
        if not restarted and (restart or (waited > REPAIR_AFTER_S and not missing_cni(now))):
            host.log(f"restarting the kubelet: {now}")
            host.run_shell_command(
                StringCommand("systemctl restart kubelet.service"),
                **arguments,
            )
            restarted = True
        gevent.sleep(POLL_S)
    _, output = host.run_shell_command(
        StringCommand("journalctl -u kubelet -p err -n 3 --no-pager -o cat"), **arguments
    )
    hint = (
        "no CNI has configured this node: look at the cluster's CNI DaemonSet, its pods must "
        "tolerate the node's taints and be able to run here"
        if missing_cni(said)
        else f"the kubelet's last errors: {'; '.join(output.stdout_lines) or 'none'}"
    )
    tell(host, f"kubernetes: want the node Ready within {READY_TIMEOUT_S} s, have {said}; {hint}")
    return False


def missing_cni(message: str) -> bool:
    """Whether the kubelet waits for the network and for nothing else that it names."""
    return (
        "cni plugin not initialized" in message or "cni config uninitialized" in message
    ) and "CSINode" not in message
