"""Pods that see a node as its users will, and what their logs say."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from cluster.api import Json
from cluster.errors import ClusterError
from cluster.manifests import TEMPLATES
from cluster.names import MANAGED_BY, NAMESPACE, NODE_LABEL, PROBE_LABEL, RUN_LABEL, label_value
from cluster.nodes import CLOSED_TAINT, Taint

SCRIPT: Final = TEMPLATES / "probe.sh"

DEADLINE_S: Final = 600
"""A probe whose run was killed ends by itself after that, and gives its GPU back."""

# What the scheduler and the node controller put on a node that is cordoned or new; and NVIDIA's
# usual one.
TOLERATED: Final = (
    {"key": CLOSED_TAINT.key, "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
)

Kind = Literal["gpu", "rdma", "bare"]


def new_run() -> str:
    """A name for one run of probes: those of two runs at once do not meet."""
    return secrets.token_hex(4)


def gpu_probe(
    node: str,
    *,
    image: str,
    run: str,
    resource: str = "nvidia.com/gpu",
    namespace: str = NAMESPACE,
    taints: Iterable[Taint] = (),
) -> Json:
    """
    A pod that asks for one GPU or MIG device of *node*.

    + resource: as in ``nvidia.com/gpu`` or ``nvidia.com/mig-1g.10gb``
    + taints: of the node, to be tolerated beside ours and ``nvidia.com/gpu``
    """
    return _pod("gpu", node, image, run, namespace, taints, resource)


def rdma_probe(
    node: str,
    *,
    image: str,
    run: str,
    resource: str,
    namespace: str = NAMESPACE,
    taints: Iterable[Taint] = (),
) -> Json:
    """A pod that asks for one share of the RDMA devices of *node*, as in ``rdma/hca_shared``."""
    pod = _pod("rdma", node, image, run, namespace, taints, resource)
    # What the RDMA plugin's users need to register memory.
    # Source: github.com/Mellanox/k8s-rdma-shared-dev-plugin, README.md, example pods (read
    # 2026-11-30)
    pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
    return pod


def bare_probe(
    node: str,
    *,
    image: str,
    run: str,
    namespace: str = NAMESPACE,
    taints: Iterable[Taint] = (),
) -> Json:
    """A pod that asks for nothing, and must see nothing."""
    return _pod("bare", node, image, run, namespace, taints, None)


def _pod(
    kind: Kind,
    node: str,
    image: str,
    run: str,
    namespace: str,
    taints: Iterable[Taint],
    resource: str | None,
) -> Json:
    here = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        ]
    }
    amounts = {} if resource is None else {resource: "1"}
    tolerations: list[dict[str, str]] = [dict(entry) for entry in TOLERATED]
    for taint in taints:
        entry = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        tolerations.append(entry)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _name(kind, node, run, resource),
            "namespace": namespace,
            "labels": {
                **MANAGED_BY,
                PROBE_LABEL: kind,
                NODE_LABEL: label_value(node),
                RUN_LABEL: run,
            },
        },
        "spec": {
            # Not spec.nodeName: whether the scheduler would place a user's pod there is part of the
            # question. Not the hostname label: it need not be the node's name.
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": here}},
            "tolerations": tolerations,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", SCRIPT.read_text()],
                    "resources": {"limits": dict(amounts), "requests": dict(amounts)},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def _name(kind: Kind, node: str, run: str, resource: str | None) -> str:
    """
    Unique per kind, node, run and resource, readable, and short enough to be the pod's host name
    too.
    """
    digest = hashlib.sha256(f"{node} {resource}".encode()).hexdigest()[:6]
    return f"probe-{kind}-{node.replace('.', '-')[:30].rstrip('-')}-{digest}-{run}"


@dataclass(frozen=True, slots=True)
class ProbeLog:
    """What a probe saw."""

    gpus: tuple[str, ...] | None
    """UUIDs that ``nvidia-smi -L`` lists; ``None`` if it could not be run or did not list them."""
    mig_devices: tuple[tuple[str, str], ...] | None
    """Profile and UUID, as in ``("1g.10gb", "MIG-...")``; ``None`` as for *gpus*."""
    nvidia_smi_exit: int
    """127: there is none in the container, as it should be in a pod that asked for no GPU."""
    nvidia_smi_output: str
    visible: str
    """The container's ``NVIDIA_VISIBLE_DEVICES``."""
    gpu_files: tuple[str, ...]
    """Files ``/dev/nvidia*`` and ``/dev/nvidia-caps/*``."""
    rdma_files: tuple[str, ...]
    """Files ``/dev/infiniband/*``."""
    memlock: str
    """Limit of locked memory, ``unlimited`` or in KiB."""

    @property
    def gpu_count(self) -> int:
        """GPUs whose device file is there, whatever nvidia-smi says."""
        return sum(bool(re.fullmatch(r"/dev/nvidia\d+", file)) for file in self.gpu_files)


# GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
GPU_LINE: Final = re.compile(r"^GPU \d+: .* \(UUID: (GPU-[^)]+)\)$")
#   MIG 1g.10gb     Device  0: (UUID: MIG-fcba4ed5-0bb3-5db6-b2a4-c3ba6d0c3ba9)
MIG_LINE: Final = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)$")

SECTIONS: Final = (
    "visible",
    "nvidia-smi",
    "nvidia-smi-exit",
    "gpu-files",
    "rdma-files",
    "memlock",
    "end",
)


def parse_log(log: str) -> ProbeLog:
    """Read a probe's log. Raises :class:`ClusterError` if it is not complete."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in log.splitlines():
        if line.startswith("## "):
            current = sections.setdefault(line[3:].strip(), [])
        elif line.strip():
            current.append(line.rstrip())
    if missing := [name for name in SECTIONS if name not in sections]:
        raise ClusterError(
            f"probe: want a complete log, have none of {', '.join(missing)} in {log[-200:]!r}; "
            "look at the pod's image: it needs a POSIX shell"
        )
    exits = "".join(sections["nvidia-smi-exit"])
    if not exits.isdigit():
        raise ClusterError(
            f"probe: want an exit code of nvidia-smi, have {exits!r}; "
            "look at the pod's image: it needs a POSIX shell"
        )
    output = sections["nvidia-smi"]
    listed = int(exits) == 0
    return ProbeLog(
        gpus=tuple(m[1] for line in output if (m := GPU_LINE.match(line))) if listed else None,
        mig_devices=(
            tuple((m[1], m[2]) for line in output if (m := MIG_LINE.match(line)))
            if listed
            else None
        ),
        nvidia_smi_exit=int(exits),
        nvidia_smi_output="\n".join(output),
        visible="".join(sections["visible"]),
        gpu_files=tuple(sections["gpu-files"]),
        rdma_files=tuple(sections["rdma-files"]),
        memlock="".join(sections["memlock"]).strip(),
    )
