"""The forms that values of inventory keys may have."""

from __future__ import annotations

import difflib
import ipaddress
import re
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from nodespec import catalogue

# Source: Kubernetes documentation, "Object Names and IDs", DNS Subdomain Names (read 2026-11-30).
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL}(\.{DNS_LABEL})*")

# Source: Kubernetes documentation, "Labels and Selectors", Syntax and character set
# (read 2026-11-30).
QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

# Source: Kubernetes documentation, "Taints and Tolerations" (read 2026-11-30).
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

RESERVED_DOMAINS = ("kubernetes.io", "k8s.io")

# Source: Kubernetes documentation, "Well-Known Labels, Annotations and Taints" (read 2026-11-30).
KUBELET_LABELS = ("kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os")
"""Labels that the kubelet keeps setting itself."""

PLACEHOLDERS = ("id", "version", "distro", "suite", "minor")
"""What a repository's URL may leave open: see ``repository_url``."""

IMAGE = re.compile(
    r"(?P<registry>[a-z0-9.-]+(:[0-9]+)?)/[a-z0-9._/-]+(:(?P<tag>[\w][\w.-]{0,127}))?"
    r"(@sha256:[0-9a-f]{64})?"
)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "did you mean X" for the known word nearest to *word*, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}" if near else ""


def _matches(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=rf"\A(?:{pattern})\z")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("write a number")
    return value


Int = Annotated[int, BeforeValidator(_no_bool)]

DriverVersion = Annotated[str, _matches(r"[1-9][0-9]{2}\.[0-9]{2,3}(\.[0-9]{2})?")]
Version = Annotated[str, _matches(r"[0-9]+\.[0-9]+\.[0-9]+")]
KubeVersion = Annotated[str, _matches(r"1\.[0-9]+\.[0-9]+")]


def _model(
    known: Iterable[catalogue.GpuModel] | Iterable[catalogue.HcaModel],
) -> Callable[[str], str]:
    allowed = [model.name for model in known]

    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(suggestion(value, allowed))
        return value

    return check


GpuModelName = Annotated[str, AfterValidator(_model(catalogue.GPUS))]
HcaModelName = Annotated[str, AfterValidator(_model(catalogue.HCAS))]


def _endpoint(value: str) -> str:
    if "://" in value:
        raise ValueError("leave out the scheme")
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("add the port, as in 10.0.0.1:6443")
    _host(host.removeprefix("[").removesuffix("]") if host.startswith("[") else host)
    return value


