"""Every inventory in the tree loads and is right; a wrong one is refused without a connection."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from paramiko import Channel, Transport

import nodespec
from inventories.transport import no_delay
from lab import paths
from nodespec import InventoryProblems, loading
from nodespec.loading import Loaded, load, loaded
from nodespec.problems import report
from tests.support.commands import Commands, Done

ROOT = Path(__file__).parent.parent
INVENTORIES = sorted(
    path.relative_to(ROOT) for path in ROOT.glob("inventories/*.py") if path.stem != "transport"
)
KEY = "0123456789ABCDEF0123456789ABCDEF01234567"


@pytest.fixture(autouse=True, scope="module")
def lab_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab that was up: its inventory reads the fingerprint of the lab's key."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "mirror").mkdir()
    (folder / "mirror/fingerprint").write_text(f"{KEY}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACKWRIGHT_CACHE", str(folder))
        patch.chdir(ROOT)
        yield folder


@pytest.fixture(scope="module")
def run(lab_cache: Path) -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def lab(run: Commands) -> Loaded:
    return loaded(json.loads(run("nodespec.loading", "inventories/lab.py").stdout))


@pytest.fixture(scope="module")
def prod(run: Commands) -> Loaded:
    return loaded(json.loads(run("nodespec.loading", "inventories/prod.py").stdout))


@pytest.mark.parametrize("path", INVENTORIES, ids=str)
def test_an_inventory_of_the_tree_has_no_problems(
    path: Path, request: pytest.FixtureRequest
) -> None:
    # A new inventory needs a fixture here: each is loaded once.
    found: Loaded = request.getfixturevalue(path.stem)
    specs, problems = nodespec.read_all(found.data, local_files=False)
    assert report([*found.problems, *problems]) == []
    assert specs
    for spec in specs.values():
        assert len(nodespec.mig_layout(spec)) == spec.gpu_count


def test_the_lab_is_the_one_of_its_description(lab: Loaded) -> None:
    described = yaml.safe_load((ROOT / "lab/nodes.yaml").read_text())
    data = lab.data
    specs, _ = nodespec.read_all(data, local_files=False)
    assert list(specs) == [node["name"] for node in described["nodes"]]
    for node in described["nodes"]:
        spec = specs[node["name"]]
        assert data[node["name"]]["ssh_hostname"] == node["address"]
        assert [spec.gpu_model] * spec.gpu_count == [gpu["model"] for gpu in node["gpus"]]
        assert [(spec.hca_model, spec.hca_link_layer, spec.hca_rate_gbps)] * spec.hca_count == [
            (h["model"], h["link_layer"], h["rate_gbps"]) for h in node["hcas"]
        ]
        assert spec.kube_api_server == f"{described['network']['host']}:6443"
        assert spec.cuda_repository_fingerprint == KEY


def test_the_labs_inventory_names_the_labs_files(lab: Loaded, lab_cache: Path) -> None:
    data = lab.data["gpu01"]
    for key, path in (
        ("ssh_key", paths.SSH_KEY),
        ("ssh_known_hosts_file", paths.KNOWN_HOSTS),
        ("kube_kubeconfig", paths.KUBECONFIG_RACKWRIGHT),
    ):
        assert Path(data[key]) == lab_cache / path.relative_to(paths.CACHE)


def test_in_the_example_roles_and_hosts_override_what_is_general(prod: Loaded) -> None:
    specs, _ = nodespec.read_all(prod.data, local_files=False)
    assert specs["gpu03.example.com"].hca_count == 8
    assert specs["gpu04.example.com"].hca_count == 7
    assert specs["gpu07.example.com"].mig_config == "all-1g.10gb"
    assert specs["gpu08.example.com"].mig_config == "all-disabled"
    assert {spec.kube_labels["topology.kubernetes.io/zone"] for spec in specs.values()} == {
        "rack1",
        "rack2",
    }


def test_pyinfra_can_print_an_inventory_with_our_transport_in_it(run: Commands) -> None:
    printed = run("pyinfra", "--json", "inventories/prod.py", "debug-inventory")
    for host in json.loads(printed.stdout):
        kwargs = host["data"]["ssh_paramiko_connect_kwargs"]
        assert kwargs == {"transport_factory": "Function: no_delay"}


# --- transport -----------------------------------------------------------------------------------


@pytest.fixture
def connection() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with client, peer:
            yield client


def delayed(sock: socket.socket) -> bool:
    return not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_ssh_packets_are_sent_at_once(connection: socket.socket) -> None:
    assert delayed(connection)
    transport = no_delay(connection, disabled_algorithms={"keys": ["ssh-rsa"]})
    assert isinstance(transport, Transport)
    assert transport.disabled_algorithms == {"keys": ["ssh-rsa"]}
    assert not delayed(connection)


def test_ssh_packets_are_sent_at_once_through_a_jump_host(connection: socket.socket) -> None:
    channel = Channel(1)
    channel._set_transport(Transport(connection))  # type: ignore[attr-defined]  # has no stub
    assert isinstance(no_delay(channel), Transport)
    assert not delayed(connection)


# --- python -m nodespec check, and a run ---------------------------------------------------------

DATA: dict[str, Any] = {
    "ssh_strict_host_key_checking": "yes",
    "gpu_model": "A100-SXM4-40GB",
    "gpu_count": 2,
    "hca_count": 0,
    "nvidia_driver_version": "580.178.04",
    "kube_version": "1.36.3",
    "kube_api_server": "10.0.0.1:6443",
    "kube_kubeconfig": "kubeconfig",
}
KUBECONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: b, user: c}}]
clusters: [{name: b, cluster: {server: "https://10.0.0.1:6443", certificate-authority-data: Q0E=}}]
users: [{name: c, user: {token: t}}]
"""


