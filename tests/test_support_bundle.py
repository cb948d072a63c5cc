"""The support bundle: all of a healthy host, what can be had of a broken one, no secrets."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyinfra.context import ctx_host, ctx_state

from facts.snapshot import MARK, registered
from operations import kubeadm, node, support_bundle
from operations.support_bundle import END, ITEMS, Bundle
from tests.support import runtime
from tests.support.runtime import open_node
from tests.support.simulated_cluster import SimulatedCluster
from tests.support.simulated_node import (
    SimulatedFile,
    SimulatedHost,
    Unreadable,
    failed,
    files,
    run,
)

ROOT = Path(__file__).parent.parent
PROXY_PASSWORD, SUDO_PASSWORD = "pr0xy-pa55", "sud0-pa55w0rd"
TOKEN = "abcdef.0123456789abcdef"
JWT = "eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl"
PROXY = f"http://user:{PROXY_PASSWORD}@proxy.test:3128"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAvVg\n-----END RSA PRIVATE KEY-----"
JOURNAL = f"""\
kubelet[7]: using token {TOKEN}
kubelet[7]: Authorization: Bearer {JWT}
sudo[9]: the operator typed {SUDO_PASSWORD}
{KEY}
kubelet[7]: node is Ready
"""


def data(**changes: object) -> dict[str, object]:
    """The inventory's data of one host."""
    spec = runtime.spec(https_proxy=PROXY, **changes).model_dump(mode="json")
    strict = {"ssh_strict_host_key_checking": "yes"}
    return {**spec, **strict, "_sudo": True, "_sudo_password": SUDO_PASSWORD}


def host(name: str = "gpu01") -> SimulatedHost:
    found = runtime.bare(name)
    found.files["/etc/apt/apt.conf.d/51rackwright-proxy"] = SimulatedFile(
        f'Acquire::https::Proxy "{PROXY}";\n'
    )
    found.files[kubeadm.JOIN_FILE] = SimulatedFile(f"token: {TOKEN}\n", "0600")
    commands = {shlex.quote(str(fact().command())): fact for fact in registered()}

    def reading(h: SimulatedHost, match: re.Match[str], stdin: str) -> str:
        fact = next((fact for quoted, fact in commands.items() if quoted in h.log[-1]), None)
        asked = fact.__name__ if fact else "ApiServer" if "/dev/tcp" in h.log[-1] else "Files"
        text, code = "", 0
        try:
            text = files(h, h.log[-1]) if asked == "Files" else h.facts[asked](h)
        except Unreadable as error:
            code = error.args[0]
        return f"{text}\n\n{END}{code}"

    item = re.escape(f"{support_bundle.ENVIRONMENT}; timeout -k 2 ")
    found.on(f"^{item}", reading)
    for name, command in ITEMS.items():
        text = JOURNAL if name == "journal-kubelet" else f"of {name}\n"
        quoted = re.escape(shlex.quote(command))
        found.on(f"^{item}.*{quoted}", lambda h, m, s, text=text: f"{text}\n{END}0")
    found.on("^true$", lambda h, m, s: True)
    return found


def hang(h: SimulatedHost, match: re.Match[str], stdin: str) -> str:
    raise TimeoutError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cluster = SimulatedCluster(nodes={"gpu01": open_node()})
    monkeypatch.setattr(support_bundle.Cluster, "connect", lambda kubeconfig: cluster)
    monkeypatch.setattr(support_bundle, "RUNS", tmp_path)
    monkeypatch.setattr(support_bundle, "BUNDLE", Bundle())
    monkeypatch.setattr(support_bundle.atexit, "register", lambda function: None)
    run_folder = tmp_path / "20261130T172348Z-1"
    run_folder.mkdir()
    (run_folder / "run.log").write_text(f"an older run's log: {PROXY}\n")
    (run_folder / "result.json").write_text("{}\n")
    return tmp_path


def collect() -> None:
    runpy.run_path("deploys/support_bundle.py")


def bundle(
    *hosts: SimulatedHost,
    unreached: frozenset[str] | set[str] = frozenset(),
    deploy: Callable[[], None] = collect,
    **changes: object,
) -> dict[str, str]:
    """Collect; every file of the bundle by its path below the bundle's own folder."""
    given = {h.name: data(kube_node_name=h.name) | changes for h in hosts}
    state = run(hosts, given, deploy)
    assert failed(state) == set(unreached)
    packed = support_bundle.BUNDLE.close()
    assert packed is not None
    assert packed.stat().st_mode & 0o077 == 0
    with tarfile.open(packed) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in members
        }


def missing(found: dict[str, str], name: str = "gpu01") -> dict[str, str]:
    return json.loads(found["bundle.json"])["could_not_be_had"][name]


