"""What is asked of a host: what is accepted, what is refused and in which words."""

from __future__ import annotations

import copy
import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyinfra.api.exceptions import InventoryError
from pyinfra.api.inventory import Inventory

import nodespec
from nodespec import (
    GpuLayout,
    InventoryProblems,
    NodeSpec,
    Placement,
    Problem,
    catalogue,
    checks,
    docs,
    mig,
    reading,
)
from nodespec.foreign import foreign
from nodespec.problems import report
from tests.support.good import GOOD

ROOT = Path(__file__).parent.parent

LEFT_OUT = object()


def inventory(**hosts: dict[str, Any]) -> Inventory:
    return Inventory(([(name, data) for name, data in hosts.items()], {}))


def read(**changes: Any) -> tuple[NodeSpec | None, list[str]]:
    """Read one host with *changes* to good data; its problems as people see them."""
    data = {key: value for key, value in (GOOD | changes).items() if value is not LEFT_OUT}
    spec, problems = reading.read(NodeSpec, "gpu01", data)
    return spec, [str(problem) for problem in problems]


def spec_of(**changes: Any) -> NodeSpec:
    spec, problems = read(**changes)
    assert problems == []
    assert spec is not None
    return spec


def problems_of(**changes: Any) -> list[str]:
    return read(**changes)[1]


# --- one host, one key --------------------------------------------------------------------------


def test_defaults_depend_on_the_host_and_on_each_other() -> None:
    spec = spec_of()
    assert spec.kube_node_name == "gpu01"
    assert spec.rdma_required is True
    assert spec_of(hca_count=0, hca_model=None).rdma_required is False
    assert spec.kube_kubeconfig == Path.home() / ".kube/config"
    assert spec.rdma_resource == "rdma/hca_shared"
    assert spec.kube_taints == ("nvidia.com/gpu=present:NoSchedule",)


def test_a_connector_is_no_part_of_the_node_name() -> None:
    for host in ("@fake/gpu01", "@vagrant/gpu01", "gpu01"):
        spec, problems = reading.read(NodeSpec, host, GOOD)
        assert problems == []
        assert spec is not None
        assert spec.kube_node_name == "gpu01"


@pytest.mark.parametrize("name", NodeSpec.model_fields)
def test_every_key_has_words_and_an_example_that_is_accepted(name: str) -> None:
    field = NodeSpec.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    assert field.description
    assert field.description.endswith(".")
    assert extra["form"]
    assert field.examples
    _, problems = read(**{name: field.examples[0]})
    # It may contradict the other keys of this host, but has the form that is asked for.
    assert [p for p in problems if p.startswith(f"{name}: want {extra['form']}")] == []


def test_quantities_carry_their_unit_in_the_name() -> None:
    for name, field in NodeSpec.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        suffix = {"seconds": "_s", "GiB": "_gib", "Gbit/s": "_gbps"}.get(str(extra["unit"]), "")
        assert name.endswith(suffix)


WRONG = [
    ("gpu_model", "A100-SXM-40GB", "did you mean A100-SXM4-40GB"),
    ("gpu_count", "two", "write it as in gpu_count = 8"),
    ("gpu_count", True, "write it as in gpu_count = 8"),
    ("gpu_count", -1, "it has to be greater than or equal to 0"),
    ("hca_model", "CX-6", ""),
    ("hca_rate_gbps", 201, "write it as in hca_rate_gbps = 400"),
    ("hca_link_layer", "IB", "write it as in hca_link_layer = 'infiniband'"),
    ("nvidia_driver_version", "580", "write it as in nvidia_driver_version = '580.178.04'"),
    ("cuda_required", 13.0, "write it as in cuda_required = '13.0'"),
    ("nvidia_driver_version", 580.178, "write it as in nvidia_driver_version = '580.178.04'"),
    ("nvidia_kernel_module", "proprietary", "write it as in nvidia_kernel_module = 'open'"),
    ("nvidia_default_runtime", False, "write it as in nvidia_default_runtime = True"),
    ("container_runtime", "docker", "write it as in container_runtime = 'containerd'"),
    ("kube_version", "v1.36.3", "write it as in kube_version = '1.36.3'"),
    ("kube_version", "1.36", "write it as in kube_version = '1.36.3'"),
    ("kube_api_server", "https://10.0.0.1:6443", "leave out the scheme"),
    ("kube_api_server", "10.0.0.1", "add the port"),
    ("kube_api_server", "10.0.0.1:70000", "a port is a number from 1 to 65535"),
    ("kube_api_server", "fd00::1:6443", "write an IPv6 address in brackets, as in [fd00::1]:6443"),
    ("kube_api_server", "[fe80::1%eth0]:6443", "leave out the zone"),
    ("http_proxy", "http://[fe80::1%25eth0]:3128", "leave out the zone"),
    ("kube_api_server", "10.0.0.256:6443", "an IPv4 address is four numbers from 0 to 255"),
    ("kube_api_server", "K8s.example.com:6443", "write the host's name in lower case"),
    ("kube_api_server", "my_host:6443", "give a host name or an IP address"),
    ("kube_node_name", "GPU01", "Kubernetes refuses it"),
    ("kube_node_name", "gpu_01", "Kubernetes refuses it"),
    ("kube_node_name", "gpu01.", "Kubernetes refuses it"),
    ("kube_node_name", "g" * 64, "Kubernetes refuses it"),
    ("kube_node_ip", "10.0.0.11/24", "without a prefix length"),
    ("kube_node_ip", "fe80::1%eth0", "leave out the zone"),
    ("kube_node_ip", "::1", "the kubelet refuses a loopback address"),
    ("kube_node_ip", "0.0.0.0", "the kubelet refuses the unspecified address"),
    ("kube_node_ip", "169.254.1.1", "the kubelet refuses a link-local address"),
    ("kube_namespace", "a.b", "Kubernetes refuses it"),
    (
        "kube_labels",
        {"kubernetes.io/hostname": "x"},
        "the kubelet sets kubernetes.io/hostname itself",
    ),
    ("kube_labels", {"a/b/c": "x"}, "Kubernetes refuses the key 'a/b/c'"),
    ("kube_labels", {"rackwright.io/rdma": "x"}, "Rackwright sets rackwright.io/rdma itself"),
    ("kube_labels", {"nvidia.com/gpu.present": "x"}, "Rackwright sets nvidia.com/gpu.present"),
    ("kube_labels", {"a": "x y"}, "Kubernetes refuses the value 'x y' of a"),
    ("rdma_resource_name", "hca-shared", "write it as in rdma_resource_name = 'hca_shared'"),
    ("rdma_resource_name", "_hca", "write it as in rdma_resource_name = 'hca_shared'"),
    ("rdma_resource_prefix", "kubernetes.io", "Kubernetes refuses it as the domain of a resource"),
    ("rdma_resource_prefix", "nvidia.com", "the GPUs' resources are counted under it"),
    ("rdma_resource_max", 0, "it has to be greater than or equal to 1"),
    ("pause_image", "pause:3.10", "write it in full, registry first"),
    ("pause_image", "registry.k8s.io/pause", "pin it"),
    ("pause_image", "registry.k8s.io/pause:latest", "pin it"),
    ("http_proxy", "proxy:3128", "start it with http:// or https://"),
    ("http_proxy", "http://proxy:3128”", "leave out blanks, quotes and the like"),
    ("http_proxy", "http://proxy:0", "write it as http://host:port"),
    ("http_proxy", "http://proxy:", "add the port, or leave out the colon"),
    ("http_proxy", "http://10.0.0.300:3128", "an IPv4 address is four numbers"),
    ("no_proxy", {"a", "b"}, "write a list"),
    ("cuda_repository_fingerprint", "3bf863cc", "a short key id is not enough"),
    ("cuda_repository_url", "https://mirror/{dist}/", "{dist} is not known"),
    ("cuda_repository_url", "https://mirror/{distro/", "a brace is not closed"),
    ("cuda_repository_url", "https://mirror/{distro!r}/", "{distro!r} is not known"),
    ("cuda_repository_url", "file:///srv/cuda", "start it with http:// or https://"),
    ("registry_mirrors", {"https://docker.io": "http://m"}, "is not a registry's host name"),
    ("registry_mirrors", {"..": "http://m"}, "is not a registry's host name"),
    ("registry_mirrors", {"docker.io": "mirror:5000"}, "start it with http:// or https://"),
    ("reboot_timeout_s", 5, "it has to be greater than or equal to 30"),
]


