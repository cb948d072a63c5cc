"""The files on this machine that an inventory names: there, and what they should be?"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from nodespec.foreign import over_ssh
from nodespec.model import NodeSpec
from nodespec.problems import HostProblem, Problem, show


def missing(
    specs: Mapping[str, NodeSpec], data: Mapping[str, Mapping[str, Any]]
) -> list[HostProblem]:
    """Return a problem for each file that is not there, each file looked at once."""
    hosts: dict[tuple[str, Path], list[str]] = defaultdict(list)
    for host, values in data.items():
        for key, path in _named(specs.get(host), host, values):
            hosts[key, path].append(host)
    return [
        HostProblem(tuple(those), problem)
        for (key, path), those in hosts.items()
        if (problem := _look(key, path)) is not None
    ]


def _named(spec: NodeSpec | None, host: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    if spec is not None:
        yield "kube_kubeconfig", spec.kube_kubeconfig
        for path in spec.ca_certificates:
            yield "ca_certificates", path
    if over_ssh(host):
        for key in ("ssh_key", "ssh_known_hosts_file", "ssh_config_file"):
            # What is no string is told by its type.
            if data.get(key) and isinstance(data[key], str):
                yield key, Path(os.path.expanduser(data[key]))


def _kubeconfig(content: bytes) -> str | None:
    """
    Return what keeps *content* from being a kubeconfig.

    Source: Kubernetes documentation, "kubeconfig (v1)" (read 2026-11-30).
    """
    try:
        config = yaml.safe_load(content)
    # Not YAML's errors alone: 2026-99-99 is no date, and a thousand brackets are too deep.
    except (yaml.YAMLError, ValueError, RecursionError):
        return "no YAML"
    if not isinstance(config, dict):
        return "no kubeconfig in it"
    context = _entry(config, "contexts", config.get("current-context"))
    if context is None:
        return "no context that current-context names"
    cluster = _entry(config, "clusters", context.get("cluster"))
    if cluster is None or not isinstance(cluster.get("server"), str):
        return "no cluster with a server that its current context names"
    if _entry(config, "users", context.get("user")) is None:
        return "no user that its current context names"
    if not cluster.get("certificate-authority-data") and not cluster.get("certificate-authority"):
        return "no certificate authority, which new nodes are told to trust"
    return None


def _entry(config: dict[str, Any], kind: str, name: Any) -> dict[str, Any] | None:
    """Return the contents of the entry *name*: ``users: [{name: a, user: {...}}]``."""
    entries = config.get(kind)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and name is not None and entry.get("name") == name:
            found = entry.get(kind.removesuffix("s"))
            return found if isinstance(found, dict) else None
    return None


def _certificates(content: bytes) -> str | None:
    if b"PRIVATE KEY-----" in content:
        return "a private key in it, which would go to every host"
    try:
        x509.load_pem_x509_certificates(content)
        content.decode()
    except ValueError:
        return "no PEM certificate in it"
    return None


CONTENT: dict[str, tuple[str, Callable[[bytes], str | None], str]] = {
    "kube_kubeconfig": (
        "a kubeconfig on this machine",
        _kubeconfig,
        "docs/cluster-access.md says how to make one of least rights",
    ),
    "ca_certificates": ("a PEM file on this machine", _certificates, "correct the path"),
}
OTHER = ("a file on this machine", lambda _: None, "correct the path or make the file")

BYTES_MAX = 4 << 20
"""More than any of these files has; a device or an image has more."""


def _look(key: str, path: Path) -> Problem | None:
    want, wrong, todo = CONTENT.get(key, OTHER)
    try:
        # Nothing else is opened: a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            said = "a directory" if path.is_dir() else "no regular file"
            return Problem(key, want, f"{show(path)}, which is {said}", todo)
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return Problem(key, want, f"no file {show(path)}", todo)
    except OSError as error:
        have = f"{show(path)}, which cannot be read ({error.strerror})"
        return Problem(key, want, have, todo)
    except ValueError:  # a NUL in it
        return Problem(key, want, f"no file {show(path)}", todo)
    found = "more than 4 MiB in it" if len(content) > BYTES_MAX else wrong(content)
    return Problem(key, want, f"{show(path)} with {found}", todo) if found else None
