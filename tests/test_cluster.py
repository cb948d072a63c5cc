"""What ``cluster`` asks of the Kubernetes API, against a small one over HTTPS."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import cluster.tokens
from cluster import (
    CLOSED_TAINT,
    VALIDATED_CONDITION,
    Cluster,
    ClusterError,
    NotFound,
    Taint,
    in_service,
    probing,
)
from cluster.api import Api
from cluster.certificates import ca_hashes
from cluster.rights import needed
from cluster.tokens import signed, token_id
from tests.support import kube_api
from tests.support.kube_api import CLUSTER_INFO, FakeKubeApi, Request

DOCS = Path(__file__).parent.parent / "docs"
SECRETS = "/api/v1/namespaces/kube-system/secrets"

# openssl req -x509 -newkey ec ...; hash of:
# openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
CA_PEM = b"""\
-----BEGIN CERTIFICATE-----
MIIBgjCCASegAwIBAgIUDDZbBP1512VtuWeaKGDIlPFxIlowCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMzAxNjU3MzFaGA8yMTI2MTEw
NjE2NTczMVowFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABJ0KGaI0Vy4JSIbOF1v78lS457dndMUq/na+tHqUSfMV19YLHcKM
7VBtrDLsBnxRUN8Gr+exTjc0rcXGcRbAhwajUzBRMB0GA1UdDgQWBBSLpl6kjI60
a2EBxVinfBUYY7GlGDAfBgNVHSMEGDAWgBSLpl6kjI60a2EBxVinfBUYY7GlGDAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQCjcPVUiyHSyD8QN64L
cYV5yM5dUY3qx3uLRFWAGNb/GwIhAOl9lXePJvGdQz6e7SCAxo9BxyhInQ4X9uzM
H+X/ag8P
-----END CERTIFICATE-----
"""
CA_HASH = "sha256:8221ca4c876e115d9c16ca871fa20701d193ff96f49666a6a711d49078ef0f74"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeKubeApi]:
    with kube_api.running(tmp_path) as fake:
        yield fake


@pytest.fixture
def kube(api: FakeKubeApi) -> Cluster:
    return Cluster.connect(api.kubeconfig)


def ready(status: str = "True", reason: str = "KubeletReady") -> dict[str, Any]:
    since = "2026-11-30T10:00:00Z"
    return {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": since}


@pytest.mark.parametrize(
    "body",
    [
        b"<html>default backend - 404</html>",
        b"404 page not found",
        b'{"message": "no such route"}',
        b'{"kind": "Status", "message": "no such route"}',
    ],
)
@pytest.mark.parametrize("ask", ["node", "delete_pod"])
def test_a_404_that_is_not_the_api_servers_says_nothing_about_the_cluster(
    kube: Cluster, api: FakeKubeApi, body: bytes, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer's: a node that cannot be asked for is not one that is not there."""
    api.node("gpu01")
    monkeypatch.setattr(api, "answer", lambda request: (404, body))
    asked = {
        "node": lambda: kube.node("gpu01"),
        "delete_pod": lambda: kube._api.delete("/api/v1/namespaces/rackwright/pods/probe"),
    }
    with pytest.raises(ClusterError, match="have 404 ") as error:
        asked[ask]()
    assert not isinstance(error.value, NotFound)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": "welcome"},
        {"items": []},
        {"kind": "Node", "items": []},
        {"kind": "PodList"},
    ],
    ids=str,
)
def test_an_answer_of_another_form_is_not_an_empty_list(
    kube: Cluster, api: FakeKubeApi, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "answer", lambda request: (200, json.dumps(body).encode()))
    for ask in (lambda: kube.pods_on("gpu01"), kube.operator_in_charge):
        with pytest.raises(ClusterError, match="want a list as the answer to GET /api"):
            ask()
    with pytest.raises(ClusterError, match="want an object as the answer to GET /api"):
        kube.node("gpu01")


# The connection


def test_a_cluster_is_connected_once_per_kubeconfig(api: FakeKubeApi) -> None:
    assert Cluster.connect(api.kubeconfig) is Cluster.connect(api.kubeconfig)
    assert Cluster.connect(api.kubeconfig, api.url) is not Cluster.connect(api.kubeconfig)


def test_the_server_says_version_and_time(kube: Cluster, api: FakeKubeApi) -> None:
    api.now = lambda: datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    kube.reachable()
    assert kube.server_version() == "1.36.3"
    assert kube.server_time() == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)


def test_an_address_in_place_of_the_kubeconfigs_is_used(api: FakeKubeApi) -> None:
    text = api.kubeconfig.read_text().replace(api.url, "https://127.0.0.1:1")
    api.kubeconfig.write_text(text)
    kube = Cluster.connect(api.kubeconfig, api.url + "/")
    assert kube.server == api.url
    assert kube.server_version() == "1.36.3"


def test_a_server_that_is_not_there_is_named_with_the_cause(api: FakeKubeApi) -> None:
    kube = Cluster.connect(api.kubeconfig, "https://127.0.0.1:1")
    with pytest.raises(ClusterError) as error:
        kube.reachable()
    assert str(error.value) == (
        "kubernetes api: want https://127.0.0.1:1 to answer GET /version, have [Errno 111] "
        "Connection refused; check the address in the kubeconfig, the network and the API server"
    )