@pytest.mark.parametrize(("key", "value", "todo"), WRONG)
def test_a_wrong_value_is_named_with_the_form_it_should_have(
    key: str, value: Any, todo: str
) -> None:
    (problem,) = problems_of(**{key: value})
    extra = NodeSpec.model_fields[key].json_schema_extra
    assert isinstance(extra, dict)
    assert problem.startswith(f"{key}: want {extra['form']}, have {value!r}; ")
    assert todo in problem


@pytest.mark.parametrize(
    ("taint", "todo"),
    [
        ("nvidia.com/gpu", "end it in :NoSchedule"),
        ("nvidia.com/gpu:Never", "end it in :NoSchedule"),
        ("nvidia.com/gpu=a b:NoSchedule", "Kubernetes refuses the value 'a b'"),
        (":NoSchedule", "Kubernetes refuses the key ''"),
    ],
)
def test_a_wrong_entry_of_a_list_is_named_by_its_place(taint: str, todo: str) -> None:
    (problem,) = problems_of(kube_taints=["a=b:NoSchedule", taint])
    assert problem.startswith("kube_taints[1]: want list of key[=value]:NoSchedule")
    assert f"have {taint!r}; {todo}" in problem


def test_the_taint_that_closes_a_node_is_not_the_inventorys() -> None:
    (problem,) = problems_of(kube_taints=["rackwright.io/not-validated:NoSchedule"])
    assert "set and taken off by admission" in problem


def test_one_taint_with_two_values_would_be_changed_at_every_run() -> None:
    (problem,) = problems_of(kube_taints=["a=b:NoSchedule", "a=c:NoSchedule", "a=c:NoExecute"])
    assert "a=b:NoSchedule and a=c:NoSchedule are one taint with two values" in problem


def test_no_proxy_takes_hosts_domains_addresses_and_networks_one_each() -> None:
    good = ["localhost", ".example.com", "10.0.0.1", "10.0.0.0/16", "fd00::/8"]
    assert spec_of(no_proxy=good).no_proxy == tuple(good)
    for bad in (
        "a,b",
        "fe80::1%eth0",
        "10.0.0.256",
        "*",
        "a\n",
        "http://a",
        "a b",
        "10.0.0.0/40",
        "",
    ):
        (problem,) = problems_of(no_proxy=[bad])
        assert problem.startswith("no_proxy[0]: ")
    assert "no_proxy: want list" in problems_of(no_proxy="a,b")[0]


def test_rep_08_what_must_not_go_through_a_proxy_is_added_to_no_proxy() -> None:
    spec = spec_of(no_proxy=["10.96.0.0/16"], kube_node_ip="10.0.0.11")
    for direct in ("127.0.0.1", "10.0.0.1", "10.0.0.11", ".svc", ".cluster.local", "10.96.0.0/16"):
        assert direct in spec.no_proxy_all
    assert "fd00::1" in spec_of(kube_api_server="[fd00::1]:6443").no_proxy_all


def test_a_proxys_password_is_not_shown() -> None:
    (problem,) = problems_of(http_proxy="ftp://user:secret@proxy:3128")
    assert "secret" not in problem
    assert "ftp://***@proxy:3128" in problem


def test_a_missing_key_is_asked_for() -> None:
    (problem,) = problems_of(kube_api_server=LEFT_OUT)
    assert problem == (
        "kube_api_server: want host:port, without a scheme, have nothing; "
        "add it for the host, its group, or all in group_data/all.py"
    )


