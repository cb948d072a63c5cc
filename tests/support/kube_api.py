"""A small API server over HTTPS, with objects in memory, for what ``cluster`` asks of a real one.

It speaks the parts that the tests rely on: versions and conflicts, the three kinds of patch,
selectors, pages, bearer tokens, the signer of cluster-info. It has no admission, no defaults and no
field ownership (a conflict of owners is arranged by a test): those are tested against a real API
server in the lab.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import hmac
import itertools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

Json = dict[str, Any]
TOKEN = "operators-bearer-token"
NAMESPACED = re.compile(r"^(/apis?/.*)/namespaces/[^/]+/([a-z]+)/[^/]+$")
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Json
    content_type: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class FakeKubeApi:
    """What the server holds, and what was asked of it."""

    folder: Path
    objects: dict[str, Json] = field(default_factory=dict)
    """By path, as in ``/api/v1/nodes/gpu01``."""
    collections: set[str] = field(
        default_factory=lambda: {
            "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/rackwright/events",
        }
    )  # fmt: skip
    logs: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    before: list[Callable[[Request], tuple[int, str] | None]] = field(default_factory=list)
    """Called before each request; may change anything, or answer with a status and a message."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of every answer, beside what belongs there."""
    signing: bool = True
    """Whether the controller manager signs cluster-info."""
    page_size: int = 500
    delay_s: float = 0.0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    lock: threading.RLock = field(default_factory=threading.RLock)
    port: int = 0
    _version: Iterator[int] = field(default_factory=lambda: itertools.count(100))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def put(self, path: str, **parts: Any) -> Json:
        """Put an object there, with the metadata that a server gives it."""
        body: Json = copy.deepcopy(parts)
        meta = body.setdefault("metadata", {})
        meta.setdefault("name", path.rsplit("/", 1)[1])
        if space := re.search(r"/namespaces/([^/]+)/", path):
            meta.setdefault("namespace", space[1])
        meta.setdefault("uid", f"uid-{next(self._version)}")
        meta.setdefault("creationTimestamp", f"{self.now():%Y-%m-%dT%H:%M:%SZ}")
        meta["resourceVersion"] = str(next(self._version))
        self.objects[path] = body
        self.collections.add(path.rsplit("/", 1)[0])
        if match := NAMESPACED.match(path):
            self.collections.add(f"{match[1]}/{match[2]}")
        return body

    def node(self, name: str, **parts: Any) -> Json:
        return self.put(f"/api/v1/nodes/{name}", **parts)

    def pod(self, namespace: str, name: str, **parts: Any) -> Json:
        return self.put(f"/api/v1/namespaces/{namespace}/pods/{name}", **parts)

    def asked(self, method: str) -> list[Request]:
        return [request for request in self.requests if request.method == method]

    # What the server does.

    def answer(self, request: Request) -> tuple[int, bytes]:
        if self.delay_s:
            time.sleep(self.delay_s)
        with self.lock:
            self.requests.append(request)
            for rule in self.before:
                if (refusal := rule(request)) is not None:
                    return self.status(*refusal)
            return self.act(request)

    def status(self, code: int, message: str) -> tuple[int, bytes]:
        body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
        if code in REASONS:
            body["reason"] = REASONS[code]
        return code, json.dumps(body).encode()

    def act(self, request: Request) -> tuple[int, bytes]:
        path = request.path
        if path == "/version":
            return 200, b'{"gitVersion": "v1.36.3"}'
        if path.endswith("/log"):
            return 200, self.logs.get(path.removesuffix("/log"), "").encode()
        if request.method == "POST":
            return self.create(request)
        subresource = path.removesuffix("/status")
        live = self.objects.get(subresource)
        if request.method == "GET" and live is None and path in self.collections:
            return 200, json.dumps(self.list(path, request.query)).encode()
        if request.method == "PATCH" and request.content_type == "application/apply-patch+yaml":
            return self.apply(request, live)
        if live is None and path.count("/") == 4 and path.startswith("/apis/"):
            return 404, b"404 page not found\n"  # a collection of a group that is not served
        if live is None:
            return self.status(404, f'"{path}" not found')
        if request.method == "GET":
            return 200, json.dumps(live).encode()
        if request.method == "DELETE":
            uid = request.body.get("preconditions", {}).get("uid")
            if uid not in (None, live["metadata"]["uid"]):
                return self.status(409, f"the UID in the precondition ({uid}) does not match")
            del self.objects[path]
            self.sign()
            return 200, b'{"kind": "Status", "status": "Success"}'
        return self.patch(request, subresource, live)

    def create(self, request: Request) -> tuple[int, bytes]:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            return self.status(409, f'"{path}" already exists')
        body = copy.deepcopy(request.body)
        if strings := body.pop("stringData", None):
            body["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in strings.items()}
        self.put(path, **body)
        self.sign()
        return 201, json.dumps(self.objects[path]).encode()

    def patch(self, request: Request, path: str, live: Json) -> tuple[int, bytes]:
        version = request.body.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, live["metadata"]["resourceVersion"]):
            return self.status(409, "the object has been modified; please apply your changes")
        body = copy.deepcopy(request.body)
        if "strategic" in request.content_type:
            merged = {c["type"]: c for c in live.get("status", {}).get("conditions", [])}
            merged |= {c["type"]: c for c in body.get("status", {}).get("conditions", [])}
            body.setdefault("status", {})["conditions"] = list(merged.values())
        self.write(path, merge(live, body))
        return 200, json.dumps(self.objects[path]).encode()

    def apply(self, request: Request, live: Json | None) -> tuple[int, bytes]:
        if live is None:
            after = copy.deepcopy(request.body)
            after["metadata"] |= {"uid": "uid-new", "resourceVersion": "1"}
            if request.query.get("dryRun") != "All":
                self.put(request.path, **after)
                after = self.objects[request.path]
            return 201, json.dumps(after).encode()
        after = merge(live, request.body)
        if request.query.get("dryRun") != "All":
            self.write(request.path, after)
            after = self.objects[request.path]
        return 200, json.dumps(after).encode()

    def write(self, path: str, after: Json) -> None:
        """A write that changes nothing keeps the version, as in a real server."""
        if after != self.objects[path]:
            after["metadata"]["resourceVersion"] = str(next(self._version))
            self.objects[path] = after

    def list(self, path: str, query: dict[str, str]) -> Json:
        root, plural = path.rsplit("/", 1)
        everywhere = re.compile(rf"^{re.escape(root)}(/namespaces/[^/]+)?/{plural}/[^/]+$")
        found = [
            item
            for key, item in sorted(self.objects.items())
            if everywhere.match(key) and selected(item, query)
        ]
        size = min(self.page_size, int(query.get("limit", self.page_size)))
        start = int(query.get("continue", "0"))
        more = str(start + size) if start + size < len(found) else ""
        page = found[start : start + size]
        return {"kind": "AnyList", "items": page, "metadata": {"continue": more}}

    def sign(self) -> None:
        """What the controllers bootstrapsigner and tokencleaner do, without their delay."""
        info = self.objects.get(CLUSTER_INFO)
        if info is None or not self.signing:
            return
        for key in [k for k in info["data"] if k.startswith("jws-kubeconfig-")]:
            del info["data"][key]
        for secret in self.objects.values():
            if secret.get("type") == "bootstrap.kubernetes.io/token":
                data = {k: base64.b64decode(v) for k, v in secret["data"].items()}
                name = data["token-id"].decode()
                info["data"][f"jws-kubeconfig-{name}"] = jws(
                    info["data"]["kubeconfig"], name, data["token-secret"]
                )


