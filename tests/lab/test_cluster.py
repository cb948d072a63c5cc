"""``cluster`` with the rights of docs/rbac.yaml, against the lab's real API server.

No guest takes part: the node is an object only, and its kubelet's answers are given by the test.
"""

from __future__ import annotations

import copy
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import CLOSED_TAINT, VALIDATED_CONDITION, Cluster, ClusterError, Taint
from cluster.api import Api
from cluster.manifests import device_plugins
from cluster.plugin_config import rdma_config_problems, rdma_plugin_config
from cluster.probes import bare_probe, gpu_probe, new_run
from lab import control_plane
from lab.control_plane import kubectl
from lab.mirror import go
from lab.paths import KUBECONFIG_RACKWRIGHT

pytestmark = pytest.mark.guest

NODE = "only-an-object"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
PODS = "/api/v1/namespaces/rackwright/pods"


@pytest.fixture(scope="module")
def kube() -> Cluster:
    if not control_plane.status()["answers"]:
        pytest.fail("want the lab's API server to answer; run: python -m lab up")
    return Cluster.connect(KUBECONFIG_RACKWRIGHT)


@pytest.fixture(scope="module")
def api() -> Api:
    return Api(KUBECONFIG_RACKWRIGHT)


@pytest.fixture
def node() -> Iterator[str]:
    kubectl("delete", "node", NODE, "--ignore-not-found")
    manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    yield NODE
    kubectl("delete", "node", NODE)
    kubectl(
        "-nrackwright", "delete", "pods", "-lrackwright.io/probe", "--force", "--grace-period=0"
    )


def secret(name: str, kind: str = "Opaque", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": kind,
        "stringData": data,
    }


# Rights


def test_the_documented_rights_are_enough(kube: Cluster) -> None:
    assert kube.missing_rights() == []


def test_secrets_can_not_be_read(api: Api) -> None:
    for read in (api.find, lambda path: list(api.list(path))):
        with pytest.raises(ClusterError, match="have 403 secrets"):
            read(SECRETS)
    with pytest.raises(ClusterError, match='have 403 secrets "x" is forbidden'):
        api.find(f"{SECRETS}/x")


@pytest.mark.parametrize(
    "body",
    [
        secret("ordinary", a="b"),
        secret("bootstrap-token-ordinary", a="b"),
        secret(
            "bootstrap-token-zzzzzz",
            "bootstrap.kubernetes.io/token",
            **{
                "token-id": "zzzzzz",
                "token-secret": "0123456789abcdef",
                "auth-extra-groups": "system:bootstrappers:kubeadm:other",
            },
        ),
        secret("a-token", "kubernetes.io/service-account-token")
        | {
            "metadata": {
                "name": "a-token",
                "annotations": {"kubernetes.io/service-account.name": "node-controller"},
            }
        },
    ],
    ids=lambda body: body["metadata"]["name"],
)
def test_no_secrets_but_join_tokens_can_be_created(api: Api, body: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="ValidatingAdmissionPolicy 'rackwright-join-tokens'"):
        api.post(SECRETS, body)


def test_other_secrets_can_not_be_deleted(api: Api) -> None:
    kubectl("-nkube-system", "create", "secret", "generic", "somebodys")
    try:
        with pytest.raises(ClusterError, match="ValidatingAdmissionPolicy"):
            api.delete(f"{SECRETS}/somebodys")
    finally:
        kubectl("-nkube-system", "delete", "secret", "somebodys")


def test_nothing_else_of_nodes_and_namespaces_can_be_had(api: Api) -> None:
    with pytest.raises(ClusterError, match="have 403"):
        api.delete("/api/v1/nodes/nobody")
    with pytest.raises(ClusterError, match="have 403"):
        api.post("/api/v1/namespaces/default/pods", bare_probe("x", image="a:1", run="r"))


# Reading


def test_the_server_is_who_the_kubeconfig_says(kube: Cluster) -> None:
    assert kube.server_version() == "1.36.3"
    assert abs(kube.server_time().timestamp() - time.time()) < 30
    assert kube.ca_hash().startswith("sha256:")
    assert kube.node("no-such-node") is None


