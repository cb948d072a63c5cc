"""Keys of host data that are not ours: pyinfra's own, a connector's, the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import cache
from typing import Any, get_type_hints

from pyinfra.api.arguments import all_global_arguments
from pyinfra.api.connectors import get_all_connectors
from pyinfra.api.util import raise_if_bad_type

USER_PREFIX = "x_"
"""Keys that start with it belong to whoever wrote the inventory."""

SSH_CONNECTORS = ("ssh", "vagrant", "terraform")
"""Connectors whose hosts are reached over pyinfra's SSH client."""


@cache
def _types() -> dict[str, Any]:
    """Names that pyinfra and its connectors read, and their types, from their declarations."""
    types: dict[str, Any] = {
        name: type_ for name, type_ in all_global_arguments() if name.startswith("_")
    }
    for connector in get_all_connectors().values():
        types |= dict.fromkeys(connector.data_meta, Any) | get_type_hints(connector.data_cls)
    return types


def foreign_keys() -> Set[str]:
    """Names that pyinfra and its installed connectors read."""
    return _types().keys()


def wrong_types(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of pyinfra and its connectors with a value that they refuse, and what they want."""
    for key in data.keys() & foreign_keys():
        type_ = _types()[key]
        if data[key] is None and key.startswith("_"):
            continue  # to pyinfra the same as not given; not so with a connector's
        # To Python a truth is a number; nobody means it so.
        number = isinstance(data[key], bool) and type_ in (int, float)
        try:
            raise_if_bad_type(data[key], type_, TypeError, "")
        except TypeError:
            number = True
        if number:
            yield key, f"a value of type {type_.__name__ if isinstance(type_, type) else type_}"


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