def hosts(hosts: str, **changes: Any) -> str:
    """An inventory of *hosts*, Python as a person writes it, with *changes* to good data."""
    return f"gpu_nodes = ({hosts}, {DATA | changes!r})\n"


class Site:
    """A folder with an inventory, looked at by both commands."""

    def __init__(self, folder: Path, run: Commands) -> None:
        self.folder, self.run = folder, run
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(KUBECONFIG)
        self.path = folder / "site.py"

    def write(self, text: str, name: str = "site.py") -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("'kubeconfig'", repr(str(self.kubeconfig))))

    def check(self, *arguments: str) -> Done:
        return self.run("nodespec", "check", *arguments, str(self.path))

    def deploy(self, *arguments: str) -> Done:
        """A run of the main job."""
        environment = {"PYINFRA_PROGRESS": "off", "RACKWRIGHT_RUNS": str(self.folder / "runs")}
        return self.run(
            "pyinfra", "-y", str(self.path), "deploys/gpu_node.py", *arguments, env=environment
        )

    def refused(self) -> list[str]:
        """The report, which is the same from both commands, and nothing was contacted."""
        checked, deployed = self.check(), self.deploy()
        lines = checked.stdout.splitlines()
        for done in (checked, deployed):
            assert done.returncode == 1
            assert done.contacts == ()
            assert "Traceback" not in done.said
            assert [line for line in lines if line not in done.said] == []
        word = "problem" if len(lines) == 1 else "problems"
        assert checked.stderr == f"{self.path}: {len(lines)} {word}\n"
        return [line.replace(str(self.path), "site.py") for line in lines]


@pytest.fixture
def site(tmp_path: Path, run: Commands) -> Site:
    return Site(tmp_path, run)


def test_a_good_inventory_is_described(run: Commands) -> None:
    out = run("nodespec", "check", "--no-files", "inventories/lab.py").stdout.splitlines()
    assert out[0].startswith("gpu01: 2x A100-SXM4-40GB, MIG all-1g.5gb (mixed), 2x ConnectX-6, ")
    assert out[-1] == "inventories/lab.py: 2 hosts, no problems"


