"""Every inventory in the tree loads and is right; a wrong one is refused without a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from paramiko import Channel, Transport

import nodespec
from inventories.transport import no_delay
from lab import paths
from nodespec import InventoryProblems
from nodespec.__main__ import main
from nodespec.loading import Loaded, load, said, source
from nodespec.problems import report

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
def lab(lab_cache: Path) -> Loaded:
    return load("inventories/lab.py")


@pytest.fixture(scope="module")
def prod(lab_cache: Path) -> Loaded:
    return load("inventories/prod.py")


@pytest.mark.parametrize("path", INVENTORIES, ids=str)
def test_an_inventory_of_the_tree_has_no_problems(
    path: Path, request: pytest.FixtureRequest
) -> None:
    # A new inventory needs a fixture here: each is loaded once, because pyinfra starts slowly.
    loaded: Loaded = request.getfixturevalue(path.stem)
    specs, problems = nodespec.read_all(loaded.data, local_files=False)
    assert report([*loaded.problems, *problems]) == []
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


def test_the_lab_says_so_when_it_was_never_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKWRIGHT_CACHE", str(tmp_path))
    with pytest.raises(InventoryProblems) as refused:
        load("inventories/lab.py")
    assert str(refused.value) == (
        "inventories/lab.py: lab: want the fingerprint of its mirror's key, "
        f"have no {tmp_path}/mirror/fingerprint; run `python -m lab up`"
    )


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


def test_pyinfra_can_print_an_inventory_with_our_transport_in_it(lab: Loaded) -> None:
    # load() reads what `pyinfra --json INVENTORY debug-inventory` prints.
    for data in lab.data.values():
        kwargs = data["ssh_paramiko_connect_kwargs"]
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


# --- python -m nodespec check --------------------------------------------------------------------

FIVE_KINDS = """
spare = ["gpu09", ["gpu10"]]
gpu_nodes = (
    [
        "gpu01",
        ("gpu02", {"mig_config": "all-3g.71gb"}),
        ("gpu03", {"ssh_hostname": "gpu01"}),
        ("GPU_04", {}),
        ("gpu05", {"nvidia_drvier_version": "595.71.05"}),
        ("gpu06", {"ssh_strict_host_key_checking": "no", "gpu_count": "x"}),
        "gpu01",
    ],
    {
        "ssh_strict_host_key_checking": "yes",
        "gpu_model": "A100-SXM4-40GB",
        "gpu_count": 2,
        "hca_count": 0,
        "nvidia_driver_version": "580.178.04",
        "kube_version": "1.36.3",
        "kube_api_server": "10.0.0.1:6443",
        "kube_kubeconfig": "/nonexistent",
    },
)
"""


def written(folder: Path, text: str) -> str:
    path = folder / "site.py"
    path.write_text(text)
    return str(path)


def test_a_good_inventory_is_described(
    lab: Loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nodespec.__main__.load", lambda path: lab)
    assert main(["check", "--no-files", "inventories/lab.py"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("gpu01: 2x A100-SXM4-40GB, MIG all-1g.5gb (mixed), 2x ConnectX-6, ")
    assert out[-1] == "inventories/lab.py: 2 hosts, no problems"


def test_all_kinds_of_problems_come_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, FIVE_KINDS)
    assert main(["check", path]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"{path}: 9 problems\n"
    lines = printed.out.splitlines()
    assert [line.partition(": want ")[0] for line in lines] == [
        "gpu01: group gpu_nodes",
        f"{path}: group spare",
        "GPU_04: kube_node_name",
        "gpu02: mig_config",
        "gpu05: nvidia_drvier_version",
        "gpu06: gpu_count",
        "gpu06: ssh_strict_host_key_checking",
        "gpu01, gpu02, gpu03 and 1 more (4 hosts): kube_kubeconfig",
        "gpu01, gpu03: ssh_hostname",
    ]


def test_an_inventory_that_does_not_run_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "import nosuchmodule\n")
    with pytest.raises(InventoryProblems) as refused:
        load(path)
    assert str(refused.value) == (
        f"{path}: inventory: want Python that runs, have ModuleNotFoundError: "
        f"No module named 'nosuchmodule' ({path}, line 1); correct it"
    )


def test_an_inventory_that_is_no_python_is_told_before_pyinfra_reads_it(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "gpu_nodes = ['a'\n"))
    with pytest.raises(InventoryProblems, match="have SyntaxError: '\\[' was never closed"):
        list(source(path))


# pyinfra 3.10.0, stderr of `pyinfra --json INVENTORY debug-inventory` with an object() in its data.
CANNOT_SERIALIZE = """\
--> Loading config...
--> Loading inventory...
--> Disconnecting from hosts...
--> An internal exception occurred:

  File "/site-packages/pyinfra_cli/util.py", line 131, in json_encode
    raise TypeError(f"Cannot serialize: {type(obj)} ({obj})")
