"""The files on this machine that an inventory names: there, and what they should be?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from nodespec.foreign import over_ssh
from nodespec.model import NodeSpec
from nodespec.problems import HostProblem, Problem


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
            if data.get(key):
                yield key, Path(data[key]).expanduser()


def _kubeconfig(content: bytes) -> str | None:
    try:
        config = yaml.safe_load(content)
    except yaml.YAMLError:
        return "no YAML"
    return None if isinstance(config, dict) and config.get("clusters") else "no clusters in it"


def _certificates(content: bytes) -> str | None:
    try:
        x509.load_pem_x509_certificates(content)
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


def _look(key: str, path: Path) -> Problem | None:
    want, wrong, todo = CONTENT.get(key, OTHER)
    try:
        said = wrong(path.read_bytes())
    except FileNotFoundError:
        return Problem(key, want, f"no file {path}", todo)
    except OSError as error:
        return Problem(key, want, f"{path}, which cannot be read ({error.strerror})", todo)
    return Problem(key, want, f"{path} with {said}", todo) if said else None
