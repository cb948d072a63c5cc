"""No token, key or password of a run in a command line, a log, a result, or the cluster."""

from __future__ import annotations

import base64
import json
import logging
import runpy
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyinfra.context import ctx_host

from operations import boot, node, reading, report
from operations.redaction import redact, redacted, secrets_of
from operations.report import RUN
from tests.support.runtime import Engine, bare, make_engine, spec, whole
from tests.support.secrets import files_below, forms, leaks, of_run
from tests.support.simulated_node import SimulatedFile, SimulatedHost, pyinfra_state, run

PROXY = "http://user:pr0xy%2Fpa55@proxy.test:3128"
REGISTRY_PASSWORD = "r3gistry-pa55"
SECRETS = {
    "_sudo_password": "sud0 pa55'word", "ssh_key_password": "k3y-pa55", "ssh_password": "s5h-pa55",
    "http_proxy": PROXY, "https_proxy": PROXY,
}  # fmt: skip
CONTAINERD = f"""\
version = 3
[plugins."io.containerd.cri.v1.images".registry.configs."registry.test".auth]
username = "puller"
password = "{REGISTRY_PASSWORD}"
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    user = {"token": "k8s-b34rer-t0ken", "client-key-data": "Y2xpZW50LWtleS1vZi1hbi1vcGVyYXRvcg=="}
    path.write_text(yaml.safe_dump({"users": [{"name": "x", "user": user}]}))
    return path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    """With the log and the result that a run writes."""
    found = make_engine(monkeypatch, tmp_path)
    monkeypatch.setattr(RUN, "folder", None)
    monkeypatch.setattr(report, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(report.atexit, "register", lambda function: None)
    log = logging.getLogger("pyinfra")
    before = (list(log.handlers), list(log.filters), log.level)
    log.setLevel(logging.DEBUG)
    yield found
    log.handlers[:], log.filters[:] = before[0], before[1]
    log.setLevel(before[2])


def converge(
    engine: Engine, host: SimulatedHost, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The main job; the host's data with every secret that a run can be given."""
    asked = spec(
        kube_kubeconfig=kubeconfig, http_proxy=PROXY, https_proxy=PROXY, kube_node_name=host.name
    )
    monkeypatch.setattr(node, "specs", lambda: {host.name: asked})
    monkeypatch.setattr(node.Cluster, "connect", lambda kubeconfig: engine.cluster)
    run([host], {host.name: SECRETS}, lambda: runpy.run_path("deploys/gpu_node.py"))
    return SECRETS


def test_no_secret_of_a_run_is_where_others_can_read_it(
    engine, kubeconfig, tmp_path, monkeypatch, capsys, caplog
) -> None:
    host = whole(engine.cluster)
    host.files["/etc/containerd/config.toml"] = SimulatedFile(CONTAINERD, "0600")
    # The worst of messengers: a tool that prints what it was given.
    engine.cluster.join_fails = "error execution phase kubelet-start: token"
    monkeypatch.setattr(boot, "RETRY_S", 0)
    data = converge(engine, host, kubeconfig, monkeypatch)
    assert RUN.rows[host.name].state == "failed"
    engine.cluster.join_fails = ""
    converge(engine, host, kubeconfig, monkeypatch)
    assert RUN.rows[host.name].state == "open", RUN.rows[host.name].problems
    RUN.rows[host.name].problems.append(f"a proxy that answers {PROXY}")
    folder = RUN.folder
    RUN.close()

    secrets = of_run(data, kubeconfig) | {"a registry's password": REGISTRY_PASSWORD}
    secrets |= {token: token.partition(".")[2] for token in engine.cluster.minted}
    assert len(secrets) == 9  # sudo, SSH and its key, proxy as sent and as meant, ...
    places = {f"argv {number}": line for number, line in enumerate(host.log)}
    places |= files_below(folder) | {"terminal": "".join(capsys.readouterr()), "log": caplog.text}
    cluster = engine.cluster
    objects = {name: asdict(state) for name, state in cluster.nodes.items()}
    places["objects"] = json.dumps([objects, cluster.applied, list(map(asdict, cluster.pods))])
    places["changes in the cluster"] = "\n".join(cluster.log)
    places |= {
        f"{path} ({file.mode})": file.text
        for path, file in host.files.items()
        if file.mode not in ("0600", "0400")
    }
    assert leaks(places, secrets) == []
    assert "plan: " in places[f"{folder}/run.log"]
    assert "proxy.test:3128" in places[f"{folder}/result.json"]
    assert cluster.tokens == {}
    token_files = [
        path for path, file in host.files.items() for t in cluster.minted if t in file.text
    ]
    assert token_files == []


def test_no_file_of_a_host_is_printed_however_much_is_asked_for(capsys) -> None:
    """With -vvv pyinfra prints what commands print, past its log."""
    path = "/etc/containerd/config.toml"
    host = bare()
    host.files[path] = SimulatedFile(CONTAINERD, "0600")
    with pyinfra_state([host], {host.name: {}}) as state:
        state.print_output = state.print_input = True
        state.print_fact_output = state.print_fact_input = True
        for each in state.inventory.get_active_hosts():
            with ctx_host.use(each):
                files = reading.read((path,))["Files"]
    assert files[path].text == CONTAINERD
    shown = capsys.readouterr()
    assert base64.b64encode(CONTAINERD.encode()).decode() not in shown.out + shown.err