# --- whose keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "todo"),
    [
        ("nvidia_drvier_version", "did you mean nvidia_driver_version"),
        ("nvdia_driver_version", "did you mean nvidia_driver_version"),
        ("ssh_usr", "did you mean ssh_user"),
        ("_sudoo", "did you mean _sudo"),
        ("completely_else", "remove it, or name it x_... if it is your own"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, todo: str) -> None:
    (problem,) = problems_of(**{key: "hunter2"})
    assert problem == f"{key}: want a known key, have an unknown one; {todo}"


def test_a_misspelt_key_is_not_reported_as_missing_too() -> None:
    (problem,) = problems_of(kube_version=LEFT_OUT, kube_versoin="1.36.3")
    assert problem.endswith("did you mean kube_version")


def test_keys_of_pyinfra_its_connectors_and_the_user_are_left_alone() -> None:
    spec_of(_sudo=True, _env={}, ssh_user="x", docker_identifier="y", x_rack=3, fake_delay=0)
    assert not foreign("gpu_model")


def test_no_key_of_ours_is_one_of_pyinfras() -> None:
    assert [key for key in NodeSpec.model_fields if foreign(key)] == []


def test_a_removed_key_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reading.REMOVED, "mig_layout", "write mig_config")
    (problem,) = problems_of(mig_layout="x")
    assert problem == "mig_layout: want a key of this release, have a removed one; write mig_config"
    assert "* `mig_layout`: write mig_config" in docs.render()


def test_removed_keys_are_no_keys_any_more() -> None:
    assert not set(reading.REMOVED) & set(NodeSpec.model_fields)


@pytest.mark.parametrize("value", ["no", "off", "accept-new", "ask", LEFT_OUT])
def test_pyi_08_anything_but_strict_host_keys_is_refused(value: Any) -> None:
    (problem,) = problems_of(ssh_strict_host_key_checking=value)
    assert problem.startswith("ssh_strict_host_key_checking: want 'yes', have '")
    assert "known_hosts" in problem


def test_hosts_that_are_not_reached_over_ssh_need_no_host_key() -> None:
    data = {key: value for key, value in GOOD.items() if not key.startswith("ssh_")}
    for host in ("@local", "@fake/gpu01", "@docker/image"):
        problems = reading.read(NodeSpec, host, data | {"kube_node_name": "a"})[1]
        assert problems == []
    assert reading.read(NodeSpec, "@vagrant/gpu01", data)[1] != []


# --- one host, keys against each other ----------------------------------------------------------

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"gpu_model": None}, "gpu_model: want one of A100-SXM4-40GB, "),
    (
        {"gpu_count": 0},
        "gpu_model: want nothing where gpu_count is 0, have 'A100-SXM4-40GB'; ",
    ),
    (
        {"gpu_count": 0, "gpu_model": None, "mig_config": "all-1g.5gb"},
        "mig_config: want 'all-disabled' without GPUs, have 'all-1g.5gb'; ",
    ),
    (
        {"gpu_model": "V100"},
        "gpu_model: want a GPU that the open kernel modules drive, have V100; ",
    ),
    (
        {"gpu_model": "B200", "nvidia_driver_version": "535.309.01"},
        "nvidia_driver_version: want 570.133.20 or later for B200, have 535.309.01; ",
    ),
    (
        {"nvidia_driver_version": "510.47.03"},
        "nvidia_driver_version: want 515.43.04 or later for A100-SXM4-40GB, have 510.47.03; ",
    ),
    (
        {
            "nvidia_driver_version": "515.65.01",
            "mig_config": "all-1g.10gb",
            "mig_strategy": "single",
        },
        "nvidia_driver_version: want 525.60.13 or later for 1g.10gb on A100-SXM4-40GB, have 515",
    ),
    (
        {"cuda_required": "13.2"},
        "nvidia_driver_version: want 595.45.04 or later for CUDA 13.2, have 580.178.04; choose a "
        "later driver, or ask for CUDA 13.0 if no program compiles PTX at run time",
    ),
    (
        {"nvidia_driver_version": "570.211.01", "cuda_required": "13.0"},
        "nvidia_driver_version: want 580.65.06 or later for CUDA 13.0, have 570.211.01; choose a "
        "later driver",
    ),
    (
        {"nvidia_driver_version": "610.57.04", "cuda_required": "13.4"},
        "nvidia_driver_version: want 615 or later for CUDA 13.4, have 610.57.04; choose a ",
    ),
    (
        {"gpu_count": 0, "gpu_model": None, "cuda_required": "12.8"},
        "cuda_required: want nothing where gpu_count is 0, have '12.8'; set gpu_count, ",
    ),
    ({"hca_model": None}, "hca_model: want one of ConnectX-5, "),
    ({"hca_count": 0}, "hca_model: want nothing where hca_count is 0, have 'ConnectX-6'; "),
    (
        {"hca_count": 0, "hca_model": None, "hca_rate_gbps": 200},
        "hca_rate_gbps: want nothing where hca_count is 0, have 200; ",
    ),
    (
        {"hca_rate_gbps": 400},
        "hca_rate_gbps: want at most 200 Gbit/s, which is what a port of ConnectX-6 has, have 4",
    ),
    (
        {"hca_count": 0, "hca_model": None, "rdma_required": True},
        "rdma_required: want False where hca_count is 0, have True; ",
    ),
    (
        {"hca_count": 0, "hca_model": None, "gpudirect": "dmabuf"},
        "gpudirect: want 'auto' or 'none' without HCAs, have 'dmabuf'; ",
    ),
    (
        {"gpu_count": 0, "gpu_model": None, "gpudirect": "peermem"},
        "gpudirect: want 'auto' or 'none' without GPUs, have 'peermem'; ",
    ),
    ({"kube_version": "1.30.1"}, "kube_version: want 1.31 or later, have 1.30.1; "),
    (
        {"containerd_version": "2.1.5"},
        "containerd_version: want 2.2.0 or later with Kubernetes 1.36.3, have 2.1.5; ",
    ),
    (
        {"container_toolkit_version": "1.17.8"},
        "container_toolkit_version: want 1.18.0 or later, have 1.17.8; ",
    ),
    (
        {"debian_repository_url": "http://m", "debian_repository_fingerprint": "0" * 40},
        "debian_repository_fingerprint: want it and debian_repository_key_url together, ",
    ),
    (
        {"ca_certificates": ["/a/ca.pem", "/a/other.pem", "/b/ca.pem"]},
        "ca_certificates: want files with names of their own, have ['/a/ca.pem', '/b/ca.pem']; ",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), CONTRADICTIONS)
