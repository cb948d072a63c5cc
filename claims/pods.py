"""Pods as users run them: what each must see, and what it must not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from claims.finding import Finding
from claims.resources import expected, plugins_name
from cluster import ClusterError, ProbeResult, Taint
from cluster.probes import ProbeLog, bare_probe, gpu_probe, new_run, parse_log, rdma_probe
from facts.mig import GpusState
from nodespec import NodeSpec, mig_layout


@dataclass(frozen=True, slots=True)
class Probe:
    title: str
    kind: str
    resource: str
    manifest: dict[str, Any]


class NotTested(Exception):
    """The pod has neither passed nor failed. The message is why not, in others' words."""

    def __init__(self, want: str, have: str, remedy: str | None = None, *, ran: bool = False):
        super().__init__(have)
        self.want = want
        self.remedy = remedy
        """What to do; ``None``: make room."""
        self.ran = ran
        """Whether it came to its end on its node, and only what it saw is not known."""


def probes(spec: NodeSpec, run: str | None = None) -> list[Probe]:
    """
    One pod per kind of GPU or MIG device that the node has, one with an RDMA share, and one that
    asks for none of these.

    + run: part of their names, so that the pods of two runs do not meet; by default a new one
    """
    run = run or new_run()
    common: dict[str, Any] = {
        "image": spec.validation_image,
        "run": run,
        "namespace": spec.kube_namespace,
        "taints": [Taint.parse(taint) for taint in spec.kube_taints],
    }
    node = spec.kube_node_name
    found = [Probe("a pod without devices", "bare", "", bare_probe(node, **common))]
    offered = expected(spec)
    for resource in sorted(name for name in offered if name.startswith("nvidia.com/")):
        manifest = gpu_probe(node, resource=resource, **common)
        found.append(Probe(f"a pod with one {resource}", "gpu", resource, manifest))
    rdma = [name for name in offered if name.startswith(f"{spec.rdma_resource_prefix}/")]
    if rdma:
        manifest = rdma_probe(node, resource=rdma[0], **common)
        found.append(Probe(f"a pod with one {rdma[0]}", "rdma", rdma[0], manifest))
    return found


def judge(spec: NodeSpec, probe: Probe, result: ProbeResult, host: GpusState) -> Iterator[Finding]:
    """
    What is wrong with what the pod saw. Raises ``NotTested`` if that is not known.

    + host: the GPUs and MIG devices that the host itself sees
    """
    if not result.scheduled:
        raise NotTested("room to run it", result.reason or "no word of the scheduler")
    component = f"pod with {probe.resource}" if probe.resource else "pod without devices"
    if result.node and result.node != spec.kube_node_name:
        yield Finding(
            component, f"it to run on {spec.kube_node_name}", f"it on {result.node}",
            "look for a webhook or a scheduler that takes node affinities off pods",
        )  # fmt: skip
        return
    if result.phase != "Succeeded":
        yield Finding(
            component, "it to run to its end", f"{result.phase}: {result.reason or 'no reason'}",
            "look at the node's kubelet and containerd",
        )  # fmt: skip
        return
    if result.log is None:
        raise NotTested(
            "its log", result.reason, "look at the way from the API server to the kubelet's port",
            ran=True,
        )  # fmt: skip
    try:
        log = parse_log(result.log)
    except ClusterError as error:
        yield Finding(component, "a whole log", str(error), "look at validation_image")
        return
    if probe.kind == "gpu":
        yield from device_seen(component, spec, probe.resource, log, host)
    elif log.gpu_files:
        yield Finding(
            component, "no GPU in a pod that asked for none", ", ".join(log.gpu_files),
            "look at NVIDIA_VISIBLE_DEVICES in the image, and at the runtime's configuration",
        )  # fmt: skip
    if probe.kind == "rdma":
        for device in ("uverbs", "rdma_cm"):
            if not any(device in file for file in log.rdma_files):
                yield Finding(
                    component, f"/dev/infiniband/{device}*", ", ".join(log.rdma_files) or "none",
                    "look at the RDMA device plugin's log",
                )  # fmt: skip
        if log.memlock != "unlimited":
            yield Finding(
                component, "unlimited locked memory", f"{log.memlock} KiB",
                "restart containerd: pods inherit its limit",
            )  # fmt: skip
    elif log.rdma_files:
        yield Finding(
            component, "no RDMA device in a pod that asked for none", ", ".join(log.rdma_files),
            "look at the pod's mounts",
        )  # fmt: skip


def device_seen(
    component: str, spec: NodeSpec, resource: str, log: ProbeLog, host: GpusState
) -> Iterator[Finding]:
    """Exactly one GPU or MIG device, of the asked kind, which the host has too."""
    size = resource.removeprefix("nvidia.com/mig-") if "/mig-" in resource else None
    divided = spec.mig_strategy == "single" and any(gpu.enabled for gpu in mig_layout(spec))
    if size is not None or divided:
        what, seen = "MIG device", log.mig_devices
        there = {(each.profile, each.uuid) for gpu in host.gpus for each in gpu.mig_devices}
    else:
        what, seen = "GPU", None if log.gpus is None else tuple(("", uuid) for uuid in log.gpus)
        # With strategy "none" a GPU is offered whole, divided or not.
        whole = [gpu for gpu in host.gpus if spec.mig_strategy == "none" or not gpu.mig_mode]
        there = {("", gpu.uuid) for gpu in whole}
    if seen is None:
        have = log.nvidia_smi_output.strip().splitlines()[-1:] or ["no output"]
        yield Finding(
            component, "nvidia-smi to list its device",
            f"exit code {log.nvidia_smi_exit}: {have[0]}",
            "look at the default runtime in `containerd config dump`",
        )  # fmt: skip
        return
    if len(seen) != 1:
        yield Finding(
            component, f"exactly one {what}", f"{len(seen)}",
            "look at the device plugin's log and the CDI specification",
        )  # fmt: skip
        return
    ((profile, uuid),) = seen
    if (profile, uuid) not in there or (size is not None and plugins_name(profile) != size):
        yield Finding(
            component, f"a {what} that the host has" + (f", of {size}" if size else ""),
            f"{uuid}{f' of {profile}' if profile else ''}",
            "look at the device plugin's log and the CDI specification",
        )  # fmt: skip
