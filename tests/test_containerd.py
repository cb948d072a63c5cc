"""containerd's files: ours whole, those of others merged."""

from __future__ import annotations

import tomllib

import pytest

from facts.containerd import CRI_IMAGES, CRI_RUNTIME
from operations import containerd


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, {}),
        ("", {}),
        ('disabled_plugins = ["cri"]\n', {}),
        ('version = 3\nroot = "/data/containerd"\n', {"root": "/data/containerd"}),
        ('version = 4\ndisabled_plugins = ["cri", "io.containerd.x"]\n', {}),
        ('version = 3\nimports = ["/etc/containerd/mine.toml"]\n', {}),
    ],
)
def test_main_file_lets_the_drop_in_count_and_keeps_the_rest(text, kept) -> None:
    merged = containerd.root_config(text)
    config = tomllib.loads(merged)
    assert containerd.IMPORTS in config["imports"]
    assert config["version"] >= 3
    assert "cri" not in config.get("disabled_plugins", [])
    assert kept.items() <= config.items()
    if text and "mine.toml" in text:
        assert "/etc/containerd/mine.toml" in config["imports"]
    if text and "io.containerd.x" in text:
        assert config["disabled_plugins"] == ["io.containerd.x"]


def test_main_file_that_needs_nothing_is_left_to_the_letter() -> None:
    text = f"# somebody's comment\nversion = 3\nimports = ['{containerd.IMPORTS}']\n"
    assert containerd.root_config(text) == text


def test_merging_twice_changes_nothing() -> None:
    once = containerd.root_config('disabled_plugins = ["cri"]\n')
    assert containerd.root_config(once) == once


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("= nonsense", "not TOML"),
        ("version = 2\n", "version 2"),
        ('[plugins.cri.containerd]\nsnapshotter = "overlayfs"\n', "no version"),
    ],
)
def test_main_file_that_cannot_be_understood_is_not_guessed_about(text, problem) -> None:
    with pytest.raises(containerd.Unmergeable, match=problem):
        containerd.root_config(text)


def test_rtm_02_drop_in_has_the_version_of_the_main_file() -> None:
    for version in (3, 4):
        text = containerd.drop_in(version, "registry.k8s.io/pause:3.10.2")
        assert tomllib.loads(text)["version"] == version


def test_rtm_07_every_runtime_has_systemd_cgroups() -> None:
    config = tomllib.loads(containerd.drop_in(4, "p:1"))["plugins"]
    runtimes = config[CRI_RUNTIME]["containerd"]["runtimes"]
    assert set(runtimes) == {"runc", "nvidia"}
    assert all(runtime["options"]["SystemdCgroup"] for runtime in runtimes.values())
    assert all(runtime["runtime_type"] for runtime in runtimes.values())
    assert config[CRI_RUNTIME]["containerd"]["default_runtime_name"] == "nvidia"
    assert config[CRI_IMAGES]["pinned_images"]["sandbox"] == "p:1"


def test_rep_07_proxy_lines_are_plain() -> None:
    text = containerd.unit_drop_in(
        containerd.proxy_environment("http://p:3128", None, ["10.0.0.0/8", ".svc"])
    )
    assert 'Environment="HTTP_PROXY=http://p:3128"\n' in text
    assert 'Environment="NO_PROXY=10.0.0.0/8,.svc"\n' in text
    assert "HTTPS_PROXY" not in text
    assert "LimitMEMLOCK=infinity\n" in text


def test_no_proxy_is_set_only_behind_a_proxy() -> None:
    assert containerd.proxy_environment(None, None, ["localhost"]) == {}


def test_mirror_replaces_the_registry() -> None:
    config = tomllib.loads(containerd.hosts_toml("docker.io", "http://10.88.0.1:5000/"))
    assert config["server"] == "https://registry-1.docker.io"
    assert config["host"] == {"http://10.88.0.1:5000": {"capabilities": ["pull", "resolve"]}}