def test_a_contradiction_is_refused(changes: dict[str, Any], expected: str) -> None:
    (problem,) = problems_of(**changes)
    assert problem.startswith(expected)


def test_drv_13_a_gpu_that_the_open_modules_do_not_drive_is_refused() -> None:
    for model in catalogue.GPUS:
        if not model.open_module_supported:
            (problem,) = problems_of(gpu_model=model.name)
            assert "want a GPU that the open kernel modules drive" in problem
    assert not all(model.open_module_supported for model in catalogue.GPUS)


def test_rtm_13_a_toolkit_whose_containers_lose_their_gpus_is_refused() -> None:
    """With a later one systemd may be reloaded, as any package of another service does."""
    (problem,) = problems_of(container_toolkit_version="1.17.9")
    assert "lose their GPUs when systemd is reloaded" in problem
    assert problems_of(container_toolkit_version="1.18.0") == []


def test_mig_15_a_driver_that_is_too_old_for_a_profile_is_refused() -> None:
    old = {"nvidia_driver_version": "515.65.01", "mig_strategy": "single"}
    (problem,) = problems_of(**old, mig_config="all-1g.10gb")
    assert problem.startswith("nvidia_driver_version: want 525.60.13 or later for 1g.10gb on ")
    assert problems_of(**old, mig_config="all-1g.5gb") == []


def test_a_driver_that_is_of_the_cuda_version_asked_for_or_a_later_one_is_taken() -> None:
    assert problems_of(cuda_required="13.0") == []
    assert problems_of(cuda_required="12.9") == []
    assert problems_of(cuda_required="13.4", nvidia_driver_version="615.71.09") == []


def test_every_check_refuses_one_of_the_contradictions() -> None:
    rows = [changes for changes, _ in CONTRADICTIONS] + [row[1] for row in MIG_REFUSED]
    specs = [spec for changes in rows if (spec := read(**changes)[0]) is not None]
    idle = [check.__name__ for _, check in checks.CHECKS if not any(map(list, map(check, specs)))]
    assert idle == []


def test_contradictions_are_found_beside_wrong_keys() -> None:
    problems = problems_of(kube_version="v1", mig_config="all-3g.40gb", hca_rate_gbps=400)
    assert [problem.partition(":")[0] for problem in problems] == [
        "kube_version",
        "mig_config",
        "hca_rate_gbps",
    ]


# --- MIG ----------------------------------------------------------------------------------------


def test_a_named_layout_fills_every_gpu() -> None:
    spec = spec_of(mig_config="all-1g.5gb", mig_strategy="mixed")
    assert nodespec.mig_layout(spec) == tuple(
        GpuLayout(index, True, ("1g.5gb",) * 7) for index in range(2)
    )


def test_all_disabled_is_for_every_gpu_also_without_mig() -> None:
    off = (GpuLayout(0, False, ()), GpuLayout(1, False, ()))
    assert nodespec.mig_layout(spec_of()) == off
    assert nodespec.mig_layout(spec_of(gpu_model="T4")) == off
    assert nodespec.mig_layout(spec_of(gpu_count=0, gpu_model=None)) == ()


def test_a_media_profile_may_be_written_as_kubernetes_can() -> None:
    for name in ("all-1g.5gb+me", "all-1g.5gb.me"):
        spec = spec_of(mig_config=name, mig_strategy="mixed")
        assert nodespec.mig_layout(spec)[0].profiles == ("1g.5gb+me",)


@pytest.mark.parametrize(
    "model", [m for m in catalogue.GPUS if m.mig_capable], ids=lambda m: m.name
)
def test_every_named_layout_of_every_model_fits(model: catalogue.GpuModel) -> None:
    layouts = mig.named(model)
    assert len(layouts) == len(model.mig_profiles) + 2
    for profiles in layouts.values():
        placed = nodespec.feasible(model, profiles)
        assert not isinstance(placed, Problem)
        assert tuple(p.profile for p in placed) == mig.largest_first(model, profiles)


def custom(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"mig_config": "mine", "mig_layouts": {"mine": list(entries)}} | changes


ON = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "3g.20gb": 1}}
OFF = {"devices": "all", "mig-enabled": False}


def test_in_a_custom_layout_the_last_entry_decides_and_the_largest_come_first() -> None:
    spec = spec_of(**custom(ON, OFF | {"devices": [1]}, mig_strategy="mixed"))
    assert nodespec.mig_layout(spec) == (
        GpuLayout(0, True, ("3g.20gb", "1g.5gb", "1g.5gb")),
        GpuLayout(1, False, ()),
    )


def test_a_device_filter_picks_the_model() -> None:
    a100 = ON | {"device-filter": "0x20B010DE"}
    h100 = ON | {"device-filter": ["0x233010DE"], "mig-devices": {"1g.10gb": 7}}
    for model, profile in (("A100-SXM4-40GB", "3g.20gb"), ("H100-SXM5-80GB", "1g.10gb")):
        spec = spec_of(**custom(OFF, a100, h100, gpu_model=model, mig_strategy="mixed"))
        assert nodespec.mig_layout(spec)[0].profiles[0] == profile


