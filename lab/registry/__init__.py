"""The lab's container registry: Debian's docker-registry, filled with small images of our own.

Plain HTTP, under the repositories' upstream names without their host.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException

import yaml
from rich.console import Console

from lab.command import run
from lab.description import load
from lab.paths import REGISTRY, STATE
from lab.progress import step
from lab.registry import images, oci
from lab.service import Service

PORT = 5000
ANSWER_TIMEOUT_S = 2.0
PUSH_TIMEOUT_S = 300.0
CONFIGURATION = STATE / "registry.yml"


def address() -> str:
    return f"{load().network.host}:{PORT}"


def build(console: Console) -> None:
    """Make the images that are not in the cache."""
    for name in images.RECIPES:
        with step(console, f"image {name}"):
            images.build(name)


def up(console: Console) -> None:
    """Serve all images; those in the registry already are not sent again."""
    build(console)
    CONFIGURATION.parent.mkdir(parents=True, exist_ok=True)
    REGISTRY.mkdir(parents=True, exist_ok=True)
    CONFIGURATION.write_text(configuration())
    with step(console, f"registry on {address()}"):
        service().start()
        for name in images.RECIPES:
            push(name)


def down() -> None:
    service().stop()


def status() -> dict[str, object]:
    """``images`` maps each name to whether the registry serves what the sources make."""
    running = service().running()
    return {
        "address": address(),
        "running": running,
        "answers": answers(),
        "images": {name: current(name) if running else None for name in images.RECIPES},
    }


def service() -> Service:
    return Service(
        "registry",
        ["docker-registry", "serve", CONFIGURATION],
        answers,
        env={"OTEL_TRACES_EXPORTER": "none"},
    )


def configuration() -> str:
    """
    Of docker-registry.

    Source: Distribution 2.8, "Configuring a registry" (read 2026-11-30).
    """
    return yaml.safe_dump(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(REGISTRY)},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": False}},
            },
            "http": {"addr": address()},
        }
    )


def answers() -> bool:
    return request("/v2/") is not None


def served(name: str) -> str | None:
    """The digest of the manifest under this name; ``None`` if there is none."""
    repository, _, tag = name.rpartition(":")
    answer = request(f"/v2/{repository}/manifests/{tag}", {"Accept": oci.MANIFEST_TYPE}, "HEAD")
    return answer.get("Docker-Content-Digest") if answer is not None else None


def request(
    path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> dict[str, str] | None:
    """The headers of the answer; ``None`` for any other than success."""
    asked = urllib.request.Request(f"http://{address()}{path}", headers=headers or {})
    asked.method = method
    # The lab's own address: no proxy of the environment is meant for it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=ANSWER_TIMEOUT_S) as answer:
            return dict(answer.headers)
    except (urllib.error.URLError, HTTPException, OSError):
        return None


def current(name: str) -> bool | None:
    """``None`` if there is no image to compare with: it was not built from these sources."""
    layout = images.layout(name)
    return served(name) == oci.digest_of(layout) if layout.is_dir() else None


def push(name: str) -> None:
    layout = images.build(name)
    if served(name) == oci.digest_of(layout):
        return
    tag = name.rpartition(":")[2]
    run(
        [
            "skopeo",
            "copy",
            "--insecure-policy",
            "--quiet",
            "--dest-tls-verify=false",
            f"oci:{layout}:{tag}",
            f"docker://{address()}/{name}",
        ],
        timeout_s=PUSH_TIMEOUT_S,
    )