def test_a_good_inventory_is_what_a_run_connects_to(site: Site) -> None:
    """What is written down as contact is contact: the other tests could fail."""
    site.write(hosts("['127.0.0.1']", ssh_port=1))
    assert site.check().returncode == 0
    deployed = site.deploy()
    assert any("socket.connect" in contact for contact in deployed.contacts)
    assert "Could not connect" in deployed.said


def test_all_kinds_of_problems_come_at_once(site: Site) -> None:
    listed = """[
        "gpu01",
        ("gpu02", {"mig_config": "all-3g.71gb"}),
        ("gpu03", {"ssh_hostname": "gpu01"}),
        ("GPU_04", {}),
        ("gpu05", {"nvidia_drvier_version": "595.71.05"}),
        ("gpu06", {"ssh_strict_host_key_checking": "no", "gpu_count": "x"}),
        "gpu01",
    ]"""
    site.write("spare = [['gpu10']]\n" + hosts(listed, kube_kubeconfig="/nonexistent"))
    assert [line.partition(": want ")[0] for line in site.refused()] == [
        "site.py: group spare",
        "gpu01: group gpu_nodes",
        "GPU_04: kube_node_name",
        "gpu02: mig_config",
        "gpu05: nvidia_drvier_version",
        "gpu06: gpu_count",
        "gpu06: ssh_strict_host_key_checking",
        "gpu01 to gpu03, gpu05 (4 hosts): kube_kubeconfig",
        "gpu01, gpu03: ssh_hostname",
    ]


NOT_RUNNING = {
    "import nosuchmodule": "ModuleNotFoundError: No module named 'nosuchmodule' (site.py, line 1)",
    "gpu_nodes = ['a'": "SyntaxError: '[' was never closed (site.py, line 1)",
    "x = 1\nraise KeyError('http://me:secret@h')": "KeyError: 'http://***@h' (site.py, line 2)",
    "import sys\nsys.exit(0)": "SystemExit: 0 (site.py, line 2)",
    "1 / 0": "ZeroDivisionError: division by zero (site.py, line 1)",
}


@pytest.mark.parametrize(("text", "have"), NOT_RUNNING.items(), ids=range(len(NOT_RUNNING)))
def test_an_inventory_that_does_not_run_is_told_with_its_line(
    site: Site, text: str, have: str
) -> None:
    site.write(text)
    want = "site.py: inventory: want Python that runs"
    assert site.refused() == [f"{want}, have {have}; correct it"]


def test_a_copy_of_the_example_under_another_name_takes_its_group_data_along(
    site: Site, prod: Loaded
) -> None:
    shutil.copytree(ROOT / "inventories/group_data", site.folder / "group_data")
    (site.folder / "group_data/prod.py").rename(site.folder / "group_data/hall.py")
    copy = site.folder / "hall.py"
    shutil.copy(ROOT / "inventories/prod.py", copy)
    found = loaded(json.loads(site.run("nodespec.loading", str(copy)).stdout))
    assert (found.data, found.problems) == (prod.data, ())


def test_a_command_that_only_looks_at_an_inventory_tells_it_in_the_same_words(site: Site) -> None:
    site.write("x = 1\n1 / 0")
    done = site.run("pyinfra", str(site.path), "debug-inventory")
    have = f"ZeroDivisionError: division by zero ({site.path}, line 2)"
    assert f"inventory: want Python that runs, have {have}; correct it" in done.said
    assert done.returncode == 1
    assert "Traceback" not in done.said


def test_a_run_that_would_ask_where_nobody_answers_is_refused_before_contact(site: Site) -> None:
    site.write(hosts("['a']"))
    done = site.run("pyinfra", str(site.path), "deploys/gpu_node.py")
    assert (
        "command line: -y: want it where nobody sits at a terminal, have a run that would ask; "
        "add -y, or --dry to see what would happen"
    ) in done.said
    assert (done.returncode, done.contacts) == (1, ())
    assert "Traceback" not in done.said


def test_an_inventory_that_is_no_utf_8_is_told(site: Site) -> None:
    site.path.write_bytes(b"gpu_nodes = ['\xe9']")
    (line,) = site.refused()
    assert "have UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9" in line