def _host(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not DNS_SUBDOMAIN.fullmatch(value):
            raise ValueError("give a host name or an IP address") from None
    return value


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("give one IPv4 or IPv6 address, without a prefix length") from None


Endpoint = Annotated[str, AfterValidator(_endpoint)]
IpAddress = Annotated[str, AfterValidator(_ip)]


def _node_name(value: str) -> str:
    if len(value) > 253 or not DNS_SUBDOMAIN.fullmatch(value):
        raise ValueError(
            "Kubernetes refuses it: rename the host in the inventory or set kube_node_name"
        )
    return value


def _namespace(value: str) -> str:
    if not re.fullmatch(DNS_LABEL, value):
        raise ValueError("Kubernetes refuses it")
    return value


NodeName = Annotated[str, AfterValidator(_node_name)]
Namespace = Annotated[str, AfterValidator(_namespace)]


def _qualified(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if (slash and (len(prefix) > 253 or not DNS_SUBDOMAIN.fullmatch(prefix))) or not (
        QUALIFIED_NAME.fullmatch(name)
    ):
        raise ValueError(f"Kubernetes refuses the key {key!r}")


def _below(domain: str, parents: Iterable[str]) -> bool:
    return any(domain == parent or domain.endswith(f".{parent}") for parent in parents)


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        _qualified(key)
        if not LABEL_VALUE.fullmatch(value):
            raise ValueError(f"Kubernetes refuses the value {value!r} of {key}")
        if key in KUBELET_LABELS:
            raise ValueError(f"the kubelet sets {key} itself")
    return labels


Labels = Annotated[dict[str, str], AfterValidator(_labels)]


def _taint(value: str) -> str:
    name, colon, effect = value.rpartition(":")
    if not colon or effect not in TAINT_EFFECTS:
        raise ValueError(f"end it in :{', :'.join(TAINT_EFFECTS)}")
    key, _, taint_value = name.partition("=")
    _qualified(key)
    if not LABEL_VALUE.fullmatch(taint_value):
        raise ValueError(f"Kubernetes refuses the value {taint_value!r}")
    if key == CLOSED:
        raise ValueError("this one keeps a node closed: it is set and taken off by admission")
    return value


def _taints(values: tuple[str, ...]) -> tuple[str, ...]:
    seen: dict[tuple[str, str], str] = {}
    for value in values:
        name, _, effect = value.rpartition(":")
        # Key and effect are a taint's identity: Kubernetes refuses a second value.
        same = seen.setdefault((name.partition("=")[0], effect), value)
        if same != value:
            raise ValueError(f"{same} and {value} are one taint with two values: keep one")
    return values


CLOSED = "rackwright.io/not-validated"
Taint = Annotated[str, AfterValidator(_taint)]
Taints = Annotated[tuple[Taint, ...], AfterValidator(_taints)]


def _image(value: str) -> str:
    match = IMAGE.fullmatch(value)
    if match is None or not {".", ":"} & set(match["registry"]):
        raise ValueError("write it in full, registry first")
    if match["tag"] == "latest" or (match["tag"] is None and "@" not in value):
        raise ValueError("pin it: a version as the tag, or a digest")
    return value


Image = Annotated[str, AfterValidator(_image)]


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("start it with http:// or https://")
    # A typographic quote or a blank here makes systemd ignore the whole line of the drop-in.
    if not value.isascii() or any(character in " \t\"'" for character in value):
        raise ValueError("leave out blanks and quotes")
    return value


def _template(value: str) -> str:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(value) if name is not None]
    except ValueError:
        raise ValueError("a brace is not closed") from None
    for name in fields:
        if name not in PLACEHOLDERS:
            raise ValueError(f"{{{name}}} is not known; use {', '.join(PLACEHOLDERS)}")
    return _url(value)


Url = Annotated[str, AfterValidator(_url)]
RepositoryUrl = Annotated[str, AfterValidator(_template)]


def repository_url(
    template: str, *, os_id: str, os_version: str, suite: str, kube_version: str
) -> str:
    """
    Fill the placeholders of a repository's URL for one host.

    + os_id: ``ID`` of os-release, as in ``debian``
    + os_version: ``VERSION_ID`` of os-release, as in ``13`` or ``24.04``
    + suite: ``VERSION_CODENAME`` of os-release, as in ``trixie``
    + kube_version: full version of Kubernetes
    """
    return template.format(
        id=os_id,
        version=os_version,
        # NVIDIA's name for a system: debian13, ubuntu2404.
        distro=f"{os_id}{os_version.replace('.', '')}",
        suite=suite,
        minor=".".join(kube_version.split(".")[:2]),
    )


def _fingerprint(value: str) -> str:
    compact = value.replace(" ", "").upper()
    if not re.fullmatch(r"[0-9A-F]{40}", compact):
        raise ValueError("gpg --show-keys prints it; a short key id is not enough")
    return compact


Fingerprint = Annotated[str, AfterValidator(_fingerprint)]


def _mirrors(mirrors: dict[str, str]) -> dict[str, str]:
    for registry, url in mirrors.items():
        if "/" in registry or not re.fullmatch(r"[a-z0-9.-]+(:[0-9]+)?", registry):
            raise ValueError(f"{registry!r} is not a registry's host name")
        _url(url)
    return mirrors


Mirrors = Annotated[dict[str, str], AfterValidator(_mirrors)]


def _local_path(value: Path) -> Path:
    return value.expanduser()


LocalPath = Annotated[Path, AfterValidator(_local_path)]

# Source: Mellanox/k8s-rdma-shared-dev-plugin pkg/resources/resources_manager.go at 410b0f3; an
# extended resource may neither begin nor end with an underscore (Kubernetes, as for labels).
ResourceName = Annotated[str, _matches(r"[A-Za-z0-9]([A-Za-z0-9_]{0,61}[A-Za-z0-9])?")]


def _resource_prefix(value: str) -> str:
    if not DNS_SUBDOMAIN.fullmatch(value) or _below(value, RESERVED_DOMAINS):
        raise ValueError("Kubernetes refuses it as the domain of a resource")
    return value


ResourcePrefix = Annotated[str, AfterValidator(_resource_prefix)]


def _no_proxy(value: str) -> str:
    if not value or not value.isascii() or any(character in value for character in " \t\"',/:"):
        with_prefix = value.partition("/")
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError:
            raise ValueError(
                "one host, .domain, address or network in each entry"
                + (", without a URL" if "://" in value or with_prefix[1] else "")
            ) from None
    return value


NoProxy = Annotated[str, AfterValidator(_no_proxy)]