TypeError: Cannot serialize: <class 'object'> (<object object at 0x7f133766d4f0>)

--> The full traceback has been written to pyinfra-debug.log
"""


def test_data_that_has_no_form_in_json_is_told() -> None:
    (line,) = report(said("site.py", CANNOT_SERIALIZE))
    assert line.startswith("site.py: inventory: want Python that runs, have TypeError: Cannot ser")
    assert line.endswith("keep to numbers, strings, lists, dicts, paths and plain functions")


def test_a_tuple_of_hosts_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu_nodes = ('gpu01', 'gpu02')\n")
    (line,) = report(source(Path(path)))
    assert line.startswith(f"{path}: group gpu_nodes: want a list of hosts, have a tuple, ")


def test_a_host_listed_twice_is_refused_though_pyinfra_takes_it(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu_nodes = [\n  'a',\n  ('b', {}),\n  ('a', {}),\n]\n")
    (line,) = report(source(Path(path)))
    assert line == (
        f"a: group gpu_nodes: want each host once, have 2 entries in lines 2, 4 of {path}; "
        "pyinfra makes one host of them: correct the copied line"
    )


def test_a_missing_file_is_not_taken_for_a_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "inventories/none.py"]) == 1
    assert capsys.readouterr().out == (
        "inventories/none.py: inventory: want a file, "
        "have none that can be read (No such file or directory); correct the path\n"
    )


def test_a_run_refuses_a_bad_inventory_before_any_command(tmp_path: Path) -> None:
    path = written(
        tmp_path, FIVE_KINDS.replace('"gpu0', '"@fake/gpu0').replace('"GPU', '"@fake/GPU')
    )
    deploy = tmp_path / "deploy.py"
    deploy.write_text(
        "from pyinfra import inventory\n"
        "from pyinfra.operations import server\n"
        "import nodespec\n"
        "nodespec.of_all(inventory)\n"
        "server.shell(name='change something', commands=['touch /changed'])\n"
    )
    command = [sys.executable, "-m", "pyinfra", "-y", "-vvv", path, str(deploy)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode != 0
    assert "5 problems in the inventory" in done.stderr
    assert "@fake/gpu02: mig_config: want " in done.stderr
    assert "touch /changed" not in done.stdout + done.stderr


def test_a_thousand_hosts_are_checked_in_time(tmp_path: Path) -> None:
    data = FIVE_KINDS.partition("    {\n")[2].rpartition("    },")[0]
    names = ", ".join(f'"gpu{number:04}"' for number in range(1000))
    path = written(tmp_path, f"gpu_nodes = ([{names}], {{\n{data}}})\n")
    began = os.times()
    assert main(["check", "--no-files", path]) == 0
    # Of the processor, ours and pyinfra's in its process: other work on the machine does not count.
    assert sum(os.times()[:4]) - sum(began[:4]) < 5