def test_a_server_that_does_not_answer_is_given_up(
    kube: Cluster, api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.api.READ_TIMEOUT_S", 0.2)
    api.delay_s = 1.0
    with pytest.raises(ClusterError, match=r"have no answer within 0\.2 s; "):
        kube.reachable()


def test_another_ca_is_not_believed(api: FakeKubeApi, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(kube_api.kubeconfig(api.url, CA_PEM, kube_api.TOKEN))
    with pytest.raises(ClusterError, match="compare both with the control plane's"):
        Cluster.connect(other).reachable()
    assert api.requests == []


def test_wrong_credentials_are_said_to_be_so(api: FakeKubeApi) -> None:
    api.kubeconfig.write_text(api.kubeconfig.read_text().replace(kube_api.TOKEN, "expired-token"))
    with pytest.raises(ClusterError) as error:
        Cluster.connect(api.kubeconfig).reachable()
    assert "have 401 Unauthorized; the kubeconfig's credentials are wrong" in str(error.value)
    assert "expired-token" not in str(error.value)


def test_a_missing_right_is_the_servers_own_sentence(kube: Cluster, api: FakeKubeApi) -> None:
    api.before.append(lambda request: (403, 'nodes "gpu01" is forbidden: User "x" cannot get'))
    with pytest.raises(ClusterError, match=r'have 403 nodes "gpu01" is forbidden.*docs/rbac\.yaml'):
        kube.node("gpu01")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "want a readable kubeconfig"),
        (lambda text: "", "want a readable kubeconfig"),
        (lambda text: "a: b", "want a readable kubeconfig"),
        (
            lambda text: re.sub(r"certificate-authority-data: .*", "tls-server-name: x", text),
            "want the cluster's certificate authority in .*, have none",
        ),
        (
            lambda text: text.replace("server:", "insecure-skip-tls-verify: true\n    server:"),
            "have insecure-skip-tls-verify",
        ),
    ],
)
def test_a_bad_kubeconfig_is_refused(api: FakeKubeApi, change: Any, message: str) -> None:
    api.kubeconfig.write_text(change(api.kubeconfig.read_text()))
    with pytest.raises(ClusterError, match=message):
        Cluster.connect(api.kubeconfig)


def test_a_missing_kubeconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"want a file at .*, have none; make one as docs/"):
        Cluster.connect(tmp_path / "nowhere")


def test_a_server_that_is_too_busy_is_asked_again(kube: Cluster, api: FakeKubeApi) -> None:
    api.before.append(lambda request: (503, "busy") if len(api.requests) == 1 else None)
    with pytest.raises(ClusterError, match="have 503 busy"):
        kube.reachable()
    kube.reachable()


def test_a_server_that_wants_to_be_asked_tomorrow_is_asked_within_seconds(
    kube: Cluster, api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    clock = SimpleNamespace(sleep=paused.append, time=time.time)
    monkeypatch.setattr("urllib3.util.retry.time", clock)
    api.headers["Retry-After"] = "86400"
    api.before.append(lambda request: (503, "busy") if len(api.requests) < 3 else None)
    kube.reachable()
    assert len(api.requests) == 3
    assert paused == [10, 10]


GREENLETS = """
    import gevent.monkey
    gevent.monkey.patch_all()
    import sys, time
    import gevent
    from pathlib import Path
    from cluster import Cluster

    path = Path(sys.argv[1])
    Cluster.connect(path).reachable()  # imports and the first handshake are not what is measured
    start = time.monotonic()
    jobs = [gevent.spawn(lambda: Cluster.connect(path).node("gpu01").ready) for _ in range(30)]
    gevent.joinall(jobs, raise_error=True)
    print(time.monotonic() - start, all(job.value for job in jobs), len(Cluster._connected))
"""


def test_hosts_as_greenlets_share_one_connection_pool_and_do_not_wait(api: FakeKubeApi) -> None:
    api.node("gpu01", status={"conditions": [ready()]})
    api.delay_s = 0.5
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREENLETS), api.kubeconfig],
        capture_output=True,
        text=True,
        check=True,
        cwd=DOCS.parent,
        timeout=60,
    )
    seconds, right, connected = done.stdout.split()
    assert (right, connected) == ("True", "1")
    assert float(seconds) < 5, "one after the other would be 15 s"


# Nodes


def test_a_node_that_is_not_there_is_an_answer(kube: Cluster) -> None:
    assert kube.node("gpu01") is None


def test_a_node_that_cannot_be_read_is_not_absent(kube: Cluster, api: FakeKubeApi) -> None:
    api.before.append(lambda request: (500, "etcdserver: request timed out"))
    with pytest.raises(ClusterError, match="have 500 etcdserver: request timed out"):
        kube.node("gpu01")


def test_a_proxy_that_answers_in_the_servers_place_is_not_believed(
    kube: Cluster, api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "act", lambda request: (200, b"<html>login</html>"))
    with pytest.raises(ClusterError, match="want JSON, have b'<html>login</html>'"):
        kube.node("gpu01")


