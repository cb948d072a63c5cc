"""Keys of host data that are not ours: pyinfra's own, a connector's, the user's."""

from __future__ import annotations

from functools import cache
from typing import get_type_hints

from pyinfra.api.arguments import all_global_arguments
from pyinfra.api.connectors import get_all_connectors

USER_PREFIX = "x_"
"""Keys that start with it belong to whoever wrote the inventory."""

SSH_CONNECTORS = ("ssh", "vagrant", "terraform")
"""Connectors whose hosts are reached over pyinfra's SSH client."""


@cache
def foreign_keys() -> frozenset[str]:
    """Names that pyinfra and its installed connectors read, from their own declarations."""
    connectors = get_all_connectors().values()
    return frozenset(name for name, _ in all_global_arguments() if name.startswith("_")).union(
        *(get_type_hints(connector.data_cls) for connector in connectors),
        *(connector.data_meta for connector in connectors),
    )


def foreign(key: str) -> bool:
    """Tell whether *key* is somebody else's business."""
    return key.startswith(USER_PREFIX) or key in foreign_keys()


def over_ssh(host: str) -> bool:
    """Tell from its name in the inventory whether a host is reached over SSH."""
    if not host.startswith("@"):
        return True
    return host[1:].partition("/")[0] in SSH_CONNECTORS


def bare_name(host: str) -> str:
    """Return the name of a host without its connector: ``gpu01`` of ``@vagrant/gpu01``."""
    return host.partition("/")[2] or host if host.startswith("@") else host