def test_another_operator_is_found_by_its_policy(kube: Cluster) -> None:
    assert kube.operator_in_charge() is None
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {
            "group": "nvidia.com",
            "scope": "Cluster",
            "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
    }
    try:
        kubectl("apply", "-f", "-", stdin=json.dumps(definition))
        kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com")
        assert kube.operator_in_charge() is None, "the type alone is what an uninstall leaves"
        kubectl("apply", "-f", "-", stdin=json.dumps(policy))
        assert (
            kube.operator_in_charge() == "ClusterPolicy of the NVIDIA GPU Operator: cluster-policy"
        )
    finally:
        kubectl("delete", "crd", "clusterpolicies.nvidia.com", "--ignore-not-found")


# Join tokens


def test_a_join_token_is_signed_valid_and_gone_afterwards(kube: Cluster, tmp_path: Path) -> None:
    def user(token: str) -> str:
        """Whom the API server takes the bearer of *token* for; empty if for nobody."""
        config = yaml.safe_load(KUBECONFIG_RACKWRIGHT.read_text())
        config["users"][0]["user"] = {"token": token}
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = Api(path).post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        except ClusterError as error:
            if "have 401 Unauthorized" not in str(error):
                raise
            return ""
        return str(answer["status"]["userInfo"]["username"])

    killed = kube.join_token(NODE)
    with kube.join_token(NODE) as token:
        assert token.token[:6] == killed.token[:6]
        name = f"bootstrap-token-{token.token[:6]}"
        found = json.loads(kubectl("-nkube-system", "get", "secret", name, "-ojson"))
        assert found["metadata"]["labels"]["rackwright.io/node"] == NODE
        eventually(lambda: user(token.token) == f"system:bootstrap:{token.token[:6]}")
        eventually(lambda: user(killed.token) == "")
    assert kubectl("-nkube-system", "get", "secret", name, "--ignore-not-found") == ""
    eventually(lambda: user(token.token) == "")
    assert not kube.sweep_tokens(NODE)


# Nodes


def test_taints_labels_and_conditions_of_a_node(kube: Cluster, node: str) -> None:
    kube.taint(node, CLOSED_TAINT)
    kube.taint(node, Taint("nvidia.com/gpu", "present"))
    assert not kube.taint(node, CLOSED_TAINT)
    kube.label(node, {"nvidia.com/gpu.present": "true"})
    kube.annotate(node, {"rackwright.io/test": "1"})
    assert kube.set_condition(node, VALIDATED_CONDITION, "False", "GpuMissing", "want 2, have 1")
    state = kube.node(node)
    assert state is not None
    assert state.closed
    assert Taint("nvidia.com/gpu", "present") in state.taints
    assert state.labels["nvidia.com/gpu.present"] == "true"
    assert state.annotations["rackwright.io/test"] == "1"
    assert state.conditions[VALIDATED_CONDITION].reason == "GpuMissing"
    assert not state.ready
    assert kube.untaint(node, CLOSED_TAINT.key, CLOSED_TAINT.effect)
    state = kube.node(node)
    assert state is not None
    assert not state.closed