MIG_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "MIG-03",
        {"gpu_model": "H100-SXM5-80GB", "mig_config": "all-1g.5gb"},
        "mig_config: want a layout of H100-SXM5-80GB: all-disabled, all-1g.10gb+me, all-1g.10gb, ",
    ),
    (
        "MIG-03 in a custom layout",
        custom(ON, gpu_model="H100-SXM5-80GB"),
        "mig_config: want profiles of H100-SXM5-80GB: 7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, "
        "1g.10gb, 1g.10gb+me, have 1g.5gb; on this GPU 1g is 1g.20gb or 1g.10gb or 1g.10gb+me",
    ),
    (
        "a GPU without MIG",
        {"gpu_model": "L40S", "mig_config": "all-1g.5gb"},
        "mig_config: want 'all-disabled' on L40S, have 'all-1g.5gb'; L40S has no MIG",
    ),
    (
        "a GPU without MIG in a custom layout",
        custom(ON | {"mig-devices": {}}, gpu_model="T4"),
        "mig_config: want no MIG devices on T4, have mig-enabled true; T4 has no MIG",
    ),
    (
        "MIG-06 an index that is not there",
        custom(OFF, ON | {"devices": [0, 7]}),
        "mig_layouts['mine']: want GPU indexes below gpu_count 2, have 7; ",
    ),
    (
        "MIG-06 a GPU that no entry names",
        custom(ON | {"devices": [0]}),
        "mig_layouts['mine']: want an entry for each GPU, have none for GPU 1 (A100-SXM4-40GB); ",
    ),
    (
        "MIG-07 too much",
        custom(ON | {"mig-devices": {"3g.20gb": 2, "1g.5gb": 1}}),
        "mig_config: want MIG devices that fit on one A100-SXM4-40GB, have 2x 3g.20gb + 1x 1g.5gb; "
        "beside 2x 3g.20gb there is room for nothing more",
    ),
    (
        "MIG-07 what would fit is said",
        custom(ON | {"mig-devices": {"4g.20gb": 2}}),
        "mig_config: want MIG devices that fit on one A100-SXM4-40GB, have 2x 4g.20gb; "
        "beside 1x 4g.20gb there is room for one of 3g.20gb, 2g.10gb, 1g.10gb, 1g.5gb, 1g.5gb+me",
    ),
    (
        "MIG-12 single with two profiles",
        custom(ON, mig_strategy="single"),
        "mig_strategy: want 'mixed' with mig_config 'mine', have 'single'; "
        "'single' takes one profile on the whole node, not 3g.20gb, 1g.5gb",
    ),
    (
        "single with a whole GPU",
        custom(OFF, ON | {"devices": [0], "mig-devices": {"1g.5gb": 7}}, mig_strategy="single"),
        "mig_strategy: want 'mixed' with mig_config 'mine', have 'single'; "
        "'single' takes MIG mode on every GPU",
    ),
    (
        "MIG-13 MIG mode without a device",
        custom(ON | {"mig-devices": {}}, mig_strategy="mixed"),
        "mig_config: want a MIG device on each GPU with MIG mode on, have none on GPU 0, 1; ",
    ),
    (
        "none with MIG devices",
        {"mig_config": "all-1g.5gb"},
        "mig_strategy: want 'single' or 'mixed' with mig_config 'all-1g.5gb', have 'none'; ",
    ),
    (
        "devices without the mode",
        custom(OFF | {"mig-devices": {"1g.5gb": 1}}),
        "mig_layouts['mine']: want no mig-devices where mig-enabled is false, have 1x 1g.5gb; ",
    ),
    (
        "an unknown layout",
        {"mig_config": "all-1g.5g"},
        "mig_config: want a layout of A100-SXM4-40GB: all-disabled, all-1g.5gb+me, all-1g.5gb, ",
    ),
    (
        "an unknown key in a layout",
        custom(ON | {"mig-device": {}}),
        "mig_layouts['mine'][0]['mig-device']: want name: list of entries with devices, ",
    ),
    (
        "a layout without a key",
        custom({"devices": "all"}),
        "mig_layouts['mine'][0]['mig-enabled']: want name: list of entries with devices, ",
    ),
]


@pytest.mark.parametrize(
    ("changes", "expected"), [row[1:] for row in MIG_REFUSED], ids=[row[0] for row in MIG_REFUSED]
)
def test_a_layout_that_cannot_be_is_refused(changes: dict[str, Any], expected: str) -> None:
    (problem,) = problems_of(**changes)
    assert problem.startswith(expected)


def test_the_nearest_layout_is_suggested() -> None:
    (problem,) = problems_of(mig_config="all-1g.5g")
    assert problem.endswith("have 'all-1g.5g'; did you mean all-1g.5gb")


def test_mig_layout_refuses_a_spec_that_was_not_checked() -> None:
    spec = spec_of().model_copy(update={"mig_config": "all-9g.1gb"})
    with pytest.raises(InventoryError, match=r"mig_config: want a layout of A100-SXM4-40GB"):
        nodespec.mig_layout(spec)


