"""A site that has IPv6 only: what is asked, read, written and told there."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import nodespec
from deploys.phases import base
from facts.network import ApiServer, ApiServerState
from facts.repositories import AptSource, parse_sources
from nodespec import reading
from operations import containerd, kubeadm, repositories
from operations.causes import sentence
from tests.support import good, relays
from tests.support.machine import spec

GOOD = {**good.GOOD, "kube_kubeconfig": "/nonexistent"}


def told(**values: Any) -> list[str]:
    """What is wrong with a host's data, in sentences."""
    _, problems = reading.read(nodespec.NodeSpec, "gpu01", GOOD | values)
    return [f"{problem.key}: {problem.todo}" for problem in problems]


@pytest.mark.parametrize(
    ("key", "value", "todo"),
    [
        ("ssh_hostname", "[fd00::11]", "correct it; a port goes into ssh_port"),
        ("ssh_hostname", "[fd00::11]:22", "correct it; a port goes into ssh_port"),
        ("ssh_hostname", "-oProxyCommand=x", "correct it; a port goes into ssh_port"),
        ("kube_api_server", "[fd00::1]", "add the port, as in 10.0.0.1:6443"),
        ("kube_api_server", "[fe80::1%eth0]:6443", "leave out the zone (%...)"),
        ("kube_node_ip", "[fd00::11]", "give one IPv4 or IPv6 address, without a prefix length"),
        (
            "kube_node_ip", "fe80::11",
            "the kubelet refuses a link-local address: give one that other nodes reach",
        ),
    ],
)  # fmt: skip
def test_an_address_in_the_wrong_form_is_told(key: str, value: str, todo: str) -> None:
    assert told(**{key: value}) == [f"{key}: {todo}"]


def test_an_address_in_the_right_form_is_taken() -> None:
    for name in ("fd00::11", "::1", "fe80::1%eth0", "10.0.0.11", "gpu01.example.com"):
        assert told(ssh_hostname=name) == []


def test_addresses_are_compared_as_addresses_however_they_are_written() -> None:
    two = {"gpu01": GOOD | {"kube_node_ip": "fd00::11"}, "gpu02": dict(GOOD)}
    two["gpu02"] |= {"kube_node_ip": "FD00:0:0::11"}
    problems = nodespec.read_all(two, local_files=False)[1]
    assert [found.problem.key for found in problems] == ["kube_node_ip"]
    for host, written in zip(two, ("[fd00::1]:6443", "[FD00:0::0001]:6443"), strict=True):
        two[host] |= {"kube_api_server": written, "kube_node_ip": f"fd00::{host[-1]}"}
    specs, problems = nodespec.read_all(two, local_files=False)
    assert problems == []
    assert {spec.kube_api_server for spec in specs.values()} == {"[fd00::1]:6443"}


SITE = {
    "kube_api_server": "[fd00::1]:6443",
    "kube_node_ip": "fd00::11",
    "docker_repository_url": "http://[fd00::6]:8080/docker/linux/{id}",
}


def test_kubeadm_is_told_the_endpoint_in_brackets_and_the_node_address_without() -> None:
    config = yaml.safe_load(kubeadm.join_configuration(spec(**SITE), "abcdef.0", "sha256:0"))
    assert config["discovery"]["bootstrapToken"]["apiServerEndpoint"] == "[fd00::1]:6443"
    arguments = config["nodeRegistration"]["kubeletExtraArgs"]
    assert arguments == [{"name": "node-ip", "value": "fd00::11"}]


@pytest.mark.parametrize(
    ("changes", "forwards"),
    [
        ({}, False),
        ({"kube_api_server": "[fd00::1]:6443"}, True),
        ({"kube_node_ip": "fd00::11"}, True),
        ({"kube_api_server": "api.example.com:6443", "kube_node_ip": "10.0.0.11"}, False),
    ],
)
def test_kubeadm_finds_ipv6_forwarding_where_it_looks_for_it(
    changes: dict[str, Any], forwards: bool
) -> None:
    assert ("net.ipv6.conf.default.forwarding" in base.sysctls(spec(**changes))) == forwards