def test_what_a_node_says(kube: Cluster, api: FakeKubeApi) -> None:
    api.node(
        "gpu01",
        metadata={"labels": {"a": "b"}, "annotations": {"c": "d"}},
        spec={
            "unschedulable": True,
            "podCIDR": "10.244.1.0/24",
            "taints": [CLOSED_TAINT.to_json(), Taint("nvidia.com/gpu", "present").to_json()],
        },
        status={
            "conditions": [ready("False", "KubeletNotReady") | {"message": "cni not initialized"}],
            "allocatable": {"nvidia.com/gpu": "2"},
            "capacity": {"nvidia.com/gpu": "8"},
            "addresses": [{"type": "InternalIP", "address": "10.88.0.11"}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3",
                "machineID": "m",
                "systemUUID": "s",
                "bootID": "b",
            },
        },
    )
    node = kube.node("gpu01")
    assert node is not None
    assert (node.ready, node.ready_reason) == (False, "KubeletNotReady")
    assert node.ready_message == "cni not initialized"
    assert node.unschedulable
    assert node.closed
    assert node.taints == (CLOSED_TAINT, Taint("nvidia.com/gpu", "present", "NoSchedule"))
    assert (node.labels, node.annotations) == ({"a": "b"}, {"c": "d"})
    assert (node.allocatable, node.capacity) == ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "8"})
    assert node.conditions["Ready"].since == "2026-11-30T10:00:00Z"
    assert (node.machine_id, node.system_uuid, node.boot_id) == ("m", "s", "b")
    assert (node.kubelet_version, node.pod_cidr) == ("v1.36.3", "10.244.1.0/24")
    assert node.addresses == (("InternalIP", "10.88.0.11"),)


def test_a_node_object_without_a_kubelet_is_not_ready_and_says_why(
    kube: Cluster, api: FakeKubeApi
) -> None:
    api.node("gpu01")
    node = kube.node("gpu01")
    assert node is not None
    assert (node.ready, node.ready_reason) == (False, "NeverReported")


def test_a_taint_is_put_on_once_and_others_keep_all_their_fields(
    kube: Cluster, api: FakeKubeApi
) -> None:
    other = {
        "key": "node.kubernetes.io/unreachable",
        "effect": "NoExecute",
        "timeAdded": "2026-11-30T10:00:00Z",
    }
    api.node("gpu01", spec={"taints": [other]})
    assert kube.taint("gpu01", CLOSED_TAINT)
    assert api.objects["/api/v1/nodes/gpu01"]["spec"]["taints"] == [other, CLOSED_TAINT.to_json()]
    assert not kube.taint("gpu01", CLOSED_TAINT)
    assert len(api.asked("PATCH")) == 1


def test_a_taint_with_another_value_is_replaced(kube: Cluster, api: FakeKubeApi) -> None:
    api.node("gpu01", spec={"taints": [Taint("a", "old").to_json()]})
    assert kube.taint("gpu01", Taint("a", "new"))
    assert api.objects["/api/v1/nodes/gpu01"]["spec"]["taints"] == [Taint("a", "new").to_json()]


def test_a_taint_is_taken_off_by_key_and_effect(kube: Cluster, api: FakeKubeApi) -> None:
    keep = Taint("a", "", "NoExecute").to_json()
    api.node("gpu01", spec={"taints": [keep, Taint("a", "x", "NoSchedule").to_json()]})
    assert kube.untaint("gpu01", "a", "NoSchedule")
    assert api.objects["/api/v1/nodes/gpu01"]["spec"]["taints"] == [keep]
    assert not kube.untaint("gpu01", "a", "NoSchedule")


def test_a_taint_that_another_writes_at_the_same_moment_is_not_lost(
    kube: Cluster, api: FakeKubeApi
) -> None:
    api.node("gpu01")
    theirs = Taint("node.kubernetes.io/not-ready", "", "NoExecute").to_json()

    def meanwhile(request: Request) -> None:
        if request.method == "PATCH" and len(api.asked("PATCH")) == 1:
            api.node("gpu01", spec={"taints": [theirs]})

    api.before.append(meanwhile)
    assert kube.taint("gpu01", CLOSED_TAINT)
    assert api.objects["/api/v1/nodes/gpu01"]["spec"]["taints"] == [theirs, CLOSED_TAINT.to_json()]


def test_a_node_that_changes_all_the_time_is_given_up_with_a_reason(
    kube: Cluster, api: FakeKubeApi
) -> None:
    api.node("gpu01")
    api.before.append(lambda request: (409, "modified") if request.method == "PATCH" else None)
    with pytest.raises(ClusterError, match="node gpu01: want its taints changed, have 8 conflicts"):
        kube.taint("gpu01", CLOSED_TAINT)


@pytest.mark.parametrize(
    ("machine_id", "uuid", "other"),
    [
        ("4c1e", "ABCD-01", "gpu02"),
        ("9999", "abcd-02", "gpu02"),
        ("9999", "ABCD-01", None),  # its own Node
        ("", "", None),
    ],
)
def test_a_clone_of_another_node_is_found(
    kube: Cluster, api: FakeKubeApi, machine_id: str, uuid: str, other: str | None
) -> None:
    api.node("gpu01", status={"nodeInfo": {"machineID": "9999", "systemUUID": "abcd-01"}})
    api.node("gpu02", status={"nodeInfo": {"machineID": "4c1e", "systemUUID": "ABCD-02"}})
    api.node("gpu03", status={})
    assert kube.twin("gpu01", machine_id, uuid) == other


