"""One connection to one API server: JSON in, JSON out, every call with a timeout.

The official client does kubeconfig, credentials, TLS, proxies and the connection pool. Its typed
models are left out on purpose: server-side apply needs objects in their wire form, and a list of
some thousand pods costs seconds of CPU as models and milliseconds as JSON.
"""

from __future__ import annotations

import email.utils
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import kubernetes.config
import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException

from cluster.errors import ClusterError, Conflict, NoSuchResource, NotFound

Json = dict[str, Any]

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
RETRY_AFTER_MAX_S: Final = 10
"""The longest pause that a server, or what is in front of it, is given when it asks for one."""

# Hosts run as greenlets, up to some hundred at once; a connection beyond the pool's size is opened
# and thrown away after one request, which costs a TLS handshake and nothing else.
POOL_SIZE: Final = 64

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

# What an API server answers, as plain text, for a group or a resource that it does not serve.
# Source: Go's net/http NotFound, which k8s.io/apiserver pkg/server/mux/pathrecorder.go ends in.
NO_SUCH_RESOURCE: Final = "404 page not found"


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer."""

    body: bytes
    date: datetime | None
    """The API server's clock, from the ``Date`` header; ``None`` if it sent none."""

    def json(self) -> Json:
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise ClusterError(
                f"kubernetes api: want JSON, have {self.body[:80]!r}; "
                "look for a proxy or load balancer that answers in the API server's place"
            ) from error
        if not isinstance(value, dict):
            raise ClusterError(
                f"kubernetes api: want a JSON object, have {type(value).__name__}; "
                "look for a proxy or load balancer that answers in the API server's place"
            )
        return value


