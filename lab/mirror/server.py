"""
Serves a directory over HTTP, read only. Run as a script: it imports nothing of the lab.

Kept connections matter: apt asks for hundreds of small files one after the other. A client may be
told something else than the others: what lies below a folder of its address comes first.
"""

from __future__ import annotations

import argparse
import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "rackwright-lab-mirror"
    timeout = 120  # seconds that an idle connection is kept
    wbufsize = 65536  # header and first bytes in one packet
    for_client: Path | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def translate_path(self, path: str) -> str:
        usual = super().translate_path(path)
        if self.for_client is not None:
            below = Path(usual).relative_to(self.directory)
            special = self.for_client / self.client_address[0] / below
            if special.is_file():
                return str(special)
        return usual


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--for-client", type=Path, help="folder with a folder per address")
    arguments = parser.parse_args()
    Handler.for_client = arguments.for_client
    handler = partial(Handler, directory=str(arguments.root))
    Server((arguments.address, arguments.port), handler).serve_forever()


if __name__ == "__main__":
    main()
