"""Device plugins and probes: what is put into the cluster and on a node, and what a probe says."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from cluster import CLOSED_TAINT, ClusterError, PodState, Taint, pod_state
from cluster.manifests import (
    CONFIG_DIR,
    TEMPLATE_HASH,
    TEMPLATES,
    device_plugins,
    outdated,
    plugin_pods,
)
from cluster.names import label_value
from cluster.plugin_config import (
    nvidia_plugin_config,
    rdma_config_matches,
    rdma_config_problems,
    rdma_plugin_config,
)
from cluster.probes import bare_probe, gpu_probe, new_run, parse_log, rdma_probe

IMAGES = {
    "nvidia_image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
    "rdma_image": "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3",
}
PORTS = [
    ("15b3", "1021", "ibp12s0", "infiniband"),
    ("15b3", "1021", "ibp13s0", "infiniband"),
]


# Manifests


def by_name(namespace: str = "rackwright", **images: str | None) -> dict[str, dict[str, Any]]:
    manifests = device_plugins(**{**IMAGES, **images}, namespace=namespace)  # type: ignore[arg-type]
    return {manifest["metadata"]["name"]: manifest for manifest in manifests}


def test_both_plugins_are_daemonsets_of_ours() -> None:
    manifests = by_name(namespace="gpus")
    assert sorted(manifests) == ["nvidia-device-plugin", "rdma-shared-device-plugin"]
    for manifest in manifests.values():
        assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "DaemonSet")
        assert manifest["metadata"]["namespace"] == "gpus"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rackwright"
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_plugin_without_an_image_is_left_out() -> None:
    assert sorted(by_name(rdma_image=None)) == ["nvidia-device-plugin"]


def test_the_plugins_run_where_they_are_selected_whatever_the_taints() -> None:
    selected = {}
    for name, manifest in by_name().items():
        pod = manifest["spec"]["template"]["spec"]
        selected[name] = pod["nodeSelector"]
        assert pod["tolerations"] == [{"operator": "Exists"}]
    assert selected == {
        "nvidia-device-plugin": {"nvidia.com/gpu.present": "true"},
        "rdma-shared-device-plugin": {"rackwright.io/rdma": "true"},
    }


def test_what_differs_per_node_is_a_file_on_it_and_the_manifest_restarts_nobody() -> None:
    for manifest in by_name().values():
        assert manifest["spec"]["updateStrategy"] == {"type": "OnDelete"}
        pod = manifest["spec"]["template"]["spec"]
        (volume,) = [v for v in pod["volumes"] if v["name"] == "config"]
        assert volume["hostPath"] == {"path": CONFIG_DIR, "type": "Directory"}
        (container,) = pod["containers"]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "config"]
        assert mount == {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True}
    nvidia, rdma = by_name().values()
    (container,) = nvidia["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["CONFIG_FILE"] == f"{CONFIG_DIR}/nvidia-device-plugin.yaml"
    (container,) = rdma["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--config-file", f"{CONFIG_DIR}/rdma-shared-device-plugin.json"]


def test_a_plugin_runs_as_a_container_of_its_image() -> None:
    images = [
        container["image"]
        for manifest in by_name().values()
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert images == list(IMAGES.values())


def plugin_pod(
    annotations: dict[str, str],
    kind: str = "DaemonSet",
    owner: str = "nvidia-device-plugin",
    namespace: str = "rackwright",
) -> PodState:
    return pod_state(
        {
            "metadata": {
                "name": "nvidia-device-plugin-x7k2p",
                "namespace": namespace,
                "annotations": annotations,
                "labels": {"app.kubernetes.io/name": "nvidia-device-plugin"},
                "ownerReferences": [{"kind": kind, "name": owner, "controller": True}],
            }
        }
    )


def test_a_pod_of_an_older_manifest_is_told() -> None:
    old, new = by_name(nvidia_image="a/b:1"), by_name(nvidia_image="a/b:2")
    template = old["nvidia-device-plugin"]["spec"]["template"]
    pod = plugin_pod(template["metadata"]["annotations"])
    assert not outdated(pod, old["nvidia-device-plugin"])
    assert outdated(pod, new["nvidia-device-plugin"])
    assert outdated(plugin_pod({}), old["nvidia-device-plugin"])
    assert by_name() == by_name(), "the same spec makes the same manifest"
    assert set(template["metadata"]["annotations"]) == {TEMPLATE_HASH}


def test_the_plugins_pods_are_those_of_its_daemonset() -> None:
    """NVIDIA's chart gives its pods the same label."""
    ours = plugin_pod({})
    theirs = [
        plugin_pod({}, kind="ReplicaSet"),
        plugin_pod({}, owner="nvdp-nvidia-device-plugin"),
        plugin_pod({}, namespace="kube-system"),
    ]
    assert plugin_pods([ours, *theirs], "nvidia-device-plugin", "rackwright") == [ours]
    assert plugin_pods([ours, *theirs], "rdma-shared-device-plugin", "rackwright") == []