# Source: NVIDIA MIG User Guide, the placement diagrams of A100 and A30 (read 2026-11-30).
@pytest.mark.parametrize(
    ("model", "profiles", "placed"),
    [
        ("A100-SXM4-40GB", ("7g.40gb",), [(0, 8)]),
        ("A100-SXM4-40GB", ("1g.5gb",) * 7, [(i, 1) for i in range(7)]),
        ("A100-SXM4-40GB", ("3g.20gb", "4g.20gb"), [(0, 4), (4, 4)]),
        # Were 3g first, at 0, the second 1g would find no place: its last one is 6.
        (
            "A100-SXM4-40GB",
            ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"),
            [(4, 4), (0, 2), (2, 1), (3, 1)],
        ),
        ("A100-SXM4-40GB", ("2g.10gb",) * 3 + ("1g.5gb",), [(0, 2), (2, 2), (4, 2), (6, 1)]),
        ("A100-SXM4-40GB", ("1g.10gb",) * 4, [(0, 2), (2, 2), (4, 2), (6, 2)]),
        ("A30", ("2g.12gb", "1g.6gb", "1g.6gb"), [(0, 2), (2, 1), (3, 1)]),
        ("H200-SXM", ("1g.18gb+me", "3g.71gb"), [(0, 4), (4, 1)]),
    ],
)
def test_placements(model: str, profiles: tuple[str, ...], placed: list[tuple[int, int]]) -> None:
    result = nodespec.feasible(catalogue.gpu(model), profiles)
    assert not isinstance(result, Problem)
    assert [(p.start, p.size) for p in result] == placed


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from([m for m in catalogue.GPUS if m.mig_capable]),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 8),
)
def test_what_is_placed_never_overlaps_and_never_exceeds_the_gpu(
    model: catalogue.GpuModel, seed: int, count: int
) -> None:
    chosen = random.Random(seed).choices(model.mig_profiles, k=count)
    placed = nodespec.feasible(model, tuple(profile.name for profile in chosen))
    if isinstance(placed, Problem):
        assert not _fits_by_trying_everything(model, chosen)
        return
    slices = [s for p in placed for s in range(p.start, p.start + p.size)]
    assert len(slices) == len(set(slices))
    assert max(slices) < model.mig_memory_slices
    for place in placed:
        profile = model.profile(place.profile)
        assert profile is not None
        assert place.start in profile.placements
    assert sum(profile.compute_slices for profile in chosen) <= model.mig_compute_slices


def _fits_by_trying_everything(
    model: catalogue.GpuModel, chosen: list[catalogue.MigProfile]
) -> bool:
    if sum(profile.memory_slices for profile in chosen) > model.mig_memory_slices:
        return False
    if sum(profile.compute_slices for profile in chosen) > model.mig_compute_slices:
        return False
    names = [profile.name for profile in chosen]
    if any(names.count(profile.name) > profile.count_max for profile in chosen):
        return False
    if sum(name.endswith("+me") for name in names) > 1:
        return False
    return any(
        len(slices) == len(set(slices))
        for starts in itertools.product(*(profile.placements for profile in chosen))
        if (
            slices := [
                s
                for start, profile in zip(starts, chosen, strict=True)
                for s in range(start, start + profile.memory_slices)
            ]
        )
    )


def test_a_placement_says_profile_start_and_size() -> None:
    a30 = catalogue.gpu("A30")
    assert nodespec.feasible(a30, ("2g.12gb",)) == (Placement("2g.12gb", 0, 2),)


# --- the catalogue ------------------------------------------------------------------------------


def test_no_pci_id_belongs_to_two_models() -> None:
    for models in (catalogue.GPUS, catalogue.HCAS):
        ids = [pci_id for model in models for pci_id in model.pci_device_ids]
        assert len(ids) == len(set(ids))
    assert catalogue.gpu_of("20B0") is catalogue.gpu("A100-SXM4-40GB")
    assert catalogue.hca_of("1021") is catalogue.hca("ConnectX-7")
    assert catalogue.gpu_of("ffff") is None
    assert catalogue.hca_of("101e") is None  # a virtual function


def test_only_ampere_needs_a_reset_for_mig() -> None:
    assert catalogue.gpu("A100-SXM4-40GB").mig_reset_required
    assert catalogue.gpu("A30").mig_reset_required
    assert not catalogue.gpu("H100-SXM5-80GB").mig_reset_required
    assert not catalogue.gpu("A10").mig_reset_required  # Ampere without MIG


def test_profiles_fill_the_gpu_as_their_counts_say() -> None:
    for model in catalogue.GPUS:
        for profile in model.mig_profiles:
            assert profile.count_max <= len(profile.placements)
            assert max(profile.placements) + profile.memory_slices <= model.mig_memory_slices
            assert int(profile.name.partition("g")[0]) == profile.compute_slices


# --- repositories -------------------------------------------------------------------------------


def test_a_repositorys_url_is_filled_for_each_system() -> None:
    spec = spec_of()

    def url(template: str, os_id: str, os_version: str, suite: str) -> str:
        return nodespec.repository_url(
            template,
            os_id=os_id,
            os_version=os_version,
            suite=suite,
            kube_version=spec.kube_version,
        )

    cuda = "https://developer.download.nvidia.com/compute/cuda/repos"
    assert url(spec.cuda_repository_url, "ubuntu", "24.04", "noble") == f"{cuda}/ubuntu2404/x86_64/"
    assert (
        url(spec.docker_repository_key_url, "ubuntu", "22.04", "jammy")
        == "https://download.docker.com/linux/ubuntu/gpg"
    )
    assert (
        url(spec.kubernetes_repository_key_url, "debian", "12", "bookworm")
        == "https://pkgs.k8s.io/core:/stable:/v1.36/deb/Release.key"
    )
    assert (
        spec.container_toolkit_repository_key_url
        == "https://nvidia.github.io/libnvidia-container/gpgkey"
    )


@pytest.mark.parametrize(
    ("system", "key"),
    [
        (("debian", "13"), ("02182E60104FCDC26EAE1B8597A5D4CB8793F200", "8793F200.pub")),
        (("debian", "12"), ("EB693B3035CD5710E231E123A4B469963BF863CC", "3bf863cc.pub")),
        (("ubuntu", "24.04"), ("EB693B3035CD5710E231E123A4B469963BF863CC", "3bf863cc.pub")),
    ],
)
def test_rep_03_nvidia_signs_for_debian_13_with_another_key(
    system: tuple[str, str], key: tuple[str, str]
) -> None:
    os_id, os_version = system
    mirror = "http://mirror/{distro}"
    spec = spec_of(cuda_repository_url=mirror)
    found = spec.repository_key("cuda", os_id=os_id, os_version=os_version)
    assert found == (key[0], f"{mirror}/{key[1]}")
    spec = spec_of(cuda_repository_fingerprint="0" * 40, cuda_repository_key_url="http://k")
    found = spec.repository_key("cuda", os_id=os_id, os_version=os_version)
    assert found == ("0" * 40, "http://k")