@pytest.mark.parametrize(
    ("machine_id", "uuid", "ready", "ours"),
    [
        ("9999", "ABCD-01", True, True),
        ("9999", "other", True, True),  # another mainboard
        ("0000", "abcd01", False, True),  # installed anew
        ("0000", "ABCD-01", True, False),  # one UUID for all: a mistake of the firmware's
        ("0000", "other", False, False),
        ("0000", "other", True, False),
        ("0000", None, True, False),
        ("0000", None, False, None),
        (None, "other", False, None),
    ],
)
def test_whose_a_node_object_is(
    kube: Cluster, api: FakeKubeApi, machine_id: str, uuid: str, ready: bool, ours: bool | None
) -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    info = {"machineID": "9999", "systemUUID": "abcd-01"}
    api.node("gpu01", status={"nodeInfo": info, "conditions": conditions})
    node = kube.node("gpu01")
    assert node is not None
    assert node.of_machine(machine_id, uuid) is ours
    api.node("gpu02", status={})  # no kubelet has reported yet
    fresh = kube.node("gpu02")
    assert fresh is not None
    assert fresh.of_machine(machine_id, uuid) is None


def test_a_node_that_is_not_there_cannot_be_tainted(kube: Cluster) -> None:
    with pytest.raises(NotFound, match="node gpu01: want a Node object, have none"):
        kube.taint("gpu01", CLOSED_TAINT)


def test_labels_are_set_and_removed_one_by_one(kube: Cluster, api: FakeKubeApi) -> None:
    api.node("gpu01", metadata={"labels": {"keep": "1", "old": "1"}})
    assert kube.label("gpu01", {"new": "1", "old": None})
    assert api.objects["/api/v1/nodes/gpu01"]["metadata"]["labels"] == {"keep": "1", "new": "1"}
    assert not kube.label("gpu01", {"new": "1", "old": None})
    assert kube.annotate("gpu01", {"rackwright.io/x": "1"})
    assert len(api.asked("PATCH")) == 2


def test_a_condition_keeps_the_time_it_turned(kube: Cluster, api: FakeKubeApi) -> None:
    api.node("gpu01", status={"conditions": [ready()]})

    def conditions() -> dict[str, Any]:
        items = api.objects["/api/v1/nodes/gpu01"]["status"]["conditions"]
        return {item["type"]: item for item in items}

    assert kube.set_condition("gpu01", VALIDATED_CONDITION, "False", "GpuMissing", "want 2 GPUs")
    first = conditions()[VALIDATED_CONDITION]
    assert conditions()["Ready"] == ready()
    first["lastTransitionTime"] = "2026-11-01T00:00:00Z"
    assert kube.set_condition("gpu01", VALIDATED_CONDITION, "False", "PortDown", "want 2 ports")
    assert conditions()[VALIDATED_CONDITION]["lastTransitionTime"] == "2026-11-01T00:00:00Z"
    assert not kube.set_condition("gpu01", VALIDATED_CONDITION, "False", "PortDown", "want 2 ports")
    assert kube.set_condition("gpu01", VALIDATED_CONDITION, "True", "Passed", "12 claims")
    assert conditions()[VALIDATED_CONDITION]["lastTransitionTime"] > "2026-11-01T00:00:00Z"
    assert {request.path for request in api.asked("PATCH")} == {"/api/v1/nodes/gpu01/status"}


# Join tokens and the certificate authority


def test_kad_01_a_token_is_what_kubeadm_expects(kube: Cluster, api: FakeKubeApi) -> None:
    # The operator's clock is not asked.
    api.now = lambda: datetime(2031, 1, 1, tzinfo=UTC)
    with kube.join_token("gpu01", ttl_s=900) as token:
        assert re.fullmatch(r"[a-z0-9]{6}\.[a-z0-9]{16}", token.token)
        (secret,) = [o for o in api.objects.values() if o.get("type", "").startswith("bootstrap")]
        assert secret["metadata"]["name"] == f"bootstrap-token-{token.token[:6]}"
        assert secret["metadata"]["labels"]["rackwright.io/node"] == "gpu01"
        data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        assert data == {
            "description": "rackwright join of gpu01",
            "token-id": token.token[:6],
            "token-secret": token.token[7:],
            "expiration": "2031-01-01T00:15:00Z",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        }
    assert not any(path.startswith(SECRETS) for path in api.objects)


def test_a_token_is_deleted_when_the_join_fails(kube: Cluster, api: FakeKubeApi) -> None:
    with pytest.raises(RuntimeError), kube.join_token("gpu01"):
        raise RuntimeError("kubeadm")
    assert not any(path.startswith(SECRETS) for path in api.objects)


def test_a_token_never_shows_its_secret(kube: Cluster) -> None:
    with kube.join_token("gpu01") as token:
        assert token.token[7:] not in f"{token!r} {token}"
        assert token.token[:6] in repr(token)


