"""What the hosts of one run know of each other."""

from __future__ import annotations

_identities: dict[tuple[str, str], str] = {}


def claim_identity(kind: str, value: str, node: str) -> str | None:
    """
    Say that *node* has this identity. Returns the node that has claimed it before, if another.

    + kind: as in ``machine-id``
    """
    first = _identities.setdefault((kind, value), node)
    return None if first == node else first