# Files on the node


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_the_nvidia_plugins_file(strategy: Any) -> None:
    assert yaml.safe_load(nvidia_plugin_config(strategy)) == {
        "version": "v1",
        "flags": {"migStrategy": strategy, "failOnInitError": True},
    }


def test_rdm_09_the_rdma_plugins_file_names_exactly_the_ports_of_the_node() -> None:
    config = json.loads(rdma_plugin_config("hca_shared", "rdma", 63, PORTS))
    assert config == {
        "periodicUpdateInterval": 60,
        "configList": [
            {
                "resourceName": "hca_shared",
                "resourcePrefix": "rdma",
                "rdmaHcaMax": 63,
                "selectors": {
                    "vendors": ["15b3"],
                    "deviceIDs": ["1021"],
                    "ifNames": ["ibp12s0", "ibp13s0"],
                    "linkTypes": ["infiniband"],
                },
            }
        ],
    }
    storage = ("15b3", "1021", "ibp99s0", "infiniband")
    assert rdma_config_matches(config, [*PORTS, storage]) == PORTS


def test_the_rdma_plugins_file_is_the_same_in_whatever_order_the_ports_are_read() -> None:
    assert rdma_plugin_config("a", "rdma", 1, PORTS) == rdma_plugin_config(
        "a", "rdma", 1, PORTS[::-1]
    )


def test_a_port_without_a_network_device_is_not_selected_by_one() -> None:
    """The plugin gives such a device neither a name nor a link type."""
    bare = ("15b3", "1021", "", "infiniband")
    config = json.loads(rdma_plugin_config("a", "rdma", 1, [bare]))
    assert sorted(config["configList"][0]["selectors"]) == ["deviceIDs", "vendors"]
    assert rdma_config_matches(config, [bare]) == [bare]
    named = json.loads(rdma_plugin_config("a", "rdma", 1, PORTS))
    assert rdma_config_matches(named, [bare]) == []


def test_no_ports_make_no_file() -> None:
    with pytest.raises(ValueError, match="selectors: want at least one, have none"):
        rdma_plugin_config("a", "rdma", 1, [])


def entry(**parts: Any) -> dict[str, Any]:
    return {"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"vendors": ["15b3"]}, **parts}


@pytest.mark.parametrize(
    ("config", "problems"),
    [
        ({"configList": [entry()]}, []),
        ({"configList": [entry(resourcePrefix="mellanox.com")]}, []),
        ({"configList": [entry(selectors={}, devices=["ib0"])]}, []),
        ({}, ["configList: want at least one resource, have none"]),
        (
            {"configList": [entry()], "periodicUpdateInterval": -1},
            ["periodicUpdateInterval: want seconds >= 0, have -1"],
        ),
        (
            {"configList": [entry(resourceName="hca-shared")]},
            ["resourceName: want letters, digits and underscores, have 'hca-shared'"],
        ),
        (
            {"configList": [entry(), entry(resourcePrefix="other")]},
            ["resourceName: want each once, have 'a' twice"],
        ),
        (
            {"configList": [entry(rdmaHcaMax=-1)]},
            ["rdmaHcaMax: want a number >= 0, have -1"],
        ),
        (
            {"configList": [entry(rdmaHcaMax=0)]},
            ["rdmaHcaMax: want at least 1 share, have 0: nothing would be offered"],
        ),
        (
            {"configList": [entry(devices=["ib0"])]},
            ["selectors, devices: want one of the two, have both"],
        ),
        (
            {"configList": [entry(selectors={"vendors": []})]},
            ["selectors: want at least one, have none"],
        ),
        (
            {"configList": [entry(selectors={"vendors": ["0x15B3"]})]},
            ["vendors: want four lower-case hexadecimal digits, have '0x15B3'"],
        ),
        (
            {"configList": [entry(selectors={"linkTypes": ["ethernet"]})]},
            ["linkTypes: want ether or infiniband, have 'ethernet'; did you mean ether"],
        ),
        (
            {"configList": [entry(selectors={"linkTypes": ["IB"]})]},
            ["linkTypes: want ether or infiniband, have 'IB'"],
        ),
    ],
)
def test_rdm_03_the_rdma_plugins_own_rules(config: dict[str, Any], problems: list[str]) -> None:
    assert rdma_config_problems(config) == problems


def test_a_selection_is_and_between_lists_and_or_within_one() -> None:
    mixed = [
        ("15b3", "1021", "ib0", "infiniband"),
        ("15b3", "101b", "ib1", "infiniband"),
        ("15b3", "1021", "eth0", "ether"),
        ("8086", "1021", "ib2", "infiniband"),
    ]
    config = {
        "configList": [
            entry(
                selectors={
                    "vendors": ["15b3"],
                    "deviceIDs": ["1021", "101b"],
                    "linkTypes": ["infiniband"],
                }
            )
        ]
    }
    assert rdma_config_matches(config, mixed) == mixed[:2]


# Probes


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def test_a_probe_asks_for_one_device_and_goes_through_the_scheduler() -> None:
    pod = gpu_probe("gpu01", image="a:1", run="r1", resource="nvidia.com/mig-1g.10gb")
    amounts = {"nvidia.com/mig-1g.10gb": "1"}
    assert container(pod)["resources"] == {"limits": amounts, "requests": amounts}
    assert "nodeName" not in pod["spec"]
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu01"]}]
    }
    assert "runtimeClassName" not in pod["spec"], "users' pods have the default runtime"
    assert pod["spec"]["activeDeadlineSeconds"] > 0, "a killed run's probe gives its GPU back"


