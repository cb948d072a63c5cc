"""What is asked of the Kubernetes API from the operator's machine. Knows nothing of pyinfra."""

from cluster.cluster import Cluster
from cluster.errors import ClusterError, Conflict, NotFound
from cluster.names import FIELD_MANAGER, NAMESPACE, NODE_LABEL, PROBE_LABEL, RUN_LABEL
from cluster.nodes import (
    CLOSED_TAINT,
    PASSED,
    VALIDATED_CONDITION,
    Condition,
    NodeState,
    Taint,
    node_state,
)
from cluster.pods import PodState, in_service, pod_state
from cluster.probing import ProbeResult
from cluster.tokens import JoinToken

__all__ = [
    "CLOSED_TAINT",
    "FIELD_MANAGER",
    "NAMESPACE",
    "NODE_LABEL",
    "PASSED",
    "PROBE_LABEL",
    "RUN_LABEL",
    "VALIDATED_CONDITION",
    "Cluster",
    "ClusterError",
    "Condition",
    "Conflict",
    "JoinToken",
    "NodeState",
    "NotFound",
    "PodState",
    "ProbeResult",
    "Taint",
    "in_service",
    "node_state",
    "pod_state",
]
