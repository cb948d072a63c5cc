"""Joining a cluster, and undoing half a join."""

from __future__ import annotations

import time
from collections.abc import Sequence

import gevent
import yaml
from pyinfra import logger
from pyinfra.api import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from cluster import CLOSED_TAINT, Cluster, ClusterError, NodeState, Taint
from nodespec import NodeSpec
from operations import lock
from operations.files import put

JOIN_FILE = "/etc/kubernetes/rackwright-join.yaml"
CRI_SOCKET = "unix:///run/containerd/containerd.sock"
READY_TIMEOUT_S = 420
REPAIR_AFTER_S = 90


def parse_taint(text: str) -> Taint:
    """``key[=value]:Effect``, as in the inventory."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return Taint(key, value, effect)


def join_configuration(spec: NodeSpec, token: str, ca_hash: str) -> str:
    """
    kubeadm's ``JoinConfiguration``: CA pinned, the node closed from its first second.

    Source: Kubernetes documentation, "kubeadm Configuration (v1beta4)" (read 2026-11-30);
    v1beta3 was removed in 1.37.
    """
    taints = [CLOSED_TAINT, *map(parse_taint, spec.kube_taints)]
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
    Join the host to the cluster with a token of its own that is deleted afterwards, however it went.

    A Node object that is already there is closed before the kubelet starts.
    """
    return FunctionCommand(_join, (spec, cluster), {})


def _join(state: State, host: Host, spec: NodeSpec, cluster: Cluster) -> bool:
    arguments = lock.connector_arguments(host)
    name = spec.kube_node_name
    ca_hash = cluster.ca_hash()
    if cluster.node(name) is not None:
        cluster.taint(name, CLOSED_TAINT)
    with cluster.join_token(name) as token:
        configuration = join_configuration(spec, token.token, ca_hash)
        wrote = put(JOIN_FILE, configuration, "0600")
        ok, _ = host.run_shell_command(wrote, **{**arguments, **wrote.connector_arguments})
        if ok:
            ok, output = host.run_shell_command(
                StringCommand(
                    f"kubeadm join --config {JOIN_FILE} 2>&1; rc=$?; rm -f {JOIN_FILE}; exit $rc"
                ),
                **arguments,
            )
            if not ok:
                host.log_styled(
                    f"kubernetes: want the host joined, have: {join_problem(output.stdout_lines)}",
                    fg="red",
                    log_func=logger.error,
                )
    return bool(ok)


def join_problem(lines: Sequence[str]) -> str:
    """The lines of kubeadm's output that say why: its preflight errors, or the last ones."""
    errors = [line.strip() for line in lines if "[ERROR " in line or line.startswith("error")]
    return "; ".join(errors[:5] or [line.strip() for line in lines[-3:]])


def reset() -> StringCommand:
    """Undo half a join. Only for a host that has no credentials of its own yet."""
    return StringCommand(f"kubeadm reset -f --cri-socket {CRI_SOCKET} && rm -f {JOIN_FILE}")


def wait_ready(spec: NodeSpec, cluster: Cluster) -> FunctionCommand:
    """
    Wait until the node is Ready; restart the kubelet once if it does not get there by itself.

    On a slow host the first start can end in ``failed to initialize CSINode`` and stay
    NotReady until the kubelet is restarted.
    """
    return FunctionCommand(_wait_ready, (spec, cluster), {})


def _wait_ready(state: State, host: Host, spec: NodeSpec, cluster: Cluster) -> bool:
    arguments = lock.connector_arguments(host)
    started = time.monotonic()
    repaired = False
    said = ""
    node: NodeState | None = None
    while (waited := time.monotonic() - started) < READY_TIMEOUT_S:
        try:
            node = cluster.node(spec.kube_node_name)
        except ClusterError as error:
            said = str(error)
        else:
            if node is not None and node.ready:
                return True
            now = "no Node object" if node is None else f"{node.ready_reason}: {node.ready_message}"
            if now != said:
                host.log(f"waiting for Ready: {now}")
                said = now
            # A missing CNI is nothing that a restart of the kubelet brings.
            if waited > REPAIR_AFTER_S and not repaired and not missing_cni(now):
                host.log("restarting the kubelet: it is not Ready by itself")
                host.run_shell_command(
                    StringCommand("systemctl restart kubelet.service"), **arguments
                )
                repaired = True
        gevent.sleep(2)
    _, output = host.run_shell_command(
        StringCommand("journalctl -u kubelet -p err -n 3 --no-pager -o cat"), **arguments
    )
    hint = (
        "no CNI has configured this node: look at the cluster's CNI DaemonSet, its pods must "
        "tolerate the node's taints and be able to run here"
        if missing_cni(said)
        else f"the kubelet's last errors: {'; '.join(output.stdout_lines) or 'none'}"
    )
    host.log_styled(
        f"kubernetes: want the node Ready within {READY_TIMEOUT_S} s, have {said}; {hint}",
        fg="red",
        log_func=logger.error,
    )
    return False


def missing_cni(message: str) -> bool:
    return "cni plugin not initialized" in message or "cni config uninitialized" in message
