"""Servers that stand between a host and what it asks for: a proxy, and relays of TCP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, BaseServer, ThreadingTCPServer
from urllib.parse import urlsplit

TIMEOUT_S = 60
HOP_BY_HOP = {"connection", "content-length", "keep-alive", "proxy-connection", "transfer-encoding"}


class Proxy:
    """An HTTP proxy, and the only one who knows where its names are."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        """Address by name; others do not exist."""
        self.asked: list[tuple[str, str]] = []
        """Method and URL, or ``host:port``, of each request."""


class Asked(BaseHTTPRequestHandler):
    """One client of the proxy: apt and containerd keep their connections."""

    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    proxy: Proxy

    def do_GET(self) -> None:
        self.proxy.asked.append((self.command, self.path))
        url = urlsplit(self.path)
        address = self.proxy.names.get(url.hostname or "")
        if address is None:
            self.send_error(502, f"no such name: {url.hostname}")
            return
        upstream = HTTPConnection(address, url.port or 80, timeout=TIMEOUT_S)
        query = f"?{url.query}" if url.query else ""
        upstream.request(self.command, f"{url.path or '/'}{query}", headers=without_hops(self))
        answer = upstream.getresponse()
        body = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
        if length is not None and answer.status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)
        upstream.close()

    do_HEAD = do_GET

    def do_CONNECT(self) -> None:
        self.proxy.asked.append((self.command, self.path))
        host, _, port = self.path.rpartition(":")
        address = self.proxy.names.get(host.strip("[]"))
        if address is None:
            self.send_error(502, f"no such name: {host}")
            return
        with socket.create_connection((address, int(port)), TIMEOUT_S) as upstream:
            self.send_response(200)
            self.end_headers()
            both_ways(self.connection, upstream)
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: what was asked is kept."""


def without_hops(request: BaseHTTPRequestHandler) -> dict[str, str]:
    return {
        name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
    }


def both_ways(one: socket.socket, other: socket.socket) -> None:
    """Pass on what either side says, until both have ended."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=pass_on, args=(other, one), daemon=True)
    back.start()
    pass_on(one, other)
    back.join()


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


@contextmanager
def proxy(address: str, port: int, names: Mapping[str, str]) -> Iterator[Proxy]:
    """An HTTP proxy on *address*; what it was asked for is kept in ``asked``."""
    kept = Proxy(names)
    server_class = type("Server", (ThreadingHTTPServer,), {"address_family": family(address)})
    with serving(server_class((address, port), type("Of", (Asked,), {"proxy": kept}))):
        yield kept


@contextmanager
def relay(address: str, port: int, to: str, to_port: int = 0) -> Iterator[list[str]]:
    """TCP from *address* to *to*, by default at the same port; yields who has come."""
    came: list[str] = []

    class Relayed(BaseRequestHandler):
        def handle(self) -> None:
            came.append(self.client_address[0])
            with socket.create_connection((to, to_port or port), TIMEOUT_S) as upstream:
                upstream.settimeout(None)
                both_ways(self.request, upstream)

    class Server(ThreadingTCPServer):
        address_family = family(address)
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128

    with serving(Server((address, port), Relayed)):
        yield came