def test_group_data_that_does_not_run_is_told_with_its_line(site: Site) -> None:
    site.write(hosts("['a']"))
    site.write("import os\nx_a = os.environ['NO_SUCH']\n", "group_data/gpu_nodes.py")
    (line,) = site.refused()
    file = site.folder / "group_data/gpu_nodes.py"
    assert f"have KeyError: 'NO_SUCH' ({file}, line 2); correct it" in line


def test_an_inventory_may_print(site: Site) -> None:
    site.write("print('hello')\n" + hosts("['a']"))
    assert site.check().stdout.splitlines()[0] == "hello"
    answer = site.run("nodespec.loading", str(site.path))
    assert set(loaded(json.loads(answer.stdout)).data) == {"a"}


NO_HOSTS = "inventory: hosts: want at least one host, have none; list them in the inventory"


@pytest.mark.parametrize("text", ["", "all = []", "a = []\nb = ([], {})", "_hidden = ['a']"])
def test_an_inventory_without_hosts_is_refused(site: Site, text: str) -> None:
    site.write(text)
    assert site.refused() == [NO_HOSTS]


GROUPS = {
    "('gpu01', 'gpu02')": "a tuple: ('gpu01', 'gpu02')",
    "()": "a tuple: ()",
    "(('gpu01', {}), ('gpu02', {}))": "a tuple: (('gpu01', {}), ('gpu02', {}))",
    "(['gpu01'],)": "a list in a tuple of 1 without {...} after it",
    "(['gpu01'], None)": "a list in a tuple of 2 without {...} after it",
    "{'gpu02', 'gpu01'}": "a set: ['gpu01', 'gpu02']",
    "(1, 2)": "a tuple: (1, 2)",
    "(f'gpu{n}' for n in range(3))": "a generator",
}


def test_a_group_has_one_of_two_forms(site: Site) -> None:
    site.write("".join(f"wrong{n} = {value}\n" for n, value in enumerate(GROUPS)))
    lines = site.refused()
    for number, have in enumerate(GROUPS.values()):
        want = f"site.py: group wrong{number}: want a list of hosts, or (list of hosts, {{...}})"
        assert lines[number].startswith(f"{want}, have {have}; write [...] around the hosts")


def test_a_host_has_one_of_two_forms(site: Site) -> None:
    wrong = ("1", "None", "''", "['a']", "('a',)", "('a', None)", "(3, {})", "('a', {}, {})")
    site.write(
        "".join(f"wrong{n} = [{host}]\n" for n, host in enumerate(wrong))
        + hosts("['good']", gpu_count="x")
    )
    lines = site.refused()
    for number, host in enumerate(wrong):
        want = f"site.py: group wrong{number}: want hosts as a string or as (name, {{...}})"
        assert lines[number].startswith(f"{want}, have {'nothing' if host == 'None' else host}; ")
    assert lines[-1].startswith("good: gpu_count: want whole number, have 'x'; ")
    assert len(lines) == len(wrong) + 1


def test_a_host_listed_twice_is_refused_though_pyinfra_takes_it(site: Site) -> None:
    site.write(hosts("[\n  'a',\n  ('b', {}),\n  ('a', {}),\n]"))
    assert site.refused() == [
        "a: group gpu_nodes: want each host once, have 2 entries in lines 2, 4 of site.py; "
        "pyinfra makes one host of them: correct the copied line"
    ]
    site.write(hosts("[f'gpu{n:02}' for n in range(1, 4)] + ['gpu03']"))
    assert site.refused() == [
        "gpu03: group gpu_nodes: want each host once, have 2 entries; "
        "pyinfra makes one host of them: correct the copied line"
    ]


def test_two_names_of_one_machine_are_refused(site: Site) -> None:
    site.write(hosts("['gpu01', ('b', {'ssh_hostname': 'GPU01.'})]"))
    (line,) = site.refused()
    assert line.startswith("gpu01, b: ssh_hostname: want an address of its own, have gpu01:22 on 2")
    site.write(hosts("[('a', {'ssh_hostname': 'fd00::1'}), ('b', {'ssh_hostname': 'FD00:0::1'})]"))
    (line,) = site.refused()
    assert "have [fd00::1]:22 on 2 hosts: a, b; " in line