def test_a_bundle_has_everything_of_a_host_and_of_the_runs(runs: Path) -> None:
    found = bundle(host())
    assert missing(found) == {}
    assert {f"gpu01/{name}.txt" for name in ITEMS} <= found.keys()
    facts = {fact.__name__ for fact in registered()} - {"Files"}
    assert {f"gpu01/readings/{name}.txt" for name in facts} <= found.keys()
    assert {"gpu01/node.json", "gpu01/pods.json", "gpu01/spec.json"} <= found.keys()
    assert json.loads(found["gpu01/readings/unread.json"]) == {}
    plan = json.loads(found["gpu01/plan.json"])
    assert "write the system's settings" in [item.get("title") for item in plan]
    assert "runs/20261130T172348Z-1/run.log" in found
    assert list(runs.glob("support-*")) == list(runs.glob("support-*.tar.gz"))


def test_nothing_is_changed_on_a_host(runs: Path) -> None:
    asked = host()
    before = dict(asked.files)
    bundle(asked)
    assert asked.files == before
    assert {line for line in asked.log if not line.startswith(support_bundle.ENVIRONMENT)} == set()
    assert not any(asked.stdin)


def test_no_secret_is_in_a_bundle(runs: Path) -> None:
    found = bundle(host())
    assert "node is Ready" in found["gpu01/journal-kubelet.txt"]
    assert "proxy.test:3128" in found["gpu01/files/etc/apt/apt.conf.d/51rackwright-proxy"]
    assert not any(kubeadm.JOIN_FILE in path for path in found)
    secrets = (PROXY_PASSWORD, SUDO_PASSWORD, TOKEN.partition(".")[2], JWT, "MIIEowIBAAKCAQEAvVg")
    for path, text in found.items():
        assert [secret for secret in secrets if secret in text] == [], path


def test_one_item_that_hangs_is_named_and_the_rest_is_there(runs: Path) -> None:
    asked = host()
    asked.on("nvidia-smi -q", hang)
    asked.facts["Gpus"] = lambda h: (_ for _ in ()).throw(Unreadable(124))
    found = bundle(asked)
    assert missing(found).keys() == {"gpus", "reading Gpus"}
    assert "no answer within" in missing(found)["gpus"]
    assert "timed out" in json.loads(found["gpu01/readings/unread.json"])["Gpus"]
    assert "gpu01/journal-rackwright.txt" in found


def test_a_host_that_stops_answering_is_given_up_and_others_are_whole(runs: Path) -> None:
    dead, well = host("gpu01"), host("gpu02")
    dead.on("", hang)
    found = bundle(dead, well)
    assert set(missing(found, "gpu01")) >= {"reading Files", *ITEMS}
    assert "no longer answers" in missing(found, "gpu01")["apt"]
    assert len([line for line in dead.log if MARK not in line]) == 2  # one item, and one look
    assert missing(found, "gpu02") == {}


def test_a_host_on_which_everything_hangs_is_given_up_in_time(runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(support_bundle, "BUDGET_S", -1)
    asked = host()
    found = missing(bundle(asked))
    assert set(found) >= {"reading Files", *ITEMS}
    assert "are over" in found["gpus"]
    assert asked.log == []


def test_a_host_that_refuses_sudo_is_named_in_its_own_words(runs: Path) -> None:
    asked = host()
    asked.on("", lambda h, m, s: (False, "sudo: a password is required"))
    assert missing(bundle(asked))["gpus"] == "sudo: a password is required"


def test_a_host_that_cannot_be_reached_is_named(runs: Path) -> None:
    well, gone = host("gpu01"), host("gpu02")
    gone.down_for = 99
    found = bundle(well, gone, unreached={"gpu02"})
    assert "not reached" in missing(found, "gpu02")["everything"]
    assert missing(found, "gpu01") == {}


def test_a_host_that_was_left_out_is_not_told_as_out_of_reach(runs: Path, capsys) -> None:
    def limited() -> None:
        state = ctx_state.get()
        state.limit_hosts = [host for host in state.inventory if host.name == "gpu01"]
        if ctx_host.get().name == "gpu01":
            collect()

    found = bundle(host("gpu01"), host("gpu02"), deploy=limited)
    assert missing(found, "gpu01") == {}
    assert missing(found, "gpu02") == {"everything": "not asked for (--limit or --exclude)"}
    assert "gpu02" not in capsys.readouterr().err


def test_a_bad_inventory_and_an_api_that_is_gone_leave_the_hosts_own_words(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bundle(host(), gpu_count="two")
    assert missing(found).keys() == {"spec.json"}
    assert "gpu01/journal-kubelet.txt" in found
    monkeypatch.setattr(support_bundle, "BUNDLE", Bundle())
    answers = SimulatedCluster(problem="kubernetes api: want an answer, have none; look")
    monkeypatch.setattr(support_bundle.Cluster, "connect", lambda kubeconfig: answers)
    found = bundle(host())
    assert {"node.json", "pods.json", "api-server.json"} <= missing(found).keys()


def test_the_plan_in_a_bundle_is_that_of_the_main_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    for module, function in ((node, "converge"), (support_bundle, "collect")):
        monkeypatch.setattr(module, function, lambda name, phases: asked.append(tuple(phases)))
    for deploy in ("gpu_node", "support_bundle"):
        runpy.run_path(str(ROOT / f"deploys/{deploy}.py"))
    job, collected = asked
    assert job == collected
    assert job
