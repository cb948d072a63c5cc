"""Pods as users run them: what each must see, and what it must not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from claims.finding import Finding
from claims.resources import expected
from cluster import ClusterError, ProbeResult, Taint
from cluster.probes import bare_probe, gpu_probe, new_run, parse_log, rdma_probe
from nodespec import NodeSpec


@dataclass(frozen=True, slots=True)
class Probe:
    title: str
    kind: str
    resource: str
    manifest: dict[str, Any]


class NotTested(Exception):
    """The pod found no room: it has neither passed nor failed. The message is the scheduler's."""


def probes(spec: NodeSpec, run: str | None = None) -> list[Probe]:
    """
    One pod per kind: a GPU or one MIG device, an RDMA share, and one that asks for neither.

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
    gpus = sorted(name for name in offered if name.startswith("nvidia.com/"))
    if gpus:
        manifest = gpu_probe(node, resource=gpus[0], **common)
        found.append(Probe(f"a pod with one {gpus[0]}", "gpu", gpus[0], manifest))
    rdma = [name for name in offered if name.startswith(f"{spec.rdma_resource_prefix}/")]
    if rdma:
        manifest = rdma_probe(node, resource=rdma[0], **common)
        found.append(Probe(f"a pod with one {rdma[0]}", "rdma", rdma[0], manifest))
    return found


def judge(spec: NodeSpec, probe: Probe, result: ProbeResult) -> Iterator[Finding]:
    """What is wrong with what the pod saw. Raises ``NotTested`` if it was never started."""
    if not result.scheduled:
        raise NotTested(result.reason or "no word of the scheduler")
    component = f"pod with {probe.resource}" if probe.resource else "pod without devices"
    if result.phase != "Succeeded":
        yield Finding(
            component, "it to run to its end", f"{result.phase}: {result.reason or 'no reason'}",
            "look at the node's kubelet and containerd",
        )  # fmt: skip
        return
    try:
        log = parse_log(result.log)
    except ClusterError as error:
        yield Finding(component, "a whole log", str(error), "look at validation_image")
        return
    if probe.kind == "gpu":
        mig = probe.resource.startswith("nvidia.com/mig-") or (
            spec.mig_strategy == "single" and spec.mig_config != "all-disabled"
        )
        seen = log.mig_devices if mig else log.gpus
        what = "MIG device" if mig else "GPU"
        if seen is None:
            have = log.nvidia_smi_output.strip().splitlines()[-1:] or ["no output"]
            yield Finding(
                component, "nvidia-smi to list its device",
                f"exit code {log.nvidia_smi_exit}: {have[0]}",
                "look at the default runtime in `containerd config dump`",
            )  # fmt: skip
        elif len(seen) != 1:
            yield Finding(
                component, f"exactly one {what}", f"{len(seen)}",
                "look at the device plugin's log and the CDI specification",
            )  # fmt: skip
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