def test_the_distributions_own_key_is_no_key_of_ours() -> None:
    spec = spec_of(debian_repository_url="http://mirror/debian")
    assert spec.repository_key("debian", os_id="debian", os_version="13") == (None, None)
    fingerprint, url = spec.repository_key("docker", os_id="debian", os_version="13")
    assert fingerprint == spec.docker_repository_fingerprint
    assert url == spec.docker_repository_key_url


def test_a_mirror_brings_its_key_along_unless_told_otherwise() -> None:
    spec = spec_of(docker_repository_url="http://mirror/docker/linux/{id}/")
    assert spec.docker_repository_key_url == "http://mirror/docker/linux/{id}/gpg"
    spec = spec_of(docker_repository_key_url="http://mirror/keys/docker.asc")
    assert spec.docker_repository_key_url == "http://mirror/keys/docker.asc"


def test_a_fingerprint_is_compared_without_blanks_and_case() -> None:
    spec = spec_of(cuda_repository_fingerprint="eb69 3b30 35cd 5710 e231 e123 a4b4 6996 3bf8 63cc")
    assert spec.cuda_repository_fingerprint == "EB693B3035CD5710E231E123A4B469963BF863CC"


# --- all hosts ----------------------------------------------------------------------------------


def fleet(**hosts: dict[str, Any]) -> list[str]:
    """Problems of several hosts, each with changes to good data."""
    data = {name: GOOD | changes for name, changes in hosts.items()}
    return report(nodespec.read_all(data, local_files=False)[1])


def test_specs_of_all_hosts_come_in_natural_order() -> None:
    hosts = {f"gpu{number}": GOOD for number in (10, 9, 1)}
    assert list(nodespec.of_all(inventory(**hosts), local_files=False)) == ["gpu1", "gpu9", "gpu10"]


def test_a_hosts_spec_is_read_from_its_merged_data() -> None:
    hosts = Inventory(
        ([("gpu01", {"gpu_count": 8}), "gpu02"], GOOD | {"gpu_count": 1}),
        a=(["gpu01", "gpu02"], {"gpu_count": 4}),
    )
    assert NodeSpec.of(hosts.get_host("gpu01")).gpu_count == 8
    assert NodeSpec.of(hosts.get_host("gpu02")).gpu_count == 4


def test_one_host_is_refused_with_all_its_problems() -> None:
    hosts = inventory(gpu01=GOOD | {"gpu_count": "x", "kube_version": "1"})
    with pytest.raises(InventoryProblems) as refused:
        NodeSpec.of(hosts.get_host("gpu01"))
    assert isinstance(refused.value, InventoryError)
    head, *lines = str(refused.value).splitlines()
    assert head == "2 problems in the inventory"
    assert [line.split(": ")[:2] for line in lines] == [
        ["gpu01", "gpu_count"],
        ["gpu01", "kube_version"],
    ]


def test_all_problems_of_all_hosts_come_at_once() -> None:
    hosts = inventory(
        gpu01=GOOD | {"gpu_count": "x", "colour": "red"},
        gpu02=GOOD | {"mig_config": "all-3g.71gb"},
        gpu03=GOOD | {"ssh_hostname": "gpu02"},
    )
    with pytest.raises(InventoryProblems) as refused:
        nodespec.of_all(hosts, local_files=False)
    found = {(problem.hosts, problem.problem.key) for problem in refused.value.problems}
    assert found == {
        (("gpu01",), "colour"),
        (("gpu01",), "gpu_count"),
        (("gpu02",), "mig_config"),
        (("gpu02", "gpu03"), "ssh_hostname"),
    }


def test_an_empty_inventory_is_refused() -> None:
    with pytest.raises(InventoryProblems, match="want at least one host, have none"):
        nodespec.of_all(inventory())


def test_one_address_for_two_hosts() -> None:
    (line,) = fleet(gpu01={"ssh_hostname": "10.0.0.9"}, gpu02={"ssh_hostname": "10.0.0.9"})
    assert line.startswith(
        "gpu01, gpu02: ssh_hostname: want an address of its own, "
        "have 10.0.0.9:22 on 2 hosts: gpu01, gpu02; "
    )
    assert fleet(gpu01={"ssh_hostname": "n", "ssh_port": 2201}, gpu02={"ssh_hostname": "n"}) == []
    assert len(fleet(gpu01={"ssh_hostname": "GPU02"}, gpu02={})) == 1


def test_one_node_name_for_two_hosts() -> None:
    (line,) = fleet(gpu01={}, gpu02={"kube_node_name": "gpu01"})
    assert "kube_node_name: want a name of its own in the cluster" in line
    other = {"kube_api_server": "10.9.0.1:6443", "kube_kubeconfig": "/other"}
    assert fleet(gpu01={}, gpu02={"kube_node_name": "gpu01"} | other) == []


def test_one_node_address_for_two_hosts() -> None:
    (line,) = fleet(gpu01={"kube_node_ip": "10.0.0.9"}, gpu02={"kube_node_ip": "10.0.0.9"})
    assert "kube_node_ip: want an address of its own" in line


def test_one_kubeconfig_for_two_clusters() -> None:
    (line,) = fleet(gpu01={}, gpu02={"kube_api_server": "10.9.0.1:6443"})
    assert line.startswith("gpu01, gpu02: kube_api_server: want one API server for the cluster of ")
    assert "'10.0.0.1:6443' on gpu01; '10.9.0.1:6443' on gpu02" in line


def test_one_cluster_with_two_device_plugins() -> None:
    (line,) = fleet(gpu01={}, gpu02={"nvidia_device_plugin_image": "r.example.com/p:v1"})
    assert "nvidia_device_plugin_image: want one value for all nodes of a cluster" in line


