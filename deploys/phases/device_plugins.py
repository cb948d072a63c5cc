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
    found: dict[str, str | None] = {}
    for plugin, key in ((NVIDIA_PLUGIN, NVIDIA_NODE_LABEL), (RDMA_PLUGIN, RDMA_NODE_LABEL)):
        found[key] = "true" if plugin in wanted(spec) else spec.kube_labels.get(key)
    return found


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    plugins = wanted(spec)
    if NVIDIA_PLUGIN in plugins:
        step = written(
            "write the NVIDIA device plugin's file", NVIDIA_PATH,
            nvidia_plugin_config(spec.mig_strategy), have[Files],
        )  # fmt: skip
        if step:
            yield step
    if RDMA_PLUGIN in plugins:
        ports = selected_ports(spec, have)
        if not ports:
            yield Step(
                "write the RDMA device plugin's file", f"{spec.hca_count} HCAs of {spec.hca_model}",
                "no port that pods could use", lambda: iter(()), waits_for="the ports",
            )  # fmt: skip
            return
        step = written(
            "write the RDMA device plugin's file", RDMA_PATH,
            rdma_plugin_config(
                spec.rdma_resource_name, spec.rdma_resource_prefix, spec.rdma_resource_max, ports
            ),
            have[Files],
        )  # fmt: skip
        if step:
            yield step

    if not have[Kubelet].joined or have.node is None or not have.node.ready:
        yield Step(
            "wait for the device plugins", "what the hardware has", "no Ready node",
            lambda: iter(()), waits_for="the node to be Ready",
        )  # fmt: skip
        return

    # After its file: a plugin that starts without it has to be waited for twice.
    if step := kubeadm.labelled(
        "label the node for its device plugins", labels(spec), have.node, have.cluster
    ):
        yield step
        return
    if not plugins:
        return
    manifests = manifests_of(
        nvidia_image=spec.nvidia_device_plugin_image,
        rdma_image=spec.rdma_device_plugin_image,
        namespace=spec.kube_namespace,
    )
    differing = [m["metadata"]["name"] for m in manifests if have.cluster.differs(m)]
    if differing:
        yield Step(
            "apply the device plugins", "DaemonSets as declared",
            f"{' and '.join(differing)} missing or different",
            lambda: iter([operations.apply(have.cluster, manifests)]),
        )  # fmt: skip
        yield Step(
            "wait for the device plugins", "what the hardware has", "plugins to be applied",
            lambda: iter(()), waits_for="the DaemonSets",
        )  # fmt: skip
        return

    stale = [
        pod
        for manifest in manifests
        for pod in plugin_pods(have.pods, manifest["metadata"]["name"])
        if not pod.deleting and (outdated(pod, manifest) or older(pod, plugins, have))
    ]
    if stale:
        yield Step(
            "restart the device plugins of this node", "pods newer than what they read",
            ", ".join(sorted(pod.name.rsplit("-", 1)[0] for pod in stale)) + " older",
            lambda: iter([operations.replace(have.cluster, stale)]),
            # A pod keeps the devices that it has; for some seconds no new one is given any.
            disrupts=False,
        )  # fmt: skip
        return
    left = operations.lacking(spec, have.node, have.pods, list(plugins))
    if left:
        yield Step(
            "wait for the device plugins", "what the hardware has", "; ".join(left),
            lambda: iter([operations.wait_offered(spec, have.cluster, list(plugins))]),
            remedy="read the plugins' logs",
        )  # fmt: skip


def older(pod: PodState, plugins: dict[str, str], have: Have) -> bool:
    """Whether the pod's container started before its file was written: it is read at start only."""
    path = plugins.get(pod.labels.get("app.kubernetes.io/name", ""))
    file = have[Files].get(path) if path else None
    if file is None or not pod.started_at:
        return False
    # Both are the host's own clock, in whole seconds: in the same one, it may have come first.
    return datetime.fromisoformat(pod.started_at).timestamp() <= file.changed_at_s


@deploy("Device plugins")
def device_plugins() -> None:
    node.converge(name="Converge the device plugins", phases=[preflight, sys.modules[__name__]])