def test_writers_at_the_same_time_lose_nothing(kube: Cluster, node: str) -> None:
    wanted = [Taint(f"example.com/{number}") for number in range(6)]
    threads = [threading.Thread(target=kube.taint, args=(node, taint)) for taint in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = kube.node(node)
    assert state is not None
    assert set(wanted) <= set(state.taints)


# Apply


@pytest.fixture
def manifests() -> Iterator[list[dict[str, Any]]]:
    """The real ones under another name: those of the lab's nodes are left alone."""
    made = device_plugins(nvidia_image="example.com/a:1", rdma_image="example.com/b:1")
    for manifest in made:
        manifest["metadata"]["name"] = f"test-{manifest['metadata']['name']}"
        manifest["spec"]["template"]["spec"]["nodeSelector"] = {"nowhere": "true"}
    yield made
    for manifest in made:
        kubectl(
            "-nrackwright", "delete", "daemonset", manifest["metadata"]["name"],
            "--ignore-not-found",
        )  # fmt: skip


def test_device_plugins_are_applied_once(kube: Cluster, manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        assert kube.differs(manifest)
        assert kube.apply(manifest)
        assert not kube.differs(manifest)
        assert not kube.apply(manifest)
        changed = copy.deepcopy(manifest)
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/a:2"
        assert kube.differs(changed)
        assert not kube.differs(manifest), "to ask changes nothing"
        assert kube.apply(changed)


def test_a_manual_edit_is_taken_back(kube: Cluster, manifests: list[dict[str, Any]]) -> None:
    manifest = manifests[0]
    name = manifest["metadata"]["name"]
    kube.apply(manifest)
    container = manifest["spec"]["template"]["spec"]["containers"][0]["name"]
    kubectl("-nrackwright", "set", "image", f"daemonset/{name}", f"{container}=example.com/mine:1")
    assert kube.differs(manifest)
    assert kube.apply(manifest)
    assert not kube.differs(manifest)


def test_what_somebody_else_made_under_our_name_is_left_alone(
    kube: Cluster, manifests: list[dict[str, Any]]
) -> None:
    theirs = copy.deepcopy(manifests[0])
    del theirs["metadata"]["labels"]
    theirs["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/theirs:1"
    kubectl("create", "-f", "-", stdin=json.dumps(theirs))
    with pytest.raises(
        ClusterError, match=r'want to manage it, have another owner .*"kubectl-crea'
    ):
        kube.apply(manifests[0])


# What a node's plugins read


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"resourcePrefix": "example.com"},
        {"resourceName": "hca-shared"},
        {"resourceName": ""},
        {"rdmaHcaMax": -1},
        {"devices": ["ib0"]},
        {"selectors": {}},
        {"selectors": {"vendors": []}},
    ],
    ids=str,
)
def test_the_real_rdma_plugin_refuses_what_we_refuse(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    config = json.loads(
        rdma_plugin_config("hca_shared", "rdma", 63, [("15b3", "1021", "ib0", "infiniband")])
    )
    config["configList"][0] |= change
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    program = go.build("rdma-plugin")["k8s-rdma-shared-dp"]
    # It goes on to the host's devices if it likes the file: here that ends, on a host with RDMA
    # devices it would serve them.
    done = subprocess.run(
        ["timeout", "5", program, "--config-file", path], capture_output=True, text=True
    )
    output = done.stdout + done.stderr
    assert "Reading" in output
    assert ("invalid configuration(s) given" in output) == bool(rdma_config_problems(config))


# Probes


def ready(node: str, **resources: str) -> None:
    """What a kubelet would report."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", **resources}
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"conditions": [condition], "allocatable": amounts, "capacity": amounts}
    kubectl("patch", "node", node, "--subresource=status", "-p", json.dumps({"status": status}))
    deadline = time.monotonic() + 30
    while "not-ready" in kubectl("get", "node", node, "-ojsonpath={.spec.taints[*].key}"):
        assert time.monotonic() < deadline, "the node controller did not take its taint back"
        time.sleep(0.5)


def test_a_probe_goes_through_the_scheduler_to_a_closed_node(kube: Cluster, node: str) -> None:
    kube.taint(node, CLOSED_TAINT)
    ready(node, **{"nvidia.com/gpu": "1"})
    run = new_run()
    gpu, bare = gpu_probe(node, image="a:1", run=run), bare_probe(node, image="a:1", run=run)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(kube.probes([gpu, bare], 60)))
    thread.start()
    for pod in (gpu, bare):
        name = pod["metadata"]["name"]
        scheduled = "--for=jsonpath={.spec.nodeName}=" + node
        eventually(lambda n=name: kubectl("-nrackwright", "get", "pod", n, "--ignore-not-found"))
        kubectl("-nrackwright", "wait", scheduled, f"pod/{name}", "--timeout=30s")
        done = json.dumps({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
        kubectl("-nrackwright", "patch", "pod", name, "--subresource=status", "-p", done)
    thread.join()
    assert [result.phase for result in results] == ["Failed", "Failed"]
    assert {result.reason for result in results} == {"UnexpectedAdmissionError"}
    assert kubectl("-nrackwright", "get", "pods", "-lrackwright.io/probe", "-oname") == ""


def test_no_free_gpu_is_the_schedulers_answer(kube: Cluster, node: str) -> None:
    ready(node, **{"nvidia.com/gpu": "0"})
    result = kube.run_probe(gpu_probe(node, image="a:1", run=new_run()), timeout_s=60)
    assert not result.scheduled
    assert "Insufficient nvidia.com/gpu" in result.reason


def eventually(check: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.3)