# --- files of the operator's machine ------------------------------------------------------------


CA = "certificate-authority-data"
KUBECONFIG: dict[str, Any] = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
    "clusters": [
        {"name": "b", "cluster": {"server": "https://[fd00::1]:6443", CA: "Q0E="}},
    ],
    "users": [{"name": "c", "user": {"token": "t"}}],
}


def with_files(tmp_path: Path) -> dict[str, Any]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    return GOOD | {"kube_kubeconfig": kubeconfig}


def files_of(data: dict[str, Any]) -> list[str]:
    return report(nodespec.read_all({"gpu01": data, "gpu02": data})[1])


def test_files_are_looked_for_on_this_machine(tmp_path: Path) -> None:
    good = with_files(tmp_path)
    assert files_of(good) == []
    for key in ("ssh_key", "ssh_known_hosts_file", "ssh_config_file"):
        (line,) = files_of(good | {key: str(tmp_path / "none")})
        assert line.startswith(f"gpu01, gpu02: {key}: want a file on this machine, have no file ")


def without(*path: Any) -> dict[str, Any]:
    """The kubeconfig without one of its parts."""
    config = copy.deepcopy(KUBECONFIG)
    part: Any = config
    for step in path[:-1]:
        part = part[step]
    del part[path[-1]]
    return config


KUBECONFIGS = [
    (b"\x00\xff garbage", "no YAML"),
    (b"a: 2026-99-99", "no YAML"),
    (b"[" * 400, "no YAML"),
    (b"a: " + b"9" * 5000, "no YAML"),
    (b"", "no kubeconfig in it"),
    (b"- a", "no kubeconfig in it"),
    (b"no: clusters", "no context that current-context names"),
    (without("current-context"), "no context that current-context names"),
    (without("clusters", 0), "no cluster with a server that its current context names"),
    (
        without("clusters", 0, "cluster", "server"),
        "no cluster with a server that its current context names",
    ),
    (without("users", 0), "no user that its current context names"),
    (without("clusters", 0, "cluster", CA), "no certificate authority, which new nodes are "),
    (b"#" * (5 << 20), "more than 4 MiB in it"),
]


@pytest.mark.parametrize(("content", "found"), KUBECONFIGS, ids=range(len(KUBECONFIGS)))
def test_a_kubeconfig_is_looked_into(tmp_path: Path, content: Any, found: str) -> None:
    wrong = tmp_path / "wrong"
    text = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    wrong.write_bytes(text)
    (line,) = files_of(with_files(tmp_path) | {"kube_kubeconfig": wrong})
    assert line.startswith(
        "gpu01, gpu02: kube_kubeconfig: want a kubeconfig on this machine, "
        f"have {wrong} with {found}"
    )


def test_a_file_that_is_none_is_not_opened(tmp_path: Path) -> None:
    good = with_files(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for path, have in (
        (tmp_path / "pipe", "which is no regular file"),
        (tmp_path, "which is a directory"),
        (Path("/dev/zero"), "which is no regular file"),
        (Path("/proc/self/mem"), "which cannot be read (Input/output error)"),
    ):
        for key, value in (
            ("kube_kubeconfig", path),
            ("ca_certificates", [path]),
            ("ssh_key", str(path)),
        ):
            (line,) = files_of(good | {key: value})
            assert f"gpu01, gpu02: {key}: want " in line
            assert f"have {path}, {have}; " in line


def test_a_certificate_is_looked_into(tmp_path: Path) -> None:
    good = with_files(tmp_path)
    wrong = tmp_path / "wrong"
    for content, found in (
        (b"no certificate", "no PEM certificate in it"),
        (b"0\x82\x01\x01", "no PEM certificate in it"),
        (
            b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n",
            "a private key in it, which would go to every host",
        ),
    ):
        wrong.write_bytes(content)
        (line,) = files_of(good | {"ca_certificates": [wrong]})
        assert f"have {wrong} with {found}; " in line


# --- a thousand hosts ---------------------------------------------------------------------------


def test_a_thousand_hosts_with_the_same_mistake_take_one_line() -> None:
    lines = fleet(**{f"gpu{number:04}": {"gpu_count": "x"} for number in range(1000)})
    assert lines == [
        "gpu0000 to gpu0999 (1000 hosts): gpu_count: want whole number, have 'x'; "
        "write it as in gpu_count = 8"
    ]


def test_a_thousand_hosts_with_one_mistake_each_stay_readable() -> None:
    wrong: list[dict[str, Any]] = [
        {"gpu_count": "x"},
        {"mig_config": "all-3g.71gb"},
        {"colour": "red"},
        {"kube_node_name": "BAD_{}"},
        {"hca_rate_gbps": 400},
    ]
    hosts = {
        f"gpu{number:04}": {
            key: value.format(number) if isinstance(value, str) else value
            for key, value in wrong[number % len(wrong)].items()
        }
        for number in range(1000)
    }
    began = time.process_time()
    lines = fleet(**hosts)
    assert time.process_time() - began < 5
    assert len(lines) == len(wrong)
    (names,) = (line for line in lines if "kube_node_name" in line)
    assert names.startswith("gpu0003, gpu0008, gpu0013, gpu0018, ")
    assert " and more (200 hosts): kube_node_name: want " in names
    assert "have 'BAD_3' / 'BAD_8' / 'BAD_13' / 'BAD_18' / 'BAD_23' / 'BAD_28' and 194 " in names


def test_a_thousand_good_hosts_are_read_in_time() -> None:
    hosts = Inventory(([f"gpu{number:04}" for number in range(1000)], GOOD))
    began = time.process_time()
    assert len(nodespec.of_all(hosts, local_files=False)) == 1000
    assert time.process_time() - began < 5


# --- the page -----------------------------------------------------------------------------------


def test_the_reference_page_is_current() -> None:
    assert (ROOT / "docs/inventory.md").read_text() == docs.render(), (
        "run: python -m nodespec docs > docs/inventory.md"
    )
