"""A real control plane on the lab host: kubeadm's certificates, four daemons, the lab's own CNI.

The cluster is what a user of the product has before: it knows no GPU node, brings its network to
any node that joins, and lets the product in with the rights of its own manifest only.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from cryptography import x509
from rich.console import Console

from lab.command import CommandError, run
from lab.control_plane import daemons, settings
from lab.control_plane.settings import FOLDER, NODE_CERTIFICATES, PKI, PRODUCT_RIGHTS, kubeconfig
from lab.errors import LabError
from lab.mirror import go
from lab.paths import BUILD, KUBECONFIG_RACKWRIGHT
from lab.progress import step
from lab.service import Service

START_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 120.0
TOKEN_LIFETIME_S = 30 * 24 * 3600
TOKEN_RENEWED_BEFORE_S = 7 * 24 * 3600
LOCAL_CONFIGURATION = FOLDER / "kubeadm-local.yaml"
UPLOADED_CONFIGURATION = FOLDER / "kubeadm.yaml"


def up(console: Console) -> None:
    """Start what does not run, make what is missing; data of an earlier run is kept."""
    programs = build(console)
    with step(console, "certificates and kubeconfigs"):
        make_credentials(programs["kubeadm"])
    services = all_services(programs)
    with step(console, f"control plane on {settings.endpoint()}"):
        for service in services:
            service.start(START_TIMEOUT_S)
    with step(console, "cluster configuration, network, access"):
        configure(programs)


def down() -> None:
    """Stop the daemons, the API's clients first; certificates and data stay."""
    for service in reversed(all_services(known_programs())):
        service.stop()


def status() -> dict[str, object]:
    """``nodes`` is ``None`` if the API does not answer."""
    services = all_services(known_programs())
    answers = services[1].ready() if PKI.is_dir() else False
    running = {service.name: service.running() for service in services}
    return {
        "endpoint": settings.endpoint(),
        "running": all(running.values()),
        "daemons": running,
        "answers": answers,
        "nodes": nodes() if answers else None,
    }


def forget(names: Iterable[str]) -> None:
    """Delete nodes and their pods: those of guests that have been set back or destroyed.

    Otherwise a guest that joins again under its name would be given its old pods to run. Nothing
    happens while the API does not answer.
    """
    if not status()["answers"]:
        return
    for name in names:
        kubectl("delete", "node", name, "--ignore-not-found", "--wait=true")
        kubectl(
            "delete", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}",
            "--force", "--grace-period=0",
        )  # fmt: skip


def build(console: Console) -> dict[str, Path]:
    def report(line: str) -> None:
        console.print(f"[dim]{line}[/]")

    return settings.kubernetes(report) | go.build("etcd", report)


def known_programs() -> dict[str, Path]:
    """Where the programs are, built or not."""
    return {
        name: BUILD / "go" / set_name / "bin" / name
        for set_name in ("kubernetes", "etcd")
        for name in go.tools((go.SOURCES / set_name / "go.mod").read_text(), go.SETS[set_name])
    }


def all_services(programs: dict[str, Path]) -> list[Service]:
    """In the order in which each needs the one before."""
    makers: dict[str, Callable[[Path], Service]] = {
        "etcd": daemons.etcd,
        "kube-apiserver": daemons.api_server,
        "kube-controller-manager": daemons.controller_manager,
        "kube-scheduler": daemons.scheduler,
    }
    return [make(programs[name]) for name, make in makers.items()]


