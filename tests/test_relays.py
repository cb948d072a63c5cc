"""The servers that guest tests put between a node and the lab's services."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import relays


def free_port(address: str = "127.0.0.1") -> int:
    with closing(socket.socket(relays.family(address))) as taken:
        taken.bind((address, 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[int]:
    """A web server of 127.0.0.1 with one file; its port."""
    (tmp_path / "file").write_text("a word\n")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with relays.serving(server):
        yield server.server_address[1]


def fetch(url: str, proxy: str | None = None, method: str = "GET") -> bytes:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"http": proxy} if proxy else {})
    )
    with opener.open(urllib.request.Request(url, method=method), timeout=10) as answer:
        return bytes(answer.read())


def test_a_proxy_finds_its_names_and_no_others(site: int) -> None:
    port = free_port()
    with relays.proxy("127.0.0.1", port, {"packages.example": "127.0.0.1"}) as proxy:
        url = f"http://packages.example:{site}/file"
        assert fetch(url, f"http://127.0.0.1:{port}") == b"a word\n"
        assert fetch(url, f"http://127.0.0.1:{port}", "HEAD") == b""
        with pytest.raises(urllib.error.HTTPError, match="502"):
            fetch("http://other.example/", f"http://127.0.0.1:{port}")
        assert proxy.asked == [("GET", url), ("HEAD", url), ("GET", "http://other.example/")]


def test_a_proxy_lets_a_tunnel_through(site: int) -> None:
    port = free_port()
    with (
        relays.proxy("127.0.0.1", port, {"api.example": "127.0.0.1"}) as proxy,
        socket.create_connection(("127.0.0.1", port), 10) as client,
    ):
        client.sendall(f"CONNECT api.example:{site} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := client.recv(1000):
            answer += data
        assert answer.endswith(b"\r\n\r\na word\n")
        assert proxy.asked == [("CONNECT", f"api.example:{site}")]


def test_a_relay_leads_from_ipv6_to_ipv4(site: int) -> None:
    port = free_port("::1")
    with relays.relay("::1", port, "127.0.0.1", site) as came:
        assert fetch(f"http://[::1]:{port}/file") == b"a word\n"
        assert came == ["::1"]