def test_the_search_finds_a_secret_in_every_form() -> None:
    secrets = {"password": "p/a ss'w0rd"}
    for form in forms("p/a ss'w0rd"):
        assert leaks({"place": f"before {form} after"}, secrets)
    assert leaks({"place": "nothing"}, secrets) == []


def test_secrets_of_a_run_are_those_of_its_data_and_its_kubeconfig(kubeconfig: Path) -> None:
    assert secrets_of(SECRETS, kubeconfig) == {
        "sud0 pa55'word", "k3y-pa55", "s5h-pa55", "pr0xy%2Fpa55", "pr0xy/pa55",
        "k8s-b34rer-t0ken", "Y2xpZW50LWtleS1vZi1hbi1vcGVyYXRvcg==",
    }  # fmt: skip


JWT = "eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to http://u:p@proxy.test:3128/x", "to http://***@proxy.test:3128/x"),
        ("token abcdef.0123456789abcdef used", "token abcdef.*** used"),
        (f"sent {JWT}, refused", "sent ***, refused"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb",
         "a\n*** (a private key)\nb"),
        ("-----BEGIN PRIVATE KEY-----\nMHc, and then cut off", "*** (a private key)"),
        ('  password = "x y"', "  password = ***"),
        ('{"token": "abc", "name": "n"}', '{"token": ***, "name": "n"}'),
        ("    client-key-data: LS0tLS1", "    client-key-data: ***"),
        ("PYINFRA_SUDO_PASSWORD=abc sudo", "PYINFRA_SUDO_PASSWORD=*** sudo"),
        ("kubelet --token=abc --v=2", "kubelet --token=*** --v=2"),
        ("Connecting to: h ({'password': 'x y', 'port': 22})",
         "Connecting to: h ({'password': ***, 'port': 22})"),
        ('X-Auth-Token = ["s3cr3t", \'s2\']', "X-Auth-Token = ***"),
        ('-X-Auth-Token = [\n-  "s3cr3t",\n-]\n-a = 1', "-X-Auth-Token = ***\n-a = 1"),
        ('{"passwords": ["a]b", "c\\"d"], "n": 1}', '{"passwords": ***, "n": 1}'),
        ('auth = ["cut off', "auth = ***"),
        ("X=AWS_SECRET_ACCESS_KEY=s3cr3t,va;lue", "X=AWS_SECRET_ACCESS_KEY=***"),
        ("ExecStart=/usr/bin/x --password s3cr3t -v", "ExecStart=/usr/bin/x --password *** -v"),
        ("x --registry-token 's3 cr3t' -v", "x --registry-token *** -v"),
        ("machine apt.test login user password s3cr3t", "machine apt.test login user password ***"),
        ("machine a login b password s3cr3t machine c", "machine a login b password *** machine c"),
        ("machine apt.test\nlogin user\npassword s3cr3t\n",
         "machine apt.test\nlogin user\npassword ***\n"),
        ("token: s3cr3t # of x", "token: ***"),
        ("+  site_password: s3 'cr3t\n+  name: n", "+  site_password: ***\n+  name: n"),
        ("  token: |-\n    s3cr3t\n    s2\n  name: n", "  token: ***\n  name: n"),
        ("[gpu01] token: s3cr3t # of x", "[gpu01] token: *** # of x"),
        ("{token: s3cr3t, name: n}", "{token: ***, name: n}"),
        ("curl -u user:s3cr3t https://r.test/v2/", "curl -u user:*** https://r.test/v2/"),
        ('password = "a\\"b" # c', "password = *** # c"),
        ("password = 'a\\'\nname = 'n'", "password = ***\nname = 'n'"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "join token: want cluster-info signed for token id abcdef, have no signature after 60 s",
        "kubernetes: want Ready, have KubeletNotReady: container runtime network not ready",
        "http://10.88.0.1:8080/debian signed by 2E502069DA7B1BE4A4E11A18F03E0244DABCEF26",
        "ib_umad.ko, nvidia.580.178.04, sha256:0123456789abcdef",
        "remove what the join has left: want no file with a token, have one",
        "run `mokutil --import`; user@host pid 7 since 2026-11-30T03:00:00Z",
        "sudo: want a password, have none; journalctl -u kubelet, --authorization-mode=Webhook",
        "want DELETE /api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef on https://a:6443",
    ],
)
def test_what_is_no_secret_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_redaction_takes_no_time_over_long_lines() -> None:
    began = time.process_time()
    for line in ("a" * 200_000, "token" * 20_000, "token: [" + "'a'," * 50_000, "-" * 200_000):
        redact(line)
    assert time.process_time() - began < 2


def test_json_stays_json_and_shows_no_value_of_a_secrets_name() -> None:
    value = {"a": [PROXY, {"password": "x", "token_count": None}], "b": 1}
    assert redacted(value) == {
        "a": ["http://***@proxy.test:3128", {"password": "***", "token_count": None}], "b": 1,
    }  # fmt: skip