class Api:
    """Requests to the API server of one kubeconfig; threads and greenlets may share it."""

    def __init__(self, kubeconfig: Path, server: str | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._configuration = _configuration(kubeconfig)
        self._ca_file = Path(str(self._configuration.ssl_ca_cert))
        if server is not None:
            self._configuration.host = server.rstrip("/")  # also decides about a proxy
        self.server = str(self._configuration.host)
        """Address of the API server, as in ``https://10.88.0.1:6443``."""
        self._client = ApiClient(self._configuration)
        self._client.user_agent = "rackwright"

    @property
    def ca_pem(self) -> bytes:
        """The certificate authority that the kubeconfig pins."""
        return self._ca_file.read_bytes()

    def get(self, path: str, **query: str) -> Json:
        return self.request("GET", path, query=query).json()

    def find(self, path: str, **query: str) -> Json | None:
        """The object at *path*; ``None`` if the server says there is no such thing."""
        try:
            found = self.get(path, **query)
        except NotFound:
            return None
        if not isinstance(found.get("metadata"), dict):
            raise self._not_kubernetes(path, "an object", found)
        return found

    def list(self, path: str, **query: str) -> Iterator[Json]:
        """
        All items of a collection, read in pages: one huge answer is what times out first.

        What is not there is told from what was not answered: an answer of any other form raises.
        """
        token = ""
        while True:
            page = self.get(path, limit="500", **query, **({"continue": token} if token else {}))
            if not str(page.get("kind", "")).endswith("List") or "items" not in page:
                raise self._not_kubernetes(path, "a list", page)
            yield from page["items"] or ()
            before, token = token, page.get("metadata", {}).get("continue", "")
            if not token:
                return
            if token == before:  # it would be asked for ever
                raise self._not_kubernetes(path, "the next page", page)

    def list_if_served(self, path: str) -> Iterator[Json]:
        """Like :meth:`list`, of a resource that the cluster may not know: then there are none."""
        try:
            yield from self.list(path)
        except NoSuchResource:
            return

    def _not_kubernetes(self, path: str, want: str, have: Json) -> ClusterError:
        return ClusterError(
            f"kubernetes api: want {want} as the answer to GET {path} on {self.server}, "
            f"have {_one_line(json.dumps(have))[:80]}; "
            "look for a proxy or load balancer that answers in the API server's place"
        )

    def post(self, path: str, body: Json, **query: str) -> Json:
        return self.request("POST", path, body=body, query=query).json()

    def patch(self, path: str, body: Json, content_type: str = MERGE_PATCH, **query: str) -> Json:
        return self.request("PATCH", path, body=body, query=query, content_type=content_type).json()

    def delete(self, path: str, body: Json | None = None) -> bool:
        """Delete, and say whether there was anything to delete."""
        try:
            self.request("DELETE", path, body=body)
        except NotFound:
            return False
        return True

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        with self._errors(method, path):
            request = self._client.param_serialize(
                method=method,
                resource_path=path,
                query_params=sorted((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                # The client's hook for renewing tokens sets the configuration's host back to the
                # kubeconfig's on every request.
                _host=self.server,
            )
            response = self._client.call_api(
                *request, _request_timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
            )
            data: bytes = response.read()  # type: ignore[no-untyped-call]
        if not 200 <= response.status <= 299:
            raise _refusal(self.server, method, path, response.status, data)
        return Reply(body=data, date=_http_date(response.headers.get("Date")))

    @contextmanager
    def _errors(self, method: str, path: str) -> Iterator[None]:
        """Say what a failed connection means, in one line and without credentials."""
        try:
            yield
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(
                f"kubernetes api: want {self.server} to answer {method} {path}, "
                f"have {_reason(error)}; {_remedy(error)}"
            ) from None
        except ConfigException as error:
            # Credentials from an exec plugin are renewed while a request is made.
            raise ClusterError(
                f"kubernetes api: want credentials from {self.kubeconfig}, have {error}; "
                "check with: kubectl --kubeconfig FILE get nodes"
            ) from None


def _configuration(kubeconfig: Path) -> Configuration:
    if not kubeconfig.is_file():
        raise ClusterError(
            f"kubeconfig: want a file at {kubeconfig}, have none; "
            "make one as docs/cluster-access.md shows"
        )
    configuration = Configuration()
    try:
        kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=configuration, persist_config=False
        )
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"kubeconfig: want a readable kubeconfig at {kubeconfig}, have {_one_line(error)}; "
            "make one as docs/cluster-access.md shows"
        ) from None
    if not configuration.verify_ssl or not configuration.ssl_ca_cert:
        # New nodes are told to trust this CA and no other: without one there is nothing to pin.
        have = "none" if configuration.verify_ssl else "insecure-skip-tls-verify"
        raise ClusterError(
            f"kubeconfig: want the cluster's certificate authority in {kubeconfig}, have {have}; "
            "add certificate-authority-data"
        )
    configuration.connection_pool_maxsize = POOL_SIZE
    # A refused or dropped connection is tried once more, "too many requests" as often as the server
    # asks for it, though not as late: urllib3 would wait for six hours. Reading is not repeated for
    # POST and PATCH, urllib3 sees to that.
    configuration.retries = urllib3.Retry(
        total=4, connect=1, read=1, status=3, redirect=0, other=0, backoff_factor=0.5,
        retry_after_max=RETRY_AFTER_MAX_S,
    )  # fmt: skip
    return configuration


def _refusal(server: str, method: str, path: str, status: int, body: bytes) -> ClusterError:
    """The API server's own words, with what to do about the two refusals that are about access."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        said = {}
    text = body[:200].decode(errors="replace")
    message = " ".join((str(said.get("message", "")) or text).split())
    want = f"kubernetes api: want {method} {path} on {server}"
    if status == 401:
        return ClusterError(
            f"{want}, have 401 {message}; the kubeconfig's credentials are wrong or expired: "
            "make new ones as docs/cluster-access.md shows"
        )
    if status == 403:
        return ClusterError(
            f"{want}, have 403 {message}; compare the account's rights with docs/rbac.yaml"
        )
    kind = ClusterError
    if status == 409:
        kind = Conflict
    elif status == 404 and said.get("kind") == "Status" and said.get("reason") == "NotFound":
        kind = NotFound
    elif status == 404 and text.strip() == NO_SUCH_RESOURCE:
        kind = NoSuchResource
    elif status == 404:
        # Whoever says so does not know what the cluster has: it is there, for all that we know.
        return ClusterError(
            f"{want}, have 404 {message}, which comes from elsewhere; "
            "look for a proxy or load balancer that answers in the API server's place"
        )
    what_to_do = (
        "read the API server's log, and run again once it is well"
        if status >= 500 or status == 429
        else "read what it says; if it is no word about this cluster, report it as a bug"
    )
    return kind(f"{want}, have {status} {message}; {what_to_do}")


def _reason(error: Exception) -> str:
    """The cause at the bottom: urllib3 wraps "connection refused" three times."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        return _reason(error.reason)
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        # "<object at 0x...>: Failed to establish a new connection: [Errno 111] Connection refused"
        return _one_line(error).rsplit("connection: ", 1)[-1]
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        return f"no answer within {READ_TIMEOUT_S:g} s"
    if isinstance(error, ApiException):
        return _one_line(str(error.reason))
    return _one_line(error)


def _remedy(error: Exception) -> str:
    text = str(error.reason if isinstance(error, ApiException) else error)
    if "certificate" in text.lower():
        return (
            "the server's certificate does not go with the kubeconfig's CA or with this address: "
            "compare both with the control plane's"
        )
    return "check the address in the kubeconfig, the network and the API server"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _http_date(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(value).astimezone(UTC)
    except ValueError:
        return None
