"""The four daemons of a control plane, as plain processes of the lab host.

Flags as kubeadm writes them into its static pods, except for what one host without failover does
not need.
Source: kubernetes/kubernetes v1.36.3, cmd/kubeadm/app/phases/controlplane (read 2026-11-30).
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from lab.control_plane.settings import (
    ETCD_DATA,
    NAME,
    PKI,
    PODS,
    PORT,
    SERVICES,
    endpoint,
    host,
    kubeconfig,
)
from lab.service import Service

LOOPBACK = "127.0.0.1"
ETCD_CLIENTS = f"https://{LOOPBACK}:2379"
ETCD_PEERS = f"https://{LOOPBACK}:2380"
ETCD_METRICS = f"http://{LOOPBACK}:2381"
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
ANSWER_TIMEOUT_S = 2.0

# The lab host also runs the guests, and a garbage collector that may let the heap double takes it
# from them.
LEAN = {"GOGC": "50"}


def etcd(program: Path) -> Service:
    pki = PKI / "etcd"
    flags = {
        "name": NAME,
        "data-dir": ETCD_DATA,
        "listen-client-urls": ETCD_CLIENTS,
        "advertise-client-urls": ETCD_CLIENTS,
        "listen-peer-urls": ETCD_PEERS,
        "initial-advertise-peer-urls": ETCD_PEERS,
        "initial-cluster": f"{NAME}={ETCD_PEERS}",
        "listen-metrics-urls": ETCD_METRICS,
        "client-cert-auth": "true",
        "cert-file": pki / "server.crt",
        "key-file": pki / "server.key",
        "trusted-ca-file": pki / "ca.crt",
        "peer-client-cert-auth": "true",
        "peer-cert-file": pki / "peer.crt",
        "peer-key-file": pki / "peer.key",
        "peer-trusted-ca-file": pki / "ca.crt",
        # Its log of changes is kept in memory up to this number: the default is for a big cluster.
        "snapshot-count": 1000,
        "log-level": "warn",
    }
    return service("etcd", program, flags, ETCD_METRICS + "/health")


def api_server(program: Path) -> Service:
    flags = {
        # Not all addresses: nothing outside the lab's network has business here. The lab host
        # itself has this address too.
        "bind-address": host(),
        "advertise-address": host(),
        "secure-port": PORT,
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "client-ca-file": PKI / "ca.crt",
        "enable-admission-plugins": "NodeRestriction",
        "enable-bootstrap-token-auth": "true",
        "etcd-servers": ETCD_CLIENTS,
        "etcd-cafile": PKI / "etcd/ca.crt",
        "etcd-certfile": PKI / "apiserver-etcd-client.crt",
        "etcd-keyfile": PKI / "apiserver-etcd-client.key",
        "kubelet-client-certificate": PKI / "apiserver-kubelet-client.crt",
        "kubelet-client-key": PKI / "apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname",
        "profiling": "false",
        "proxy-client-cert-file": PKI / "front-proxy-client.crt",
        "proxy-client-key-file": PKI / "front-proxy-client.key",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-client-ca-file": PKI / "front-proxy-ca.crt",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": PKI / "sa.pub",
        "service-account-signing-key-file": PKI / "sa.key",
        "service-cluster-ip-range": SERVICES,
        "tls-cert-file": PKI / "apiserver.crt",
        "tls-private-key-file": PKI / "apiserver.key",
    }
    return service("kube-apiserver", program, flags, endpoint() + "/readyz", ca=PKI / "ca.crt")


def controller_manager(program: Path) -> Service:
    own = kubeconfig("controller-manager")
    flags = {
        "kubeconfig": own,
        "authentication-kubeconfig": own,
        "authorization-kubeconfig": own,
        "bind-address": LOOPBACK,
        "secure-port": CONTROLLER_MANAGER_PORT,
        "leader-elect": "false",
        "allocate-node-cidrs": "true",
        "cluster-cidr": PODS,
        "cluster-name": NAME,
        "client-ca-file": PKI / "ca.crt",
        "requestheader-client-ca-file": PKI / "front-proxy-ca.crt",
        "cluster-signing-cert-file": PKI / "ca.crt",
        "cluster-signing-key-file": PKI / "ca.key",
        "controllers": "*,bootstrapsigner,tokencleaner",
        "profiling": "false",
        "root-ca-file": PKI / "ca.crt",
        "service-account-private-key-file": PKI / "sa.key",
        "service-cluster-ip-range": SERVICES,
        "use-service-account-credentials": "true",
    }
    url = f"https://{LOOPBACK}:{CONTROLLER_MANAGER_PORT}/healthz"
    return service("kube-controller-manager", program, flags, url)


def scheduler(program: Path) -> Service:
    own = kubeconfig("scheduler")
    flags = {
        "kubeconfig": own,
        "authentication-kubeconfig": own,
        "authorization-kubeconfig": own,
        "bind-address": LOOPBACK,
        "secure-port": SCHEDULER_PORT,
        "leader-elect": "false",
        "profiling": "false",
    }
    return service("kube-scheduler", program, flags, f"https://{LOOPBACK}:{SCHEDULER_PORT}/healthz")


def service(
    name: str, program: Path, flags: dict[str, object], url: str, ca: Path | None = None
) -> Service:
    argv: list[str | Path] = [program, *(f"--{flag}={value}" for flag, value in flags.items())]
    return Service(name, argv, healthy(url, ca), env=LEAN)


def healthy(url: str, ca: Path | None) -> Callable[[], bool]:
    """Whether it answers; ``ca`` verifies it, if it is not on loopback with a key of the day."""

    def ask() -> bool:
        try:
            context = ssl.create_default_context(cafile=str(ca)) if ca else unverified()
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            )
            with opener.open(url, timeout=ANSWER_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, HTTPException, OSError):
            return False

    return ask


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
