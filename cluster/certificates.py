"""The cluster's certificate authority, and its hash as ``kubeadm join`` pins it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cluster.api import Api
from cluster.errors import ClusterError

CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


def spki_hash(certificate: x509.Certificate) -> str:
    """``sha256:`` and the hex digest of the DER public key."""
    # Source: Kubernetes documentation, "kubeadm join", "Token-based discovery with CA pinning"
    # (read 2026-11-30)
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


def ca_hashes(pem: bytes, *, where: str) -> list[str]:
    try:
        return [spki_hash(certificate) for certificate in x509.load_pem_x509_certificates(pem)]
    except ValueError as error:
        raise ClusterError(
            f"{where}: want certificates in PEM, have {error}; "
            "take the authority from the control plane's /etc/kubernetes/pki/ca.crt"
        ) from None


def pinned_hash(api: Api) -> str:
    """Hash of the kubeconfig's CA, which must be the one that joining nodes see in cluster-info."""
    pinned = ca_hashes(api.ca_pem, where=f"certificate authority in {api.kubeconfig}")
    info = api.find(CLUSTER_INFO)
    if info is None:
        raise ClusterError(
            "cluster-info: want the ConfigMap kube-public/cluster-info, have none; "
            "make it on the control plane: kubeadm init phase bootstrap-token"
        )
    shown = ca_hashes(
        _cluster_info_ca(info.get("data", {}).get("kubeconfig", "")), where="cluster-info"
    )
    for value in pinned:
        if value in shown:
            return value
    raise ClusterError(
        f"cluster-info: want the kubeconfig's certificate authority {', '.join(pinned)}, "
        f"have {', '.join(shown)}; the kubeconfig is of another cluster, the CA was replaced, "
        "or cluster-info was tampered with"
    )


def _cluster_info_ca(kubeconfig: str) -> bytes:
    try:
        cluster = yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]
        return base64.b64decode(cluster["certificate-authority-data"], validate=True)
    except (yaml.YAMLError, KeyError, IndexError, TypeError, binascii.Error) as error:
        raise ClusterError(
            f"cluster-info: want a kubeconfig with certificate-authority-data, "
            f"have {type(error).__name__}: {error}; "
            "make it anew on the control plane: kubeadm init phase bootstrap-token"
        ) from None