def test_a_token_left_by_a_killed_run_is_swept_without_reading_secrets(
    kube: Cluster, api: FakeKubeApi
) -> None:
    kube.join_token("gpu01")
    other = kube.join_token("gpu02")
    assert kube.sweep_tokens("gpu01")
    assert not kube.sweep_tokens("gpu01")
    assert [path for path in api.objects if path.startswith(SECRETS)] == [
        f"{SECRETS}/bootstrap-token-{other.token[:6]}"
    ]
    assert not any("secrets" in request.path for request in api.asked("GET"))


def test_kad_01_a_left_over_token_is_replaced_and_its_old_signature_not_believed(
    kube: Cluster, api: FakeKubeApi
) -> None:
    old = kube.join_token("gpu01")
    api.signing = False  # the signer is slow: the old token's signature is still there
    minted = []
    thread = threading.Thread(target=lambda: minted.append(kube.join_token("gpu01")))
    thread.start()
    time.sleep(1.2)
    assert minted == []
    with api.lock:
        api.signing = True
        api.sign()
    thread.join(timeout=10)
    assert minted[0].token[7:] != old.token[7:]


def test_a_cluster_that_signs_nothing_is_named_and_no_token_is_left(
    kube: Cluster, api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.tokens, "SIGNED_TIMEOUT_S", 0.6)
    api.signing = False
    with pytest.raises(ClusterError, match=r"have no signature after 0\.6 s; the controller manag"):
        kube.join_token("gpu01")
    assert not any(path.startswith(SECRETS) for path in api.objects)


def test_token_ids_are_stable_and_differ_between_nodes() -> None:
    ids = [token_id(f"gpu{number:04}") for number in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[a-z0-9]{6}", one) for one in ids)
    assert token_id("gpu01") == token_id("gpu01")


def test_a_signature_is_checked_as_kubeadm_does() -> None:
    # Made with k8s.io/cluster-bootstrap v0.36.3, jws.ComputeDetachedSignature.
    signature = (
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..vH_kT4yiol-nrAWgjfCYqvum5wsKETXe0S7OOp1VgnE"
    )
    content = "apiVersion: v1\nkind: Config\n"
    assert signed(content, signature, "abcdef.0123456789abcdef")
    assert not signed(content, signature, "abcdef.0123456789abcdee")
    assert not signed(content + " ", signature, "abcdef.0123456789abcdef")


def test_kad_02_the_ca_hash_is_what_openssl_makes_of_it() -> None:
    assert ca_hashes(CA_PEM, where="test") == [CA_HASH]


def test_the_ca_of_kubeconfig_and_cluster_info_are_the_same(kube: Cluster) -> None:
    assert kube.ca_pem.startswith(b"-----BEGIN CERTIFICATE-----")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", kube.ca_hash())


def test_kad_02_another_ca_in_cluster_info_is_refused(kube: Cluster, api: FakeKubeApi) -> None:
    api.objects[CLUSTER_INFO]["data"]["kubeconfig"] = kube_api.kubeconfig(api.url, CA_PEM)
    with pytest.raises(ClusterError, match=f"have {CA_HASH}; the kubeconfig is of another cluster"):
        kube.ca_hash()


@pytest.mark.parametrize("text", ["", "[", "clusters: []", "clusters: [{cluster: {}}]"])
def test_a_cluster_info_without_a_ca_is_refused(kube: Cluster, api: FakeKubeApi, text: str) -> None:
    api.objects[CLUSTER_INFO]["data"]["kubeconfig"] = text
    with pytest.raises(ClusterError, match="want a kubeconfig with certificate-authority-data"):
        kube.ca_hash()


def test_a_missing_cluster_info_is_named_with_what_makes_it(
    kube: Cluster, api: FakeKubeApi
) -> None:
    del api.objects[CLUSTER_INFO]
    with pytest.raises(
        ClusterError, match=r"have none; make it .*kubeadm init phase bootstrap-tok"
    ):
        kube.ca_hash()


# Pods


def owner(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": "x", "controller": True}]}


def test_pods_of_a_node_are_read_page_by_page(kube: Cluster, api: FakeKubeApi) -> None:
    api.page_size = 2
    for number in range(5):
        api.pod("team", f"job-{number}", spec={"nodeName": "gpu01"})
    api.pod("team", "elsewhere", spec={"nodeName": "gpu02"})
    assert [str(pod) for pod in kube.pods_on("gpu01")] == [f"team/job-{n}" for n in range(5)]


def test_pages_that_never_end_are_not_asked_for_ever(kube: Cluster, monkeypatch) -> None:
    page = {"kind": "PodList", "items": [], "metadata": {"continue": "same"}}
    monkeypatch.setattr(Api, "get", lambda self, path, **query: page)
    with pytest.raises(ClusterError, match="want the next page as the answer"):
        list(kube.pods_on("gpu01"))


def test_what_a_pod_asks_for_is_summed_over_its_containers(kube: Cluster, api: FakeKubeApi) -> None:
    api.pod(
        "team",
        "job",
        metadata=owner("ReplicaSet"),
        spec={
            "nodeName": "gpu01",
            "containers": [
                {"resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "2"}}},
                {"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1", "rdma/hca": "1"}}},
                {},
            ],
        },
        status={
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [
                {"restartCount": 3, "state": {"running": {"startedAt": "2026-11-30T10:00:00Z"}}},
                {
                    "restartCount": 1,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}},
                },
            ],
        },
    )
    (pod,) = kube.pods_on("gpu01")
    assert pod.requests == {"cpu": "1.5", "nvidia.com/gpu": "3", "rdma/hca": "1"}
    assert pod.devices == {"nvidia.com/gpu": "3", "rdma/hca": "1"}
    assert (pod.owner_kind, pod.phase, pod.ready) == ("ReplicaSet", "Running", False)
    assert (pod.restart_count, pod.waiting_reason) == (4, "ImagePullBackOff: no such tag")
    assert pod.started_at == "2026-11-30T10:00:00Z"


