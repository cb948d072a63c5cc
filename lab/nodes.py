"""What the lab's cluster has, for people: its nodes, what they offer, and what to try next."""

from __future__ import annotations

from typing import Any

from kubernetes import client, config
from rich.console import Console
from rich.table import Table

from lab.errors import LabError
from lab.paths import KUBECONFIG_ADMIN, KUBECTL

DEVICES = ("nvidia.com/", "rdma/")

NEXT = """What to try next, from this folder (it is the lab: simulated GPUs, real Kubernetes):

  . .venv/bin/activate
  export KUBECONFIG={kubeconfig} PATH={bin}:$PATH
  kubectl get nodes -o wide
  kubectl describe node gpu01         # taints, condition RackwrightValidated
  kubectl apply -f lab/gpu-pod.yaml   # a user's pod with one GPU; then: kubectl logs gpu-pod
  python -m lab ssh gpu01 -- nvidia-smi -L
  pyinfra -y inventories/lab.py deploys/gpu_node.py   # a second run changes nothing
  python -m lab fault gpu02 gpu-missing on        # then run again: gpu02 is closed, gpu01 goes on
  python -m lab fault gpu02 gpu-missing off       # ... and again: gpu02 is open again
  python -m lab reset                             # two bare guests again
"""


def show(console: Console) -> None:
    """Print the nodes, and commands for what comes next."""
    if not KUBECONFIG_ADMIN.exists():
        raise LabError("nodes: want a control plane, have none; run `python -m lab up`")
    # The generated models make every field optional; these are answers of a real API server.
    config.load_kube_config(str(KUBECONFIG_ADMIN))  # type: ignore[no-untyped-call]
    api: Any = client.CoreV1Api()
    table = Table(title="Nodes of the lab", title_justify="left")
    for heading in ("node", "Ready", "validated", "taints", "offers"):
        table.add_column(heading, overflow="fold")
    for node in api.list_node().items:
        conditions = {condition.type: condition for condition in node.status.conditions}
        validated = conditions.get("RackwrightValidated")
        table.add_row(
            node.metadata.name,
            conditions["Ready"].status if "Ready" in conditions else "Unknown",
            validated.status if validated else "no",
            "\n".join(f"{taint.key}:{taint.effect}" for taint in node.spec.taints or []),
            "\n".join(
                f"{name}: {count}"
                for name, count in sorted(node.status.allocatable.items())
                if name.startswith(DEVICES)
            ),
        )
    console.print(table)
    console.print(
        NEXT.format(kubeconfig=KUBECONFIG_ADMIN, bin=KUBECTL.parent),
        highlight=False,
        soft_wrap=True,
    )