def test_a_probe_goes_to_a_node_that_is_closed() -> None:
    pod = bare_probe("gpu01", image="a:1", run="r1", taints=[Taint("team", "x", "NoExecute")])
    keys = [(entry["key"], entry.get("effect")) for entry in pod["spec"]["tolerations"]]
    assert (CLOSED_TAINT.key, None) in keys
    assert ("nvidia.com/gpu", None) in keys
    assert ("team", "NoExecute") in keys
    assert container(pod)["resources"] == {"limits": {}, "requests": {}}


def test_only_the_rdma_probe_may_lock_memory() -> None:
    rdma = rdma_probe("gpu01", image="a:1", run="r1", resource="rdma/hca_shared")
    gpu = gpu_probe("gpu01", image="a:1", run="r1")
    drop = {"drop": ["ALL"]}
    assert container(rdma)["securityContext"]["capabilities"] == drop | {"add": ["IPC_LOCK"]}
    assert container(gpu)["securityContext"]["capabilities"] == drop


def test_names_of_probes_are_unique_per_kind_node_and_run_and_valid() -> None:
    nodes = ["gpu01", "gpu01.a", "gpu01-a", "x" * 60 + ".example.com", "x" * 60 + ".example.org"]
    names = [
        probe["metadata"]["name"]
        for node in nodes
        for run in (new_run(), new_run())
        for probe in (gpu_probe(node, image="a:1", run=run), bare_probe(node, image="a:1", run=run))
    ]
    assert len(set(names)) == len(nodes) * 4
    assert all(len(name) <= 63 for name in names)


def test_a_long_nodes_label_is_cut_and_still_its_own() -> None:
    one, two = label_value("x" * 70 + ".a"), label_value("x" * 70 + ".b")
    assert one != two
    assert len(one) == len(two) == 63
    assert label_value("gpu01") == "gpu01"


MIG_LOG = """\
## visible
MIG-fcba4ed5-0bb3-5db6-b2a4-c3ba6d0c3ba9
## nvidia-smi
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 1g.10gb     Device  0: (UUID: MIG-fcba4ed5-0bb3-5db6-b2a4-c3ba6d0c3ba9)
## nvidia-smi-exit
0
## gpu-files
/dev/nvidia-uvm
/dev/nvidia0
/dev/nvidiactl
/dev/nvidia-caps/nvidia-cap66
## rdma-files
## memlock
8192
## end
"""


def test_what_a_probe_with_a_mig_device_saw() -> None:
    seen = parse_log(MIG_LOG)
    assert seen.gpus == ("GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",)
    assert seen.mig_devices == (("1g.10gb", "MIG-fcba4ed5-0bb3-5db6-b2a4-c3ba6d0c3ba9"),)
    assert seen.visible == "MIG-fcba4ed5-0bb3-5db6-b2a4-c3ba6d0c3ba9"
    assert seen.gpu_count == 1
    assert (seen.rdma_files, seen.memlock) == ((), "8192")


def test_an_nvidia_smi_that_could_not_list_is_unknown_and_not_none() -> None:
    log = MIG_LOG.replace("## nvidia-smi-exit\n0", "## nvidia-smi-exit\n9")
    seen = parse_log(log)
    assert (seen.gpus, seen.mig_devices, seen.nvidia_smi_exit) == (None, None, 9)


@pytest.mark.parametrize("log", ["", MIG_LOG.rsplit("##", 1)[0], "sh: not found\n"])
def test_a_cut_log_is_refused(log: str) -> None:
    with pytest.raises(ClusterError, match="probe: want a complete log, have none of"):
        parse_log(log)


def test_the_script_runs_in_a_plain_shell_and_its_output_is_read(tmp_path: Any) -> None:
    """Here without a GPU: the bare probe's case."""
    done = subprocess.run(
        ["sh", "-c", (TEMPLATES / "probe.sh").read_text()],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    seen = parse_log(done.stdout)
    assert (seen.nvidia_smi_exit, seen.gpus) == (127, None)
    assert seen.memlock
    assert done.stderr == ""