def jws(content: str, token_id: str, secret: bytes) -> str:
    header = base64.urlsafe_b64encode(
        json.dumps({"alg": "HS256", "kid": token_id}, separators=(",", ":")).encode()
    ).rstrip(b"=")
    payload = base64.urlsafe_b64encode(content.encode()).rstrip(b"=")
    digest = hmac.new(secret, header + b"." + payload, hashlib.sha256).digest()
    return f"{header.decode()}..{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def merge(live: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def selected(item: Json, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if key not in labels or (value and labels[key] != value):
            return False
    wanted = query.get("fieldSelector", "")
    for term in filter(None, wanted.split(",")):
        path, _, value = term.partition("=")
        assert path in ("spec.nodeName", "involvedObject.name", "type"), wanted
        found: Any = item
        for name in path.split("."):
            found = found.get(name, {})
        if found != value:
            return False
    return True


@functools.cache
def certificates() -> tuple[bytes, bytes]:
    """A CA, and a server's certificate for 127.0.0.1 with its key."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    start, end = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(ca_name, subject, public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )

    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        builder(name, key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ca.public_bytes(Encoding.PEM), server.public_bytes(Encoding.PEM) + key_pem


def kubeconfig(server: str, ca_pem: bytes, token: str | None = None) -> str:
    ca = base64.b64encode(ca_pem).decode()
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {"server": server, "certificate-authority-data": ca},
                }
            ],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "operator"}}],
            "users": [{"name": "operator", "user": {"token": token} if token else {}}],
        }
    )


@contextmanager
def running(folder: Path) -> Iterator[FakeKubeApi]:
    """A server on a free port of 127.0.0.1, with a kubeconfig for it in *folder*."""
    ca_pem, server_pem = certificates()
    (folder / "server.pem").write_bytes(server_pem)
    fake = FakeKubeApi(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Without it each keep-alive answer waits 40 ms for the client's acknowledgement.
        disable_nagle_algorithm = True
        wbufsize = -1

        def do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            url = urlsplit(self.path)
            request = Request(
                self.command,
                url.path,
                {key: values[0] for key, values in parse_qs(url.query).items()},
                json.loads(raw) if raw else {},
                self.headers.get("Content-Type", ""),
            )
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                code, body = fake.status(401, "Unauthorized")
            else:
                code, body = fake.answer(request)
            self.send_response_only(code)
            self.send_header("Date", f"{fake.now():%a, %d %b %Y %H:%M:%S} GMT")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = do

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    fake.port = server.server_address[1]
    fake.kubeconfig.write_text(kubeconfig(fake.url, ca_pem, TOKEN))
    fake.put(CLUSTER_INFO, data={"kubeconfig": kubeconfig(fake.url, ca_pem)})
    fake.put("/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy", spec=template("proxy:1"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def template(image: str) -> Json:
    return {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}
