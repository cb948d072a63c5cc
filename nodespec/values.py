"""The forms that values of inventory keys may have."""

from __future__ import annotations

import difflib
import ipaddress
import re
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Strict, StringConstraints

from nodespec import catalogue, drivers

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

OUR_DOMAIN = "rackwright.io"
OUR_LABELS = ("nvidia.com/gpu.present",)
"""Labels outside our domain that say where the device plugins run."""

PLACEHOLDERS = ("id", "version", "distro", "suite", "minor")
"""What a repository's URL may leave open: see ``repository_url``."""

# Source: distribution/reference reference.go and regexp.go at v0.6.0: domain, path, tag, digest.
IMAGE = re.compile(
    r"(?P<registry>[^/]+)"
    r"(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(@sha256:[0-9a-f]{64})?"
)

URL_CHARACTERS = re.compile(r"([A-Za-z0-9._~:/?#\[\]@+,=-]|%[0-9A-Fa-f]{2})+")
"""
Of those of RFC 3986 the ones that mean nothing to a shell, systemd, apt or TOML, in whose files
URLs end. Any other character of a name or a password can be written as ``%XX``.
"""

PORT = re.compile(r"[1-9][0-9]{0,4}")


WORD_WIDTH = 60


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "did you mean X" for the known words nearest to *word*, or nothing."""
    # It takes seconds to find that a word as long as a letter is no other word.
    word, known = word[:WORD_WIDTH], list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    # A name cut short means one of those that begin so, and never another: A100 is no A10.
    longer = [name for name in known if word and name.lower().startswith(word.lower())]
    if longer and not set(near) & set(longer):
        near = longer[:3]
    return f"did you mean {' or '.join(near)}" if near else ""


def _matches(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=rf"\A(?:{pattern})\z")


T = TypeVar("T")


def _list(value: Any) -> Any:
    # Of a set the order changes from run to run, and with it the files that are made from it.
    if not isinstance(value, list | tuple):
        raise ValueError("write a list, [...]")
    return value


def exactly(type_: type) -> BeforeValidator:
    """For choices: 1 is no True and 200.0 no 200, though Python says that they are equal."""

    def check(value: Any) -> Any:
        if value is not None and type(value) is not type_:
            raise ValueError
        return value

    return BeforeValidator(check)


# What Python takes for a number or a truth (True, "8", 8.0, "yes", 1) mostly is something else that
# was mistyped: only the thing itself is accepted.
Int = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
List = Annotated[tuple[T, ...], BeforeValidator(_list)]

DriverVersion = Annotated[Text, _matches(r"[1-9][0-9]{2}\.[0-9]{2,3}(\.[0-9]{2})?")]
Version = Annotated[Text, _matches(r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}")]
KubeVersion = Annotated[Text, _matches(r"1\.[0-9]{1,3}\.[0-9]{1,3}")]
LayoutName = Annotated[Text, _matches(r"[A-Za-z0-9]([A-Za-z0-9._+-]{0,61}[A-Za-z0-9])?")]
ProfileName = Annotated[Text, _matches(r"[0-9a-z][0-9a-z.+-]{0,30}")]


def _one_of(known: Iterable[str]) -> Callable[[str], str]:
    allowed = list(known)

    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(suggestion(value, allowed))
        return value

    return check


GpuModelName = Annotated[Text, AfterValidator(_one_of(model.name for model in catalogue.GPUS))]
HcaModelName = Annotated[Text, AfterValidator(_one_of(model.name for model in catalogue.HCAS))]
CudaVersion = Annotated[Text, AfterValidator(_one_of(drivers.DRIVER_MIN_BY_CUDA))]


def _endpoint(value: str) -> str:
    if "://" in value:
        raise ValueError("leave out the scheme")
    host, colon, port = value.rpartition(":")
    if not colon or value.endswith("]"):
        raise ValueError("add the port, as in 10.0.0.1:6443")
    _bracketed(host)
    _port(port)
    # One address can be written in many ways, and hosts of one cluster are told by this.
    return f"[{_ip(host[1:-1])}]:{port}" if host.startswith("[") else value


def _bracketed(host: str) -> None:
    """Check a host as it stands before a port: an IPv6 address is in brackets there."""
    if host.startswith("[") and host.endswith("]") and ":" in host:
        _host(host[1:-1])
    elif _is_ipv6(host):
        raise ValueError("write an IPv6 address in brackets, as in [fd00::1]:6443")
    else:
        _host(host)


def _is_ipv6(value: str) -> bool:
    try:
        return ipaddress.ip_address(value).version == 6
    except ValueError:
        return False


def _port(value: str) -> None:
    if not PORT.fullmatch(value) or int(value) > 65535:
        raise ValueError("a port is a number from 1 to 65535")


def _host(value: str) -> None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        if not DNS_SUBDOMAIN.fullmatch(value) or len(value) > 253:
            if DNS_SUBDOMAIN.fullmatch(value.lower()):
                raise ValueError("write the host's name in lower case") from None
            raise ValueError("give a host name or an IP address") from None
        # No host's name ends so, but mistyped addresses do: 10.0.0.256, 10.0.0.
        if value.rpartition(".")[2].isdecimal():
            raise ValueError("an IPv4 address is four numbers from 0 to 255") from None
    else:
        _no_zone(address)


def _no_zone(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    # A zone may hold any character, and means another interface on each host.
    if getattr(address, "scope_id", None) is not None:
        raise ValueError("leave out the zone (%...)")


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("give one IPv4 or IPv6 address, without a prefix length") from None


def _node_ip(value: str) -> str:
    address = ipaddress.ip_address(_ip(value))
    _no_zone(address)
    # Source: Kubernetes pkg/kubelet/kubelet_node_status.go validateNodeIP at v1.36.3.
    for what, refused in (
        ("a loopback address", address.is_loopback),
        ("a multicast address", address.is_multicast),
        ("a link-local address", address.is_link_local),
        ("the unspecified address", address.is_unspecified),
    ):
        if refused:
            raise ValueError(f"the kubelet refuses {what}: give one that other nodes reach")
    return str(address)


Endpoint = Annotated[Text, AfterValidator(_endpoint)]
NodeIp = Annotated[Text, AfterValidator(_node_ip)]


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


NodeName = Annotated[Text, AfterValidator(_node_name)]
Namespace = Annotated[Text, AfterValidator(_namespace)]


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
        if key in OUR_LABELS or _below(key.rpartition("/")[0], (OUR_DOMAIN,)):
            raise ValueError(f"Rackwright sets {key} itself")
    return labels


Labels = Annotated[dict[Text, Text], AfterValidator(_labels)]


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
Taint = Annotated[Text, AfterValidator(_taint)]
Taints = Annotated[List[Taint], AfterValidator(_taints)]


def _registry(value: str) -> None:
    host, colon, port = value.rpartition(":")
    if not colon or value.endswith("]"):
        host = value
    else:
        _port(port)
    if host.startswith("["):
        _bracketed(host)
    else:
        _host(host)


def _image(value: str) -> str:
    match = IMAGE.fullmatch(value)
    if match is None or len(value) > 400 or not {".", ":"} & set(match["registry"]):
        raise ValueError("write it in full, registry first")
    _registry(match["registry"])
    if match["tag"] == "latest" or (match["tag"] is None and "@" not in value):
        raise ValueError("pin it: a version as the tag, or a digest")
    return value


Image = Annotated[Text, AfterValidator(_image)]


URL_LENGTH_MAX = 2000
URL_FORM = "write it as http://host:port; in a password, @ is %40 and / is %2F"


def _parsed(value: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        port = None
        parts = urlsplit("")
    if not value.startswith(("http://", "https://")):
        raise ValueError("start it with http:// or https://")
    if len(value) > URL_LENGTH_MAX:
        raise ValueError(f"keep it below {URL_LENGTH_MAX} characters")
    if not URL_CHARACTERS.fullmatch(value):
        raise ValueError(
            "leave out blanks, quotes and the like; in a name or password write them as %XX"
        )
    if not parts.hostname or port == 0 or parts.netloc.count("@") > 1:
        raise ValueError(URL_FORM)
    if parts.netloc.endswith(":"):
        raise ValueError("add the port, or leave out the colon")
    _host(parts.hostname)
    return parts


def _proxy(value: str) -> str:
    parts = _parsed(value)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(URL_FORM)
    return value


def _url(value: str) -> str:
    _parsed(value)
    if "@" in value:
        raise ValueError("leave out name and password: they would stand where all can read them")
    return value


def _template(value: str) -> str:
    try:
        parsed = list(string.Formatter().parse(value))
    except ValueError:
        raise ValueError("a brace is not closed") from None
    for _, name, form, conversion in parsed:
        if name is None:
            continue
        if name not in PLACEHOLDERS or form or conversion:
            written = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise ValueError(f"{{{written}}} is not known; use {', '.join(PLACEHOLDERS)}")
    _url(
        repository_url(
            value, os_id="debian", os_version="13", suite="trixie", kube_version="1.36.3"
        )
    )
    return value


ProxyUrl = Annotated[Text, AfterValidator(_proxy)]
RepositoryUrl = Annotated[Text, AfterValidator(_template)]


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


Fingerprint = Annotated[Text, AfterValidator(_fingerprint)]


def _mirrors(mirrors: dict[str, str]) -> dict[str, str]:
    for registry, url in mirrors.items():
        try:
            _registry(registry)
        except ValueError as error:
            raise ValueError(f"{registry!r} is not a registry's host name: {error}") from None
        try:
            _url(url)
        except ValueError as error:
            raise ValueError(f"for {registry}: {error}") from None
    return mirrors


Mirrors = Annotated[dict[Text, Text], AfterValidator(_mirrors)]


def _local_path(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("write it as a string")
    if not str(value).isprintable() or not str(value).strip() or value == Path():
        raise ValueError("give the path of a file, not what is in it")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no user {str(value).partition('/')[0][1:]} here") from None


LocalPath = Annotated[Path, BeforeValidator(_local_path)]

# Source: Mellanox/k8s-rdma-shared-dev-plugin pkg/resources/resources_manager.go at 410b0f3; an
# extended resource may neither begin nor end with an underscore (Kubernetes, as for labels).
ResourceName = Annotated[Text, _matches(r"[A-Za-z0-9]([A-Za-z0-9_]{0,61}[A-Za-z0-9])?")]


def _resource_prefix(value: str) -> str:
    if not DNS_SUBDOMAIN.fullmatch(value) or len(value) > 253 or _below(value, RESERVED_DOMAINS):
        raise ValueError("Kubernetes refuses it as the domain of a resource")
    if value == "nvidia.com":
        raise ValueError("the GPUs' resources are counted under it")
    return value


ResourcePrefix = Annotated[Text, AfterValidator(_resource_prefix)]


def _no_proxy(value: str) -> str:
    try:
        if "/" in value:
            ipaddress.ip_network(value, strict=False)
        else:
            _host(value.removeprefix("."))
    except ValueError:
        raise ValueError(
            "one host, .domain, address or network in each entry"
            + (", without a URL" if "://" in value else "")
        ) from None
    return value


NoProxy = Annotated[Text, AfterValidator(_no_proxy)]