def test_a_host_outside_the_group_all_is_refused_since_pyinfra_leaves_it_out(site: Site) -> None:
    site.write("all = ['a']\n" + hosts("['a', 'b']"))
    (line,) = site.refused()
    assert line.startswith("b: group gpu_nodes: want hosts of the group all, have others; ")


def test_a_hosts_name_is_no_command_and_no_path(site: Site) -> None:
    names = ["gpu 01", "gpu;reboot", "-oProxyCommand=x", "gpu\x1b[31m", "../../etc", "gpü"]
    site.write(hosts(repr([(name, {"kube_node_name": f"n{i}"}) for i, name in enumerate(names)])))
    (line,) = site.refused()
    assert ": name: want letters, digits and . _ - : in a host's name, have " in line
    assert "(6 hosts)" in line or line.count(", ") >= 5
    assert line.isprintable()


def test_what_pyinfra_is_given_has_its_types_and_no_password_is_shown(site: Site) -> None:
    wrong = {
        "ssh_port": "22", "ssh_key": None, "ssh_password": 12345678, "_sudo": "yes",
        "_sudo_password": ["hunter2"], "ssh_allow_agent": 1, "ssh_connect_retries": True,
    }  # fmt: skip
    site.write(hosts("['a']", _su_user=None, **wrong))
    lines = site.refused()
    assert {line.split(": ")[1] for line in lines} == set(wrong)
    assert "12345678" not in str(lines)
    assert "hunter2" not in str(lines)
    assert "a: ssh_port: want a value of type int, have '22'; correct it" in lines
    site.write(hosts("['a']", _env={"A": 1}))
    assert site.refused()[0].startswith(
        "a: _env: want a value of type collections.abc.Mapping[str,"
    )
    site.write(hosts("['a', ('b', {'ssh_port': 0})]", ssh_port=70000))
    assert site.refused() == [
        "a, b: ssh_port: want a port from 1 to 65535, have 70000 / 0; correct it"
    ]


def test_a_password_in_a_url_is_not_shown(site: Site) -> None:
    url = "user:p@ss/w0rd@proxy:3128"
    site.write(
        hosts(
            "['a']", http_proxy=f"http://{url}", https_proxy=url, no_proxy=[f"http://{url}"],
            kube_api_server=url, cuda_repository_url=f"https://{url}/", htp_proxy=url,
            registry_mirrors={"docker.io": f"http://{url}"}, pause_image=url,
        )
    )  # fmt: skip
    lines = site.refused()
    assert len(lines) == 8
    assert "w0rd" not in str(lines)


def test_group_data_without_a_group_is_refused(site: Site) -> None:
    site.write(hosts("['a']"))
    site.write("sibling = []\n", "other.py")
    for stem in ("all", "gpu_nodes", "site", "sibling", "other", "gpu_node", "nobodys"):
        site.write("", f"group_data/{stem}.py")
    site.write("", "group_data/rack.yaml")
    wanted = "want data of a group of the inventory, have no group of that name"
    assert site.refused() == [
        f"site.py: group_data/gpu_node.py: {wanted}; did you mean gpu_nodes.py",
        f"site.py: group_data/nobodys.py: {wanted}; rename or remove it",
        "site.py: group_data/rack.yaml: want group data in Python, have .yaml; "
        "pyinfra reads none of it: write its values as Python",
    ]


def test_what_is_no_file_is_not_taken_for_a_host(run: Commands, tmp_path: Path) -> None:
    for name, have, todo in (
        ("inventories/none.py", "none", "correct the path"),
        ("inventories/prd.py", "none", "did you mean prod in inventories/"),
        ("prod", "none", "did you mean prod in inventories/"),
        (str(tmp_path), "a directory", "name a file in it"),
    ):
        for command in (("nodespec", "check", name), ("pyinfra", name, "deploys/gpu_node.py")):
            done = run(*command)
            assert done.returncode == 1
            assert done.contacts == ()
            assert f"{name}: inventory: want a file, have {have}; {todo}\n" in done.said


