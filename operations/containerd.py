"""containerd's files: the little that is ours, and what has to be so in the files of others."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from facts.containerd import CRI_IMAGES, CRI_RUNTIME, NVIDIA_RUNTIME

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-rackwright.toml"
IMPORTS = "/etc/containerd/conf.d/*.toml"
UNIT_DROP_IN = "/etc/systemd/system/containerd.service.d/50-rackwright.conf"
CERTS_D = "/etc/containerd/certs.d"
CNI_BIN_DIR = "/opt/cni/bin"
OLDEST_VERSION = 3
"""Of the configuration: what containerd 2.x reads and writes; 4 since 2.3."""

MARK = "# Written by Rackwright "
"""What a file of ours begins with."""
HEADER = f"{MARK}(deploys/phases/container_runtime.py). Local changes are lost.\n"
MERGED = (
    "# Merged by Rackwright: version, imports and disabled_plugins; the rest is as it was found.\n"
)


class Unmergeable(ValueError):
    """A file of others that is not ours to guess about."""


def root_config(text: str | None) -> str:
    """
    The main file with what it needs to let our drop-in count, all else kept.

    Docker's package ships ``disabled_plugins = ["cri"]`` and no version, which turns the
    CRI off and hides every drop-in. Returns *text* itself if it needs nothing. Raises
    ``Unmergeable`` if it is not TOML or of a version that containerd 2.x would migrate.
    """
    try:
        config: dict[str, Any] = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as error:
        raise Unmergeable(f"it is not TOML: {error}") from error
    before = tomli_w.dumps(config)
    version = config.get("version")
    if version is None and config.get("plugins"):
        raise Unmergeable("it has plugin tables but no version (the form of containerd 1.0 to 1.2)")
    if version is not None and (not isinstance(version, int) or version < OLDEST_VERSION):
        raise Unmergeable(f"it is of version {version}")
    config["version"] = version or OLDEST_VERSION
    imports = list(config.get("imports", []))
    if IMPORTS not in imports:
        config["imports"] = [*imports, IMPORTS]
    disabled = [name for name in config.get("disabled_plugins", []) if not cri(name)]
    if disabled:
        config["disabled_plugins"] = disabled
    else:
        config.pop("disabled_plugins", None)
    after = tomli_w.dumps(config)
    return text if text is not None and after == before else MERGED + after


def cri(plugin: str) -> bool:
    return plugin in ("cri", CRI_RUNTIME, CRI_IMAGES, "io.containerd.grpc.v1.cri")


def version_of(text: str) -> int:
    version = tomllib.loads(text)["version"]
    assert isinstance(version, int)
    return version


def drop_in(version: int, pause_image: str) -> str:
    """
    Our drop-in: runc and nvidia with systemd cgroups, nvidia as the default, where mirrors are.

    Nothing of CDI: it is on by default since 2.0, and 2.4 warns of the key that turned it on.

    + version: the main file's; containerd refuses to start on a drop-in of a higher one
    """

    def runtime(binary: str | None) -> dict[str, Any]:
        options: dict[str, Any] = {"SystemdCgroup": True}
        if binary:
            options["BinaryName"] = binary
        return {"runtime_type": "io.containerd.runc.v2", "options": options}

    config = {
        "version": version,
        "plugins": {
            CRI_RUNTIME: {
                "cni": {"bin_dirs": [CNI_BIN_DIR]},
                "containerd": {
                    "default_runtime_name": "nvidia",
                    "runtimes": {"runc": runtime(None), "nvidia": runtime(NVIDIA_RUNTIME)},
                },
            },
            CRI_IMAGES: {
                "pinned_images": {"sandbox": pause_image},
                "registry": {"config_path": CERTS_D},
            },
        },
    }
    return HEADER + tomli_w.dumps(config)


def hosts_toml(registry: str, mirror: str) -> str:
    """
    ``certs.d/<registry>/hosts.toml``: pull from *mirror* instead of *registry*.

    Source: containerd docs/hosts.md, commit 301026e5 (read 2026-11-30).
    """
    upstream = "registry-1.docker.io" if registry == "docker.io" else registry
    config = {
        "server": f"https://{upstream}",
        "host": {mirror.rstrip("/"): {"capabilities": ["pull", "resolve"]}},
    }
    return HEADER + tomli_w.dumps(config)


HOSTS_PATHS = f"{CERTS_D}/*/hosts.toml"


def hosts_path(registry: str) -> str:
    return f"{CERTS_D}/{registry}/hosts.toml"


def unit_drop_in(proxy: Mapping[str, str]) -> str:
    """
    Unlimited locked memory for RDMA pods, which inherit containerd's limit, and the proxy.

    + proxy: environment variables, may be empty
    """
    lines = ["[Service]", "LimitMEMLOCK=infinity", "LimitNOFILE=1048576"]
    # A percent sign stands for a specifier; in a URL it is one of an escaped character.
    # Source: systemd.unit(5), "Specifiers", systemd 252.
    lines += [
        f'Environment="{name}={value.replace("%", "%%")}"' for name, value in sorted(proxy.items())
    ]
    return HEADER + "\n".join(lines) + "\n"


def proxy_environment(
    http: str | None, https: str | None, no_proxy: Sequence[str]
) -> dict[str, str]:
    """Environment of a daemon behind a proxy; empty without one."""
    found = {"HTTP_PROXY": http, "HTTPS_PROXY": https}
    environment = {name: value for name, value in found.items() if value}
    if environment and no_proxy:
        environment["NO_PROXY"] = ",".join(no_proxy)
    return environment
