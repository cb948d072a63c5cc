"""The lab's control plane, as far as it can be judged without starting one."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from lab import control_plane
from lab.control_plane import daemons, settings
from lab.service import Service


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_bytes(b"a certificate")
    monkeypatch.setattr(control_plane, "PKI", tmp_path)


def kubeconfig(path: Path, lifetime_s: float) -> Path:
    claims = json.dumps({"exp": time.time() + lifetime_s}).encode()
    token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"
    path.write_text(control_plane.product_kubeconfig(token))
    return path


def test_nodes_are_told_of_the_folder_where_kubeadm_puts_their_authority() -> None:
    documents = list(yaml.safe_load_all(settings.kubeadm_configuration(settings.NODE_CERTIFICATES)))
    cluster = next(d for d in documents if d["kind"] == "ClusterConfiguration")
    assert cluster["certificatesDir"] == "/etc/kubernetes/pki"
    assert cluster["kubernetesVersion"] == "v1.36.3"
    assert cluster["networking"]["podSubnet"] == "10.244.0.0/16"


def serving(names: list[str]) -> bytes:
    """A certificate for *names*, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    general: list[x509.GeneralName] = []
    for text in names:
        try:
            general.append(x509.IPAddress(ip_address(text)))
        except ValueError:
            general.append(x509.DNSName(text))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(general), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def test_a_certificate_of_an_earlier_lab_is_made_anew(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(settings.kubeadm_configuration("/x")))
    cluster = next(d for d in documents if d["kind"] == "ClusterConfiguration")
    asked = cluster["apiServer"]["certSANs"]
    assert "fd88::1" in asked
    path = tmp_path / "apiserver.crt"
    assert not control_plane.certified(path)
    path.write_bytes(serving([*asked, "10.88.0.1", "kubernetes"]))
    assert control_plane.certified(path)
    path.write_bytes(serving(["127.0.0.1", "localhost", "10.88.0.1"]))
    assert not control_plane.certified(path)


def test_network_reaches_nodes_that_are_tainted_and_not_ready() -> None:
    documents = list(yaml.safe_load_all(settings.cluster_manifest()))
    pod = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["hostNetwork"] is True
    # There is no kube-proxy: the service's address leads nowhere.
    assert {"name": "API_SERVER", "value": "https://10.88.0.1:6443"} in pod["containers"][0]["env"]


def test_api_server_listens_on_the_labs_network_only() -> None:
    services = [
        daemons.etcd(Path("/bin/etcd")),
        daemons.api_server(Path("/bin/kube-apiserver")),
        daemons.controller_manager(Path("/bin/kube-controller-manager")),
        daemons.scheduler(Path("/bin/kube-scheduler")),
    ]
    assert "--bind-address=10.88.0.1" in services[1].argv
    for service in services:
        assert not [word for word in service.argv if "0.0.0.0" in word]
    assert "--bind-address=127.0.0.1" in services[2].argv
    assert "--controllers=*,bootstrapsigner,tokencleaner" in services[2].argv
    assert "--allocate-node-cidrs=true" in services[2].argv


def test_unanswered_health_is_no_error() -> None:
    # Port 1 of loopback: nothing listens there.
    assert daemons.healthy("http://127.0.0.1:1/", None)() is False


@pytest.mark.usefixtures("authority")
def test_fresh_access_is_kept(tmp_path: Path) -> None:
    assert not control_plane.renewal_due(kubeconfig(tmp_path / "k", 30 * 24 * 3600))


@pytest.mark.usefixtures("authority")
def test_access_is_renewed_before_its_token_ends(tmp_path: Path) -> None:
    assert control_plane.renewal_due(kubeconfig(tmp_path / "k", 3600))


@pytest.mark.usefixtures("authority")
def test_access_to_an_earlier_cluster_is_renewed(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", 30 * 24 * 3600)
    (tmp_path / "ca.crt").write_bytes(b"another certificate")
    assert control_plane.renewal_due(path)


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize("text", [None, "", "kind: Config", "users: []"])
def test_access_that_cannot_be_read_is_made_anew(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "k"
    if text is not None:
        path.write_text(text)
    assert control_plane.renewal_due(path)


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], None),
        ([], None),
    ],
)
def test_state_of_a_node(
    monkeypatch: pytest.MonkeyPatch, conditions: list[dict[str, str]], state: bool | None
) -> None:
    answer = {"items": [{"metadata": {"name": "gpu01"}, "status": {"conditions": conditions}}]}
    monkeypatch.setattr(control_plane, "kubectl", lambda *_: json.dumps(answer))
    assert control_plane.nodes() == {"gpu01": state}


def test_daemons_stop_before_what_they_talk_to(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(Service, "stop", lambda self: stopped.append(self.name))
    control_plane.down()
    assert stopped == ["kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"]


def test_image_of_the_network_has_a_name_that_nodes_are_sent_to_the_lab_for() -> None:
    """containerd speaks TLS to any registry that no mirror is declared for."""
    documents = list(yaml.safe_load_all(settings.cluster_manifest()))
    pod = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.k8s.io/rackwright-lab/cni:1"
