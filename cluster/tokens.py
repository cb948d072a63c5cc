"""Bootstrap tokens: what lets one host join, for a quarter of an hour."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import string
import time
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self

from cluster.api import Api
from cluster.certificates import CLUSTER_INFO
from cluster.errors import ClusterError, Conflict
from cluster.names import MANAGED_BY, NODE_LABEL, label_value

SIGNED_TIMEOUT_S: Final = 60.0
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
ALPHABET: Final = string.ascii_lowercase + string.digits


class JoinToken:
    """A token in force. A context manager; or call :meth:`delete` when the node has joined."""

    def __init__(self, api: Api, node_name: str, token: str) -> None:
        self._api = api
        self.node_name = node_name
        self.token = token

    @property
    def token_id(self) -> str:
        """The public half: it is part of the Secret's name, and not secret."""
        return self.token.partition(".")[0]

    def delete(self) -> bool:
        """Invalidate the token; true if it was still there."""
        return self._api.delete(f"{SECRETS}/bootstrap-token-{self.token_id}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.delete()

    def __repr__(self) -> str:
        return f"JoinToken(node_name={self.node_name!r}, token_id={self.token_id!r})"


def token_id(node_name: str) -> str:
    """The id that tokens for *node_name* always have.

    Derived from the name and not random, so that what a killed run left behind can be found without
    the right to read secrets: who may create *and read* secrets in kube-system can have a token of
    any service account there, and is cluster-admin in all but name. Two nodes of a fleet of a
    thousand share an id with a probability of 1 in 4000, and notice only if both join within the
    same minute.
    """
    number = int.from_bytes(
        hashlib.sha256(b"rackwright join " + node_name.encode()).digest(), "big"
    )
    characters = []
    for _ in range(6):
        number, index = divmod(number, len(ALPHABET))
        characters.append(ALPHABET[index])
    return "".join(characters)


def mint(api: Api, node_name: str, ttl_s: float) -> JoinToken:
    # Source: Kubernetes documentation, "Authenticating with Bootstrap Tokens", "Bootstrap Token
    # Secret Format" (read 2026-11-30)
    secret = "".join(secrets.choice(ALPHABET) for _ in range(16))
    token = JoinToken(api, node_name, f"{token_id(node_name)}.{secret}")
    # The server's clock decides when a token has expired, so it also says when that is.
    now = api.request("GET", "/version").date or datetime.now(UTC)
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"bootstrap-token-{token.token_id}",
            "namespace": "kube-system",
            "labels": {**MANAGED_BY, NODE_LABEL: label_value(node_name)},
        },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "description": f"rackwright join of {node_name}",
            "token-id": token.token_id,
            "token-secret": secret,
            "expiration": (now + timedelta(seconds=ttl_s)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        },
    }
    try:
        try:
            api.post(SECRETS, body)
        except Conflict:
            # Of a run that was killed between minting and deleting. Its secret half may still be on
            # that host's disk: replaced, not used again.
            token.delete()
            api.post(SECRETS, body)
        _wait_until_signed(api, token)
    except BaseException:
        token.delete()
        raise
    return token


def sweep(api: Api, node_name: str) -> bool:
    return api.delete(f"{SECRETS}/bootstrap-token-{token_id(node_name)}")


def _wait_until_signed(api: Api, token: JoinToken) -> None:
    """Wait for the controller manager to sign cluster-info for *token*.

    ``kubeadm join`` believes cluster-info only with that signature, and gives up on one of an
    earlier token of the same id: so the signature is checked and not only looked for.
    """
    deadline = time.monotonic() + SIGNED_TIMEOUT_S
    have = "no signature"
    while True:
        info = api.find(CLUSTER_INFO)
        data = {} if info is None else info.get("data", {})
        if info is None:
            have = "no ConfigMap kube-public/cluster-info"
        elif signature := data.get(f"jws-kubeconfig-{token.token_id}"):
            if signed(data.get("kubeconfig", ""), signature, token.token):
                return
            have = "the signature of another token"
        if time.monotonic() > deadline:
            raise ClusterError(
                f"join token: want cluster-info signed for token id {token.token_id}, have {have} "
                f"after {SIGNED_TIMEOUT_S:g} s; the controller manager must run the controller "
                "bootstrapsigner, and cluster-info is made by: kubeadm init phase bootstrap-token"
            )
        time.sleep(0.5)


def signed(kubeconfig: str, signature: str, token: str) -> bool:
    """Whether *signature* is the detached JWS of *kubeconfig* made with *token*."""
    # The key is the secret half alone; the documentation says the full token, and is wrong.
    # Source: github.com/kubernetes/kubernetes 0abf4c8,
    # staging/src/k8s.io/cluster-bootstrap/token/jws/jws.go (read 2026-11-30)
    key = token.partition(".")[2].encode()
    header, _, have = signature.partition("..")
    payload = base64.urlsafe_b64encode(kubeconfig.encode()).rstrip(b"=")
    digest = hmac.new(key, header.encode() + b"." + payload, hashlib.sha256).digest()
    return hmac.compare_digest(base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), have)
