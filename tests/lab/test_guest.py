"""The guests without starting one: what they are made from, and what the lab decides about them."""

from __future__ import annotations

import io
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

import lab.guest.accelerator
import lab.guest.identity
import lab.guest.machines
from lab import description, network, node_objects
from lab.description import Description
from lab.errors import LabError
from lab.guest import accelerator, faults, identity, image, ssh
from lab.guest.machines import Machine
from lab.mirror import repositories, signing


@pytest.fixture
def lab_description() -> Description:
    return description.load()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab_description: Description) -> Path:
    """The lab's keys in a folder of the test's own."""
    monkeypatch.setattr(lab.guest.identity, "STATE", tmp_path)
    monkeypatch.setattr(lab.guest.identity, "SSH_KEY", tmp_path / "ssh/id_ed25519")
    monkeypatch.setattr(lab.guest.identity, "KNOWN_HOSTS", tmp_path / "ssh/known_hosts")
    identity.make_keys(lab_description)
    (tmp_path / "lab.asc").write_text("a public key\n")
    return tmp_path


def members(keys: Path, name: str, lab_description: Description) -> dict[str, tarfile.TarInfo]:
    content = identity.archive(lab_description.node(name), lab_description, keys / "lab.asc")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: member for member in tar}


def test_known_hosts_names_every_guest_by_address_and_name(
    keys: Path, lab_description: Description
) -> None:
    for node in lab_description.nodes:
        for name in (node.name, str(node.address)):
            found = subprocess.run(
                ["ssh-keygen", "-F", name, "-f", keys / "ssh/known_hosts"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            public = identity.public_half(keys / f"nodes/{node.name}/ssh_host_ed25519_key")
            assert public.read_text().split()[1] in found


def test_keys_are_made_once(keys: Path, lab_description: Description) -> None:
    before = (keys / "ssh/known_hosts").read_text(), (keys / "ssh/id_ed25519").read_text()
    identity.make_keys(lab_description)
    after = (keys / "ssh/known_hosts").read_text(), (keys / "ssh/id_ed25519").read_text()
    assert after == before


def test_the_host_key_is_the_last_thing_a_guest_unpacks(
    keys: Path, lab_description: Description
) -> None:
    found = members(keys, "gpu01", lab_description)
    assert list(found)[-1] == "etc/ssh/ssh_host_ed25519_key"
    assert {"etc/hostname", "etc/hosts", "etc/simhw.conf"} < set(found)
    assert "etc/apt/keyrings/rackwright-lab.asc" in found


def test_private_files_are_private(keys: Path, lab_description: Description) -> None:
    found = members(keys, "gpu01", lab_description)
    assert found["etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    assert found["home/lab/.ssh"].mode == 0o700
    assert found["home/lab/.ssh/authorized_keys"].uid == image.USER_ID


def test_an_identity_is_reproducible_and_each_guests_own(
    keys: Path, lab_description: Description
) -> None:
    first, again, other = (
        identity.archive(lab_description.node(name), lab_description, keys / "lab.asc")
        for name in ("gpu01", "gpu01", "gpu02")
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("chosen", "kind"), [("tcg", "qemu"), ("kvm", "kvm")])
def test_the_domain_is_well_formed_and_of_the_chosen_kind(
    chosen: accelerator.Accelerator, kind: str, lab_description: Description
) -> None:
    node = lab_description.node("gpu02")
    domain = ET.fromstring(Machine(node, "rackwright").render(chosen, lab_description))
    assert domain.get("type") == kind
    assert domain.findtext("memory") == str(node.memory_mib)
    mac = domain.find("devices/interface/mac")
    assert mac is not None
    assert mac.get("address") == node.mac


def test_the_network_gives_each_guest_its_address(lab_description: Description) -> None:
    root = ET.fromstring(network.render(lab_description))
    leases = {host.get("mac"): host.get("ip") for host in root.iterfind("ip/dhcp/host")}
    assert leases == {node.mac: str(node.address) for node in lab_description.nodes}
    assert root.find("forward") is None  # isolated: guests reach the lab host and nothing else


def test_nothing_in_the_image_recipe_names_a_mirror() -> None:
    sources = [path.read_text() for path in image.files_below(image.GUEST_FILES)]
    assert not [text for text in sources if "deb.debian.org" in text or "https://" in text]


def test_accelerator_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerator.VARIABLE, "tcg")
    assert accelerator.choose(Path("/nonexistent"), Console(quiet=True)) == "tcg"
    monkeypatch.setenv(accelerator.VARIABLE, "xen")
    with pytest.raises(LabError, match="tcg, kvm or auto"):
        accelerator.choose(Path("/nonexistent"), Console(quiet=True))


def test_auto_falls_back_aloud_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Path] = []

    def broken(kernel: Path) -> str:
        trials.append(kernel)
        return "it hangs"

    monkeypatch.setenv(accelerator.VARIABLE, "auto")
    monkeypatch.setattr(lab.guest.accelerator, "TRIAL", tmp_path / "kvm.json")
    monkeypatch.setattr(lab.guest.accelerator, "kvm_problem", broken)
    for _ in range(2):
        console = Console(file=io.StringIO(), width=200)
        assert accelerator.choose(tmp_path / "vmlinuz", console) == "tcg"
        assert "it hangs" in console.file.getvalue()  # type: ignore[attr-defined]
    assert len(trials) == 1


def test_a_trial_that_worked_is_kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerator.VARIABLE, "auto")
    monkeypatch.setattr(lab.guest.accelerator, "TRIAL", tmp_path / "kvm.json")
    monkeypatch.setattr(lab.guest.accelerator, "kvm_problem", lambda kernel: None)
    for _ in range(2):
        assert accelerator.choose(tmp_path / "vmlinuz", Console(quiet=True)) == "kvm"


