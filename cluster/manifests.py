"""The device plugins: one DaemonSet each for all nodes, and the file that differs per node."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from pathlib import Path
from typing import Final

import jinja2
import yaml

from cluster.api import Json
from cluster.names import NAMESPACE
from cluster.pods import PodState

TEMPLATES: Final = Path(__file__).resolve().parent.parent / "templates/kubernetes"

CONFIG_DIR: Final = "/etc/rackwright/device-plugins"
"""On the host; the plugins see it under the same path."""

NVIDIA_PLUGIN: Final = "nvidia-device-plugin"
NVIDIA_CONFIG: Final = "nvidia-device-plugin.yaml"
NVIDIA_NODE_LABEL: Final = "nvidia.com/gpu.present"
"""Set to ``true`` on the nodes that shall run the plugin; NVIDIA's own name for it."""

RDMA_PLUGIN: Final = "rdma-shared-device-plugin"
RDMA_CONFIG: Final = "rdma-shared-device-plugin.json"
RDMA_NODE_LABEL: Final = "rackwright.io/rdma"

TEMPLATE_HASH: Final = "rackwright.io/template"
"""Annotation of a plugin's pods: which manifest they were made from."""


def device_plugins(
    *, nvidia_image: str | None, rdma_image: str | None, namespace: str = NAMESPACE
) -> list[Json]:
    """
    The manifests to apply; a plugin without an image is not among them.

    + nvidia_image: as in ``nvcr.io/nvidia/k8s-device-plugin:v0.20.0``
    + rdma_image: as in ``ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3``
    """
    wanted = [
        (NVIDIA_PLUGIN, nvidia_image, NVIDIA_CONFIG, NVIDIA_NODE_LABEL),
        (RDMA_PLUGIN, rdma_image, RDMA_CONFIG, RDMA_NODE_LABEL),
    ]
    return [
        copy.deepcopy(_daemonset(name, image, config, label, namespace))
        for name, image, config, label in wanted
        if image is not None
    ]


@functools.cache  # every plan of every node asks for the same two
def _daemonset(name: str, image: str, config_file: str, label: str, namespace: str) -> Json:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined
    )
    text = environment.get_template(f"{name}.yaml.j2").render(
        name=name,
        namespace=namespace,
        image=image,
        label=label,
        config_dir=CONFIG_DIR,
        config_file=config_file,
    )
    manifest: Json = yaml.safe_load(text)
    template = manifest["spec"]["template"]
    canonical = json.dumps(template, sort_keys=True).encode()
    digest = hashlib.sha256(canonical).hexdigest()[:16]
    template["metadata"].setdefault("annotations", {})[TEMPLATE_HASH] = digest
    return manifest


def outdated(pod: PodState, manifest: Json) -> bool:
    """Whether *pod* was made from another version of *manifest*.

    The DaemonSets replace a pod only when it is deleted, so that one changed image does not restart
    the plugins of a whole fleet: who converges a node deletes its pod.
    """
    wanted: str = manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_HASH]
    return pod.annotations.get(TEMPLATE_HASH) != wanted


def plugin_pods(pods: list[PodState], name: str, namespace: str) -> list[PodState]:
    """
    Of the pods on a node, those of our plugin *name*; more than one is a fault.

    By the DaemonSet that owns them: labels are as NVIDIA's chart gives them to those of others.
    """
    return [
        pod
        for pod in pods
        if (pod.namespace, pod.owner_kind, pod.owner_name) == (namespace, "DaemonSet", name)
    ]