ASKED = ["fd00::6", "fd00:1::6", "10.0.0.6", "mirror.example.com", "mirror.example.org"]


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        (["fd00::3"], ["fd00::3"]),
        (["fd00::/64"], ["fd00::6"]),
        (["fd00::/16", "10.0.0.0/8"], ["fd00::6", "fd00:1::6", "10.0.0.6"]),
        (["FD00:0::6"], ["FD00:0::6", "fd00::6"]),
        ([".example.com"], ["mirror.example.com"]),
        (["Example.com"], ["Example.com", "mirror.example.com"]),
        (["ample.com"], ["ample.com"]),
        (["::1", "127.0.0.1", ".svc"], ["127.0.0.1"]),
    ],
)
def test_apt_reaches_without_the_proxy_what_no_proxy_says(
    no_proxy: list[str], direct: list[str]
) -> None:
    assert base.direct_hosts(no_proxy, ASKED) == direct


def test_apts_configuration_has_the_address_without_brackets() -> None:
    """With them apt 2.6 and 3.0 go through the proxy."""
    text = base.proxy_text("http://[fd00::2]:3128", None, ["fd00::6"])
    assert text is not None
    assert 'Acquire::http::Proxy "http://[fd00::2]:3128";' in text
    assert 'Acquire::https::Proxy::fd00::6 "DIRECT";' in text


def test_a_source_that_is_written_is_found_again() -> None:
    url = "http://[fd00::6]:8080/docker/linux/debian"
    wanted = repositories.Repository(
        "docker", url, ("trixie",), "stable", "amd64", None, None, "/etc/apt/keyrings/x.asc"
    )
    lines = [f"/x.sources\t{line}" for line in wanted.text.splitlines()]
    one_line = f"/etc/apt/sources.list\tdeb [arch=amd64] {url} trixie stable"
    found = parse_sources([*lines, one_line, "## end"])
    assert found == (
        AptSource("/x.sources", url, "trixie", ("stable",)),
        AptSource("/etc/apt/sources.list", url, "trixie", ("stable",)),
    )
    assert repositories.duplicates(wanted, found, "/x.sources") == {"/etc/apt/sources.list": True}


def test_a_registrys_mirror_is_where_containerd_looks_for_it() -> None:
    """
    In the folder of the name as it stands in the image's, which containerd tries second.

    Source: containerd core/remotes/docker/config/config_unix.go at v2.4.2.
    """
    assert containerd.hosts_path("[fd00::5]:5000").endswith("/certs.d/[fd00::5]:5000/hosts.toml")
    config = tomllib.loads(containerd.hosts_toml("[fd00::5]:5000", "http://[fd00::4]:5000/"))
    assert config["server"] == "https://[fd00::5]:5000"
    assert config["host"] == {"http://[fd00::4]:5000": {"capabilities": ["pull", "resolve"]}}


@pytest.mark.parametrize(
    "said",
    [
        "Could not connect to fd00::6:8080 (fd00::6). - connect (111: Connection refused)",
        "Cannot initiate the connection to fd00::6:8080 (fd00::6). - connect (101: Network is "
        "unreachable)",
    ],
)
def test_a_mirror_that_is_not_reached_is_told_by_its_address(said: str) -> None:
    line = f"E: Failed to fetch http://[fd00::6]:8080/f  {said}"
    assert sentence("ofed", "x installed", [line, "E: Download Failed"], "look").startswith(
        "ofed: want x installed, have no connection to fd00::6:8080; "
    )


# --- the API server, asked for real ---------------------------------------------------------------


def certificate(folder: Path, *addresses: str) -> Path:
    """A certificate that vouches for itself and *addresses*, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ip_address(address)) for address in addresses]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "cert").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "both").write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return folder / "both"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(params=["::1", "fd00::1"])
def api_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A server on [::1] whose certificate is for an address; its endpoint, and its CA."""
    (tmp_path / "version").write_text("{}")
    server_class = type("Server", (ThreadingHTTPServer,), {"address_family": relays.family("::1")})
    server = server_class(("::1", 0), partial(Quiet, directory=str(tmp_path)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path, request.param))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"[::1]:{server.server_address[1]}", (tmp_path / "cert").read_text()
        server.shutdown()


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_the_api_server_is_reached_and_judged_by_its_address(
    api_server: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    asked = subprocess.run(
        ["sh", "-c", ApiServer().command(api_server)], capture_output=True, text=True, timeout=60
    )
    found = ApiServer().process(asked.stdout.splitlines())
    if "fd00" in request.node.name:  # a certificate of another address
        assert (found.connects, found.trusted) == (True, False)
        assert found.problem.startswith("curl: (60) SSL: ")
    else:
        assert found == ApiServerState(asked=True, connects=True, trusted=True, problem="")