def test_in_service_is_what_somebody_would_miss(kube: Cluster, api: FakeKubeApi) -> None:
    gpu = [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    here, running = {"nodeName": "gpu01"}, {"phase": "Running"}
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    probe = {"labels": {"rackwright.io/probe": "gpu"}}
    api.pod("kube-system", "cni", metadata=owner("DaemonSet"), spec=here, status=running)
    api.pod("kube-system", "static", metadata=owner("Node"), spec=here, status=running)
    api.pod("kube-system", "mirror", metadata=mirror, spec=here, status=running)
    api.pod("team", "done", spec=here, status={"phase": "Succeeded"})
    api.pod("team", "died", spec=here, status={"phase": "Failed"})
    api.pod("rackwright", "probe", metadata=probe, spec=here, status=running)
    assert in_service(kube.pods_on("gpu01")) == []
    api.pod("team", "a-web", metadata=owner("ReplicaSet"), spec=here, status=running)
    api.pod("team", "starting", spec=here, status={"phase": "Pending"})
    api.pod("team", "z-train", spec=here | {"containers": gpu}, status=running)
    found = [str(pod) for pod in in_service(kube.pods_on("gpu01"))]
    assert found == ["team/z-train", "team/a-web", "team/starting"]


def test_a_pod_is_deleted_by_uid_and_not_by_name(kube: Cluster, api: FakeKubeApi) -> None:
    api.pod("rackwright", "plugin", spec={"nodeName": "gpu01"})
    (pod,) = kube.pods_on("gpu01")
    api.pod("rackwright", "plugin", spec={"nodeName": "gpu01"})
    kube.delete_pod(pod)
    (successor,) = kube.pods_on("gpu01")
    assert successor.uid != pod.uid
    kube.delete_pod(successor)
    assert kube.pods_on("gpu01") == []


def test_a_pod_that_does_not_go_is_named(kube: Cluster, api: FakeKubeApi) -> None:
    api.pod("rackwright", "plugin", spec={"nodeName": "gpu01"})
    (pod,) = kube.pods_on("gpu01")
    live = api.objects["/api/v1/namespaces/rackwright/pods/plugin"]

    def stays(request: Request) -> None:
        api.objects["/api/v1/namespaces/rackwright/pods/plugin"] = live

    api.before.append(stays)
    with pytest.raises(ClusterError, match=r"pod rackwright/plugin: want it gone within 0\.6 s"):
        kube.delete_pod(pod, gone_within_s=0.6)


# Apply


def configmap(**data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "x",
            "namespace": "rackwright",
            "labels": {"app.kubernetes.io/managed-by": "rackwright"},
        },
        "data": data,
    }


def test_apply_says_whether_it_changed_anything(kube: Cluster, api: FakeKubeApi) -> None:
    assert kube.differs(configmap(a="1"))
    assert kube.apply(configmap(a="1"))
    assert not kube.differs(configmap(a="1"))
    assert not kube.apply(configmap(a="1"))
    assert kube.differs(configmap(a="2"))
    assert not kube.differs(configmap(a="1"))
    assert kube.apply(configmap(a="2"))
    assert {request.query["fieldManager"] for request in api.asked("PATCH")} == {"rackwright"}
    assert not any("force" in request.query for request in api.requests)


def conflict_unless_forced(request: Request) -> tuple[int, str] | None:
    if request.method == "PATCH" and request.query.get("force") != "true":
        return 409, 'Apply failed with 1 conflict: conflict with "kubectl-edit": .data.a'
    return None


def test_an_edit_of_what_is_ours_is_taken_back(kube: Cluster, api: FakeKubeApi) -> None:
    kube.apply(configmap(a="1"))
    api.objects["/api/v1/namespaces/rackwright/configmaps/x"]["data"]["a"] = "edited"
    api.before.append(conflict_unless_forced)
    assert kube.differs(configmap(a="1"))
    assert kube.apply(configmap(a="1"))
    assert api.objects["/api/v1/namespaces/rackwright/configmaps/x"]["data"] == {"a": "1"}


def test_what_is_not_ours_is_not_taken(kube: Cluster, api: FakeKubeApi) -> None:
    api.put("/api/v1/namespaces/rackwright/configmaps/x", data={"a": "theirs"})
    api.before.append(conflict_unless_forced)
    with pytest.raises(
        ClusterError, match="ConfigMap rackwright/x: want to manage it, have anothe"
    ):
        kube.apply(configmap(a="1"))
    assert api.objects["/api/v1/namespaces/rackwright/configmaps/x"]["data"] == {"a": "theirs"}


def test_a_kind_that_we_do_not_apply_is_refused(kube: Cluster) -> None:
    with pytest.raises(ClusterError, match="have v1 Secret"):
        kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})