def test_a_limit_that_matches_nothing_is_refused(site: Site) -> None:
    site.write(hosts("['gpu01', 'gpu02']"))
    for arguments, said in (
        (["--limit", "gpu1"], "--limit: want a host or group of the inventory, have 'gpu1'; did"),
        (["--limit", "gpu01", "--limit", "rack9"], "--limit: want a host or group of the inv"),
        (["--exclude", "gpu03"], "--exclude: want a host or group of the inventory, have 'gpu03'"),
        (["--exclude", "gpu*"], "--limit, --exclude: want at least one host, have none; "),
    ):
        done = site.deploy(*arguments)
        assert done.returncode == 1
        assert done.contacts == ()
        assert f"command line: {said}" in done.said


def test_data_of_the_command_line_is_checked_too(site: Site) -> None:
    site.write(hosts("['gpu01']"))
    done = site.deploy("--data", "gpu_count=two", "--data", "audit=true")
    assert done.returncode == 1
    assert done.contacts == ()
    assert "gpu01: gpu_count: want whole number, have 'two'; " in done.said


def test_a_single_phase_refuses_too_and_a_fact_does_not(site: Site) -> None:
    for operation in ("deploys.phases.mig.mig", str(ROOT / "deploys/gpu_node.py")):
        assert loading._ours([operation])
    site.write(hosts("['127.0.0.1']", gpu_count="x", ssh_port=1))
    # Somebody who looks for what is wrong is let through.
    assert site.run("pyinfra", str(site.path), "fact", "server.Kernel").contacts != ()


def test_the_lab_says_so_when_it_was_never_up(run: Commands, tmp_path: Path) -> None:
    done = run("nodespec", "check", "inventories/lab.py", env={"RACKWRIGHT_CACHE": str(tmp_path)})
    assert done.stdout == (
        "inventories/lab.py: lab: want the fingerprint of its mirror's key, "
        f"have no {tmp_path}/mirror/fingerprint; run `python -m lab up`\n"
    )


def test_an_inventory_is_loaded_in_a_process_of_its_own(site: Site) -> None:
    site.write("print('hi')\na = [('b', {'x_a': {1}, 'x_b': len})]\n")
    assert load(str(site.path)) == Loaded({"b": {"x_a": [1], "x_b": "len"}}, ())
    site.write("raise ValueError('no')\n")
    answer = json.loads(site.run("nodespec.loading", str(site.path)).stdout)
    with pytest.raises(InventoryProblems, match=r"have ValueError: no \(.*, line 1\); correct it"):
        loaded(answer)


def test_a_process_that_ends_without_a_word_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for stderr, have in (("", "exit code 3"), ("...\nMemoryError\n", "MemoryError")):
        done = subprocess.CompletedProcess([], 3, "", stderr)
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        with pytest.raises(InventoryProblems, match=f"an inventory that can be read, have {have};"):
            load("site.py")


def test_a_thousand_hosts_are_checked_in_time(site: Site) -> None:
    site.write(hosts("[f'gpu{number:04}' for number in range(1000)]"))
    checked = site.check()
    assert checked.stdout.endswith("site.py: 1000 hosts, no problems\n")
    assert checked.cpu_s < 5


def test_a_thousand_hosts_with_one_mistake_each_are_refused_in_time(site: Site) -> None:
    changes = ({"gpu_count": "x"}, {"colour": 1}, {"mig_config": "all-1g"}, {"kube_node_name": "_"})
    site.write(hosts(repr([(f"gpu{n:04}", changes[n % 4]) for n in range(1000)])))
    deployed = site.deploy()
    assert (deployed.returncode, deployed.contacts) == (1, ())
    assert "--> pyinfra error: 4 problems in the inventory\ngpu0000, gpu0004, " in deployed.said
    # Of the processor, since other work on the machine does not count.
    assert deployed.cpu_s < 5