def test_ssh_checks_host_keys_strictly(lab_description: Description) -> None:
    argv = ssh.argv(lab_description.node("gpu01"))
    assert "-oStrictHostKeyChecking=yes" in argv
    assert argv[-1] == "lab@10.88.0.11"


@pytest.mark.parametrize("kind", sorted(faults.FAULTS))
@pytest.mark.parametrize("on", [True, False])
def test_scripts_of_faults_are_complete_shell(
    kind: str,
    on: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    lab_description: Description,
) -> None:
    """Every script parses and has no placeholder left."""
    scripts: list[str] = []

    def take(node: object, shell: str, *, stdin: str = "", timeout_s: float = 0) -> str:
        scripts.append(stdin)
        return ""

    monkeypatch.setattr(ssh, "command", take)
    monkeypatch.setattr(ssh, "set_clock", lambda node: None)
    monkeypatch.setattr(faults, "virsh", lambda *arguments: "")
    monkeypatch.setattr(signing, "expired", lambda: "an expired key\n")
    monkeypatch.setattr(repositories, "MIRROR_FOR_CLIENT", tmp_path)
    for method in ("state", "stop", "boot"):
        monkeypatch.setattr(Machine, method, lambda self: None)
    machine = Machine(lab_description.node("gpu01"), "rackwright")
    if (kind, on) == ("xid", False):
        with pytest.raises(LabError, match="reset gpu01"):
            faults.inject(kind, machine, lab_description, on=on)
        return
    faults.inject(kind, machine, lab_description, on=on)
    for script in scripts:
        for placeholder in ("{host}", "{nowhere}", "{api_port}", "{folder}", "{library}"):
            assert placeholder not in script
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_keys_expire_for_one_node_until_it_is_reset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lab_description: Description
) -> None:
    scripts: list[str] = []

    def take(node: object, shell: str, *, stdin: str = "", timeout_s: float = 0) -> str:
        scripts.append(stdin)
        return ""

    monkeypatch.setattr(signing, "expired", lambda: "an expired key\n")
    monkeypatch.setattr(repositories, "MIRROR_FOR_CLIENT", tmp_path)
    monkeypatch.setattr(ssh, "command", take)
    machine = Machine(lab_description.node("gpu02"), "rackwright")
    for _ in range(2):
        faults.inject("repository-key-expired", machine, lab_description, on=True)
    assert {path.name for path in tmp_path.iterdir()} == {str(machine.node.address)}
    keys = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.read_text() for path in keys} == {"an expired key\n"}
    assert "gpgkey" in {path.name for path in keys}

    # As in the guest: what the product has put there is replaced, the guest's own key is not.
    keyrings = tmp_path / "keyrings"
    keyrings.mkdir()
    for name in ("rackwright-cuda.asc", "rackwright-lab.asc", "other.asc"):
        (keyrings / name).write_text("in force\n")
    script = scripts[-1].replace("/etc/apt/keyrings", str(keyrings))
    script = script.replace(faults.FAULTS_FOLDER, str(tmp_path / "faults"))
    subprocess.run(["sh"], input=script, text=True, check=True)
    assert {path.name: path.read_text() for path in keyrings.iterdir()} == {
        "rackwright-cuda.asc": "an expired key\n",
        "rackwright-lab.asc": "in force\n",
        "other.asc": "in force\n",
    }

    monkeypatch.setattr(Machine, "state", lambda self: None)
    for _ in range(2):
        machine.undo_outside_faults()
        assert not (tmp_path / str(machine.node.address)).exists()


def test_an_unknown_fault_names_the_known_ones(lab_description: Description) -> None:
    machine = Machine(lab_description.node("gpu01"), "rackwright")
    with pytest.raises(LabError, match=r"gpu-missing.*'fire'"):
        faults.inject("fire", machine, lab_description, on=True)


def test_a_node_object_is_kept_without_what_the_api_sets() -> None:
    node = {
        "metadata": {
            "name": "gpu01",
            "uid": "1",
            "resourceVersion": "2",
            "labels": {"a": "b"},
            "managedFields": [],
        },
        "spec": {"podCIDR": "10.244.1.0/24", "configSource": {}},
        "status": {"conditions": []},
    }
    assert node_objects.reduced(node) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu01", "labels": {"a": "b"}},
        "spec": {"podCIDR": "10.244.1.0/24"},
    }