# Who else is in charge


def test_nobody_else_is_in_charge(kube: Cluster, api: FakeKubeApi) -> None:
    ours = {"labels": {"app.kubernetes.io/managed-by": "rackwright"}}
    api.put(
        "/apis/apps/v1/namespaces/rackwright/daemonsets/nvidia-device-plugin",
        metadata=ours,
        spec=kube_api.template("nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
    )
    assert kube.operator_in_charge() is None


def test_drv_19_the_gpu_operators_policy_is_found_and_its_mere_type_is_not(
    kube: Cluster, api: FakeKubeApi
) -> None:
    api.collections.add("/apis/nvidia.com/v1/clusterpolicies")
    assert kube.operator_in_charge() is None
    api.put("/apis/nvidia.com/v1/clusterpolicies/cluster-policy")
    assert kube.operator_in_charge() == "ClusterPolicy of the NVIDIA GPU Operator: cluster-policy"


@pytest.mark.parametrize(
    "image",
    [
        "nvcr.io/nvidia/k8s-device-plugin:v0.17.1",
        "registry.example:5000/nvidia/k8s-device-plugin@sha256:00",
        "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin",
    ],
)
def test_another_device_plugin_is_found_wherever_it_runs(
    kube: Cluster, api: FakeKubeApi, image: str
) -> None:
    path = "/apis/apps/v1/namespaces/gpus/daemonsets/plugin"
    api.put(path, spec=kube_api.template(image))
    assert kube.operator_in_charge() == f"DaemonSet gpus/plugin with image {image}"


# Probes


def probe(name: str, namespace: str = "rackwright") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"rackwright.io/probe": "gpu", "rackwright.io/node": "gpu01"},
        },
        "spec": {},
    }


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "POLL_S", 0.05)
    monkeypatch.setattr(probing, "UNSCHEDULABLE_AFTER_S", 0.2)


def kubelet(api: FakeKubeApi, status: dict[str, dict[str, Any]]) -> None:
    """Give each pod that exists the status of its name, as its kubelet or the scheduler would."""

    def act(request: Request) -> None:
        for path, item in api.objects.items():
            name = path.rsplit("/", 1)[1]
            if "/pods/" in path and name in status:
                item["status"] = status[name]
                if not any(
                    c["type"] == "PodScheduled" for c in item["status"].get("conditions", [])
                ):
                    item["spec"]["nodeName"] = "gpu01"

    api.before.append(act)


def terminated(code: int, reason: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}


def unschedulable(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"phase": "Pending", "conditions": [condition | {"message": message}]}


@pytest.mark.usefixtures("_quick")
def test_probes_run_at_once_and_come_back_in_order(kube: Cluster, api: FakeKubeApi) -> None:
    kubelet(api, {"good": terminated(0, "Completed"), "bad": terminated(3, "Error")})
    api.logs["/api/v1/namespaces/rackwright/pods/good"] = "two GPUs\n"
    bad, good = kube.probes([probe("bad"), probe("good")], timeout_s=5)
    assert (good.phase, good.log, good.reason) == ("Succeeded", "two GPUs\n", "")
    assert (bad.phase, bad.reason, bad.scheduled) == ("Failed", "Error: exit code 3", True)
    order = [str(request).split("/")[0] for request in api.requests]
    assert order[:3] == ["POST ", "POST ", "GET "]
    assert not any("/pods/" in path for path in api.objects)


@pytest.mark.usefixtures("_quick")
def test_no_free_gpu_is_told_from_a_failure(kube: Cluster, api: FakeKubeApi) -> None:
    kubelet(api, {"p": unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")})
    started = time.monotonic()
    result = kube.run_probe(probe("p"), timeout_s=30)
    assert time.monotonic() - started < 5
    assert (result.phase, result.scheduled) == ("Pending", False)
    assert result.reason == (
        "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    )
    assert not any("/pods/" in path for path in api.objects)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("status", "phase", "reason"),
    [
        (
            {
                "phase": "Failed",
                "reason": "UnexpectedAdmissionError",
                "message": "Allocate failed due to no healthy devices present",
            },
            "Failed",
            "UnexpectedAdmissionError: Allocate failed due to no healthy devices present",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "ErrImagePull", "message": "no host"}}}
                ],
            },
            "Pending",
            "ErrImagePull: no host",
        ),
        ({"phase": "Running"}, "Running", "still Running after 0 s"),
    ],
)
def test_why_a_probe_did_not_succeed_is_the_kubelets_reason(
    kube: Cluster, api: FakeKubeApi, status: dict[str, Any], phase: str, reason: str
) -> None:
    kubelet(api, {"p": status})
    result = kube.run_probe(probe("p"), timeout_s=0.3)
    assert (result.phase, result.reason, result.scheduled) == (phase, reason, True)