def make_credentials(kubeadm: Path) -> None:
    """kubeadm makes what is missing and checks what is there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    LOCAL_CONFIGURATION.write_text(settings.kubeadm_configuration(str(PKI)))
    UPLOADED_CONFIGURATION.write_text(settings.kubeadm_configuration(NODE_CERTIFICATES))
    phase: list[str | Path] = [kubeadm, "init", "phase"]
    config: list[str | Path] = ["--config", LOCAL_CONFIGURATION]
    if not certified(PKI / "apiserver.crt"):
        # kubeadm would refuse it. Whoever was told of the authority trusts the new one too, and a
        # server that runs reads it by itself.
        for suffix in ("crt", "key"):
            (PKI / f"apiserver.{suffix}").unlink(missing_ok=True)
    run([*phase, "certs", "all", *config], timeout_s=COMMAND_TIMEOUT_S)
    scratch = FOLDER / "kubeconfig"
    for client in ("admin", "super-admin", "controller-manager", "scheduler"):
        if kubeconfig(client).is_file():
            continue
        run(
            [*phase, "kubeconfig", client, *config, "--kubeconfig-dir", scratch],
            timeout_s=COMMAND_TIMEOUT_S,
        )
        (scratch / f"{client}.conf").rename(kubeconfig(client))


def certified(certificate: Path) -> bool:
    """Whether a certificate is there, and for all names that the API server has today."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, x509.ExtensionNotFound):
        return False
    return {str(name.value) for name in names} >= set(settings.CERTIFIED)


def configure(programs: dict[str, Path]) -> None:
    kubeadm = programs["kubeadm"]
    super_admin = kubeconfig("super-admin")
    phase: list[str | Path] = [kubeadm, "init", "phase"]
    common: list[str | Path] = ["--config", UPLOADED_CONFIGURATION, "--kubeconfig", super_admin]
    kubectl("apply", "-f", "-", stdin=settings.cluster_manifest(), client="super-admin")
    run([*phase, "upload-config", "all", *common], timeout_s=COMMAND_TIMEOUT_S)
    found = kubectl("get", "configmap", "cluster-info", "-nkube-public", "--ignore-not-found",
                    "--output=name")  # fmt: skip
    if not found.strip():
        run([*phase, "bootstrap-token", *common, "--skip-token-print"], timeout_s=COMMAND_TIMEOUT_S)
    kubectl("apply", "-f", PRODUCT_RIGHTS)
    make_product_access()


def make_product_access() -> None:
    """A kubeconfig with a token of the product's service account, as its manual says."""
    if renewal_due(KUBECONFIG_RACKWRIGHT):
        token = kubectl(
            "create", "token", "rackwright", "-nrackwright", f"--duration={TOKEN_LIFETIME_S}s"
        ).strip()
        write_private(KUBECONFIG_RACKWRIGHT, product_kubeconfig(token))


def product_kubeconfig(token: str) -> str:
    authority = base64.b64encode((PKI / "ca.crt").read_bytes()).decode()
    cluster = {"server": settings.endpoint(), "certificate-authority-data": authority}
    name, user = settings.NAME, "rackwright"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
            "current-context": name,
        }
    )


def renewal_due(path: Path) -> bool:
    """Whether the kubeconfig is missing, of another cluster, or has a token that soon ends."""
    try:
        config = yaml.safe_load(path.read_text())
        token = config["users"][0]["user"]["token"]
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    except (FileNotFoundError, yaml.YAMLError, LookupError, TypeError):
        return True
    if base64.b64decode(authority) != (PKI / "ca.crt").read_bytes():
        return True
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return bool(claims["exp"] < time.time() + TOKEN_RENEWED_BEFORE_S)


def write_private(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.touch(mode=0o600)
    scratch.write_text(text)
    scratch.rename(path)


def nodes() -> dict[str, bool | None] | None:
    """Whether each node is ready; ``None`` in place of all if they could not be read."""
    try:
        items = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    except (CommandError, ValueError):
        return None
    states: dict[str, bool | None] = {}
    for item in items:
        ready = [c["status"] for c in item["status"].get("conditions", []) if c["type"] == "Ready"]
        # Its kubelet's word; Unknown is the controller's for a kubelet that has stopped speaking.
        word = ready[0] if ready else "Unknown"
        states[item["metadata"]["name"]] = {"True": True, "False": False}.get(word)
    return states


def kubectl(*arguments: str | Path, stdin: str | None = None, client: str = "admin") -> str:
    own = kubeconfig(client)
    if not own.is_file():
        raise LabError(f"control plane: want {own}, have none; run: python -m lab up")
    return run(
        [known_programs()["kubectl"], "--kubeconfig", own, *arguments],
        stdin=stdin,
        timeout_s=COMMAND_TIMEOUT_S,
    )
