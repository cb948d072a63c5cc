"""Device plugins: the node offers the GPUs, MIG devices and RDMA shares that it has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime

from pyinfra.api import deploy

from cluster import PodState
from cluster.manifests import (
    CONFIG_DIR,
    NVIDIA_CONFIG,
    NVIDIA_NODE_LABEL,
    NVIDIA_PLUGIN,
    RDMA_CONFIG,
    RDMA_NODE_LABEL,
    RDMA_PLUGIN,
    outdated,
    plugin_pods,
)
from cluster.manifests import (
    device_plugins as manifests_of,
)
from cluster.plugin_config import nvidia_plugin_config, rdma_plugin_config
from deploys.phases import preflight
from facts.files import Files
from facts.kubernetes import Kubelet
from nodespec import NodeSpec
from operations import device_plugins as operations
from operations import kubeadm, node
from operations.files import written
from operations.have import Have
from operations.rdma import selected_ports
from operations.step import Refusal, Step

NVIDIA_PATH = f"{CONFIG_DIR}/{NVIDIA_CONFIG}"
RDMA_PATH = f"{CONFIG_DIR}/{RDMA_CONFIG}"


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (NVIDIA_PATH, RDMA_PATH)


def wanted(spec: NodeSpec) -> dict[str, str]:
    """Plugins that the node needs, with the path of their file on it."""
    return {
        **({NVIDIA_PLUGIN: NVIDIA_PATH} if spec.gpu_count else {}),
        **({RDMA_PLUGIN: RDMA_PATH} if spec.hca_count and spec.rdma_required else {}),
    }


def labels(spec: NodeSpec) -> dict[str, str | None]:
    """What places the plugins on the node, and takes one away whose devices are not declared."""
    places = {NVIDIA_PLUGIN: NVIDIA_NODE_LABEL, RDMA_PLUGIN: RDMA_NODE_LABEL}
    return {key: "true" if plugin in wanted(spec) else None for plugin, key in places.items()}


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    plugins = wanted(spec)
    pending: str | None = None
    texts: dict[str, tuple[str, str]] = {}
    if NVIDIA_PLUGIN in plugins:
        title = "write the NVIDIA device plugin's file"
        texts[NVIDIA_PLUGIN] = (title, nvidia_plugin_config(spec.mig_strategy))
    if RDMA_PLUGIN in plugins:
        title = "write the RDMA device plugin's file"
        if ports := selected_ports(spec, have):
            config = rdma_plugin_config(
                spec.rdma_resource_name, spec.rdma_resource_prefix, spec.rdma_resource_max, ports
            )
            texts[RDMA_PLUGIN] = (title, config)
        else:
            pending = "the ports"
            yield Step(
                title, f"{spec.hca_count} HCAs of {spec.hca_model}",
                "no port that pods could use", lambda: iter(()), waits_for=pending,
            )  # fmt: skip
    rewritten: set[str] = set()
    for plugin, (title, text) in texts.items():
        if step := written(title, plugins[plugin], text, have[Files]):
            rewritten.add(plugin)
            yield step

    ready = have[Kubelet].joined and have.node is not None and have.node.ready
    if not ready:
        pending = pending or "the node to be Ready"
    # After its file: a plugin that starts without it has to be waited for twice.
    label = kubeadm.labelled(
        "label the node for its device plugins", labels(spec), have, waits_for=pending
    )
    if label:
        yield label
    if not plugins:
        return
    manifests = manifests_of(
        nvidia_image=spec.nvidia_device_plugin_image,
        rdma_image=spec.rdma_device_plugin_image,
        namespace=spec.kube_namespace,
    )
    # Long before its time it is asked once, for the plan that is shown.
    differing = [
        manifest["metadata"]["name"]
        for manifest in manifests
        if (ready or have.asks) and have.cluster.differs(manifest)
    ]
    if differing:
        yield Step(
            "apply the device plugins", "DaemonSets as declared",
            f"{' and '.join(differing)} missing or different",
            lambda: iter([operations.apply(have.cluster, manifests)]), waits_for=pending,
            remedy="look who else writes them: `kubectl get ds -o yaml --show-managed-fields`",
        )  # fmt: skip
        pending = pending or "the DaemonSets"
    if label or rewritten:
        pending = pending or "their files and labels"

    # Which pods there are is looked at once more when all that they read is there.
    stale = [
        pod
        for manifest in manifests
        for pod in (
            plugin_pods(have.pods, manifest["metadata"]["name"], spec.kube_namespace)
            if have.node
            else ()
        )
        if not pod.deleting
        and (
            manifest["metadata"]["name"] in rewritten
            or outdated(pod, manifest)
            or older(pod, plugins, have)
        )
    ]
    if stale:
        yield Step(
            "restart the device plugins of this node", "pods newer than what they read",
            ", ".join(sorted(pod.name.rsplit("-", 1)[0] for pod in stale)) + " older",
            lambda: iter([operations.replace(have.cluster, stale)]),
            # A pod keeps the devices that it has; for some seconds no new one is given any.
            disrupts=False, waits_for=pending,
            remedy=f"read `kubectl -n {spec.kube_namespace} describe pods`",
        )  # fmt: skip
        pending = pending or "the new pods"
    left = ["nothing yet"] if pending else operations.lacking(
        spec, have.node, have.pods, list(plugins)
    )  # fmt: skip
    if left:
        yield Step(
            "wait for the device plugins", "what the hardware has", "; ".join(left),
            lambda: iter([operations.wait_offered(spec, have.cluster, list(plugins))]),
            waits_for=pending,
            remedy=f"read the plugins' logs: `kubectl -n {spec.kube_namespace} logs POD`",
        )  # fmt: skip


def older(pod: PodState, plugins: dict[str, str], have: Have) -> bool:
    """Whether the pod's container started before its file was written: it is read at start only."""
    path = plugins.get(pod.owner_name)
    file = have[Files].get(path) if path else None
    if file is None or not pod.started_at:
        return False
    # Both are the host's own clock, in whole seconds: in the same one, it may have come first.
    return datetime.fromisoformat(pod.started_at).timestamp() <= file.changed_at_s


@deploy("Device plugins")
def device_plugins() -> None:
    node.converge(name="Converge the device plugins", phases=[preflight, sys.modules[__name__]])