@pytest.mark.usefixtures("_quick")
def test_kad_11_why_a_pod_has_no_sandbox_is_its_newest_warning(
    kube: Cluster, api: FakeKubeApi
) -> None:
    kubelet(api, {"p": {"phase": "Pending"}})
    events = "/api/v1/namespaces/rackwright/events"
    for name, pod, kind, message, at in (
        ("a", "p", "Warning", "an older one", "2026-11-30T20:00:00Z"),
        ("b", "p", "Warning", 'set bridge addr: "cni0" already\n has one', "2026-11-30T20:02:00Z"),
        ("c", "p", "Normal", "Scheduled", "2026-11-30T20:03:00Z"),
        ("d", "other", "Warning", "of another", "2026-11-30T20:03:00Z"),
    ):
        api.put(
            f"{events}/{name}", involvedObject={"name": pod}, type=kind, lastTimestamp=at,
            reason="FailedCreatePodSandBox", message=message,
        )  # fmt: skip
    result = kube.run_probe(probe("p"), timeout_s=0.3)
    assert result.reason.endswith(
        '; FailedCreatePodSandBox: set bridge addr: "cni0" already has one'
    )


@pytest.mark.usefixtures("_quick")
def test_probes_are_deleted_when_the_second_cannot_be_created(
    kube: Cluster, api: FakeKubeApi
) -> None:
    api.before.append(
        lambda r: (
            (403, "quota") if r.method == "POST" and "b" in r.body["metadata"]["name"] else None
        )
    )
    with pytest.raises(ClusterError, match="403 quota"):
        kube.probes([probe("a"), probe("b")], timeout_s=5)
    assert not any("/pods/" in path for path in api.objects)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("refusals", "log"), [(3, "two GPUs\n"), (99, None)], ids=["for a moment", "for ever"]
)
def test_a_log_that_cannot_be_fetched_is_asked_for_again_and_is_then_unknown(
    kube: Cluster, api: FakeKubeApi, refusals: int, log: str | None
) -> None:
    kubelet(api, {"p": terminated(0, "Completed")})
    api.logs["/api/v1/namespaces/rackwright/pods/p"] = "two GPUs\n"
    left = [(500, "dial tcp 10.0.0.2:10250: i/o timeout")] * refusals
    api.before.append(lambda r: left.pop() if left and r.path.endswith("/log") else None)
    result = kube.run_probe(probe("p"), timeout_s=5)
    assert (result.phase, result.log, result.scheduled) == ("Succeeded", log, True)
    assert ("i/o timeout" in result.reason) == (log is None)


@pytest.mark.usefixtures("_quick")
def test_where_a_probe_ran_is_told(kube: Cluster, api: FakeKubeApi) -> None:
    kubelet(api, {"p": terminated(0, "Completed")})
    (ran,) = {kube.run_probe(probe("p"), timeout_s=5).node}
    assert ran == "gpu01"


@pytest.mark.usefixtures("_quick")
def test_a_probe_that_somebody_deletes_is_not_waited_for(kube: Cluster, api: FakeKubeApi) -> None:
    def gone(request: Request) -> None:
        api.objects.pop("/api/v1/namespaces/rackwright/pods/p", None)

    api.before.append(lambda request: gone(request) if request.method == "GET" else None)
    result = kube.run_probe(probe("p"), timeout_s=5)
    assert (result.phase, result.reason) == ("Unknown", "somebody deleted the probe pod")


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(days=-1), timedelta(days=1)], ids=str)
def test_only_old_probes_of_the_node_are_swept_by_the_servers_clock(
    kube: Cluster, api: FakeKubeApi, ahead: timedelta
) -> None:
    api.now = lambda: datetime.now(UTC) + ahead
    old = f"{api.now() - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    labels = {"rackwright.io/probe": "gpu", "rackwright.io/node": "gpu01"}
    api.pod("rackwright", "old", metadata={"labels": labels, "creationTimestamp": old})
    api.pod("rackwright", "young", metadata={"labels": labels})
    elsewhere = labels | {"rackwright.io/node": "gpu02"}
    api.pod("rackwright", "other", metadata={"labels": elsewhere, "creationTimestamp": old})
    unlabelled = {"creationTimestamp": old}
    api.pod("rackwright", "plugin", metadata=unlabelled)
    assert kube.sweep_probes("gpu01") == ["old"]
    left = {path.rsplit("/", 1)[1] for path in api.objects if "/pods/" in path}
    assert left == {"young", "other", "plugin"}


# Rights


def test_the_documented_rights_are_those_that_are_needed() -> None:
    documents = [d for d in yaml.safe_load_all((DOCS / "rbac.yaml").read_text()) if d is not None]
    granted = set()
    for document in documents:
        if document["kind"] not in {"ClusterRole", "Role"}:
            continue
        space = document["metadata"].get("namespace", "")
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            granted.add((verb, resource, group, space, name))
    assert granted == {
        (right.verb, right.resource, right.group, right.namespace, right.name) for right in needed()
    }


def test_what_we_may_not_do_is_listed(kube: Cluster, api: FakeKubeApi) -> None:
    def review(request: Request) -> None:
        attributes = request.body["spec"]["resourceAttributes"]
        request.body["metadata"] = {"name": f"review-{len(api.requests)}"}
        allowed = attributes["resource"] != "secrets" and "subresource" not in attributes
        request.body["status"] = {"allowed": allowed}

    api.before.append(review)
    assert kube.missing_rights("gpus") == [
        "patch nodes/status",
        "create secrets in kube-system",
        "delete secrets in kube-system",
        "get pods/log in gpus",
    ]
