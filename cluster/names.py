"""Names and labels of ours in the cluster."""

from __future__ import annotations

import hashlib
from typing import Final

FIELD_MANAGER: Final = "rackwright"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "rackwright"}
NODE_LABEL: Final = "rackwright.io/node"
"""On what belongs to one node: join tokens, probe pods."""
PROBE_LABEL: Final = "rackwright.io/probe"
RUN_LABEL: Final = "rackwright.io/run"
"""On probe pods: whose they are."""
NAMESPACE: Final = "rackwright"


def label_value(name: str) -> str:
    """*name* as a label's value: node names may be four times as long as those."""
    if len(name) <= 63:
        return name
    return f"{name[:46].rstrip('.-')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
