"""The package mirror: what is packed, where it lies, and what apt is asked. No network."""

from __future__ import annotations

import hashlib
import http.client
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.mirror import deb, debian, debs, go, repositories, signing
from lab.mirror.deb import Deb, File
from lab.mirror.repositories import REPOSITORIES, Repository

TOOL = Deb(
    name="tool",
    version="1:2.0-1",
    description="A tool\nBuilt for the lab.\n\nAnd more.",
    files={
        "/usr/bin/tool": File(b"#!/bin/sh\n", 0o755),
        "/etc/tool.conf": File(b"on\n"),
    },
    relations={"Depends": "libc6 (>= 2.34)"},
    scripts={"postinst": "#!/bin/sh\nset -e\n"},
)


def test_control_file() -> None:
    assert TOOL.control(17) == (
        "Package: tool\n"
        "Version: 1:2.0-1\n"
        "Architecture: amd64\n"
        "Maintainer: Rackwright lab <lab@rackwright.invalid>\n"
        "Installed-Size: 17\n"
        "Depends: libc6 (>= 2.34)\n"
        "Section: admin\n"
        "Priority: optional\n"
        "Description: A tool\n"
        " Built for the lab.\n"
        " .\n"
        " And more.\n"
    )


def test_a_file_name_has_no_epoch() -> None:
    assert TOOL.file_name == "tool_2.0-1_amd64.deb"


def test_configuration_is_the_administrators() -> None:
    assert TOOL.conffiles() == "/etc/tool.conf\n"


def test_a_package_is_packed_once_for_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deb, "KEPT", tmp_path)
    packed = deb.pack(TOOL)
    first = packed.read_bytes()
    inode = packed.stat().st_ino
    assert deb.pack(TOOL).stat().st_ino == inode

    changed = Deb(TOOL.name, TOOL.version, TOOL.description, {"/usr/bin/tool": File(b"other")})
    assert deb.pack(changed).stat().st_ino != inode
    assert deb.pack(TOOL).read_bytes() == first  # the same bytes: apt notices any difference

    listing = subprocess.run(
        ["dpkg-deb", "--contents", packed], check=True, capture_output=True, text=True
    ).stdout
    assert any(
        line.startswith("-rwxr-xr-x root/root") and line.endswith("./usr/bin/tool")
        for line in listing.splitlines()
    )


@pytest.mark.parametrize("start", [True, False])
def test_unit_scripts_are_shell(start: bool) -> None:
    scripts = debs.unit_scripts("a.path", "a.service", start=start)
    for text in scripts.values():
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert ("deb-systemd-invoke $action a.path a.service" in scripts["postinst"]) is start
    assert 'enable "$unit"' in scripts["postinst"]


def test_kubelet_gets_what_kubeadm_writes() -> None:
    assert "ExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS" in debs.KUBEADM_DROP_IN
    assert "/var/lib/kubelet/kubeadm-flags.env" in debs.KUBEADM_DROP_IN


def test_dockers_package_leaves_the_cri_plugin_off() -> None:
    settings = [line for line in debs.CONTAINERD_CONFIG.splitlines() if not line.startswith("#")]
    assert settings == ['disabled_plugins = ["cri"]']  # and names no version


# --- Debian -------------------------------------------------------------------------------------

BASE = "http://archive.example/debian/"
URIS = """\
Reading package lists...
The following NEW packages will be installed:
  rdma-core libstdc++6
'http://archive.example/debian/pool/main/r/rdma-core/rdma-core_56.1-1_amd64.deb' \
rdma-core_56.1-1_amd64.deb 63852 SHA256:aa
'http://archive.example/debian/pool/main/c/conntrack-tools/conntrack_1.4.8-2_amd64.deb' \
conntrack_1%3a1.4.8-2_amd64.deb 35000 SHA256:bb
'http://archive.example/debian/pool/main/g/gcc-14/libstdc%2b%2b6_14.2.0-19_amd64.deb' \
libstdc++6_14.2.0-19_amd64.deb 714000 SHA256:cc
"""


def test_closure_is_what_apt_would_fetch() -> None:
    first, second, third = debian.closure(URIS, BASE)
    assert first == debian.Package(
        "pool/main/r/rdma-core/rdma-core_56.1-1_amd64.deb", "rdma-core_56.1-1_amd64.deb", 63852
    )
    assert second.file_name == "conntrack_1%3a1.4.8-2_amd64.deb"
    assert third.pool_path == "pool/main/g/gcc-14/libstdc++6_14.2.0-19_amd64.deb"


def test_packages_of_another_archive_are_refused() -> None:
    with pytest.raises(LabError, match="want packages from http://other/"):
        debian.closure(URIS, "http://other/")


def test_an_empty_closure_is_an_error() -> None:
    with pytest.raises(LabError, match="want packages to fetch, have none"):
        debian.closure("Reading package lists...\n", BASE)


# --- repositories -------------------------------------------------------------------------------


def test_layouts_are_the_vendors() -> None:
    where = {
        name: repository.source("http://m:1", "/k") for name, repository in REPOSITORIES.items()
    }
    option = "[signed-by=/k arch=amd64]"
    assert where == {
        "debian": f"deb {option} http://m:1/debian trixie main",
        "cuda": f"deb {option} http://m:1/cuda/repos/debian13/x86_64 ./",
        "libnvidia-container": (f"deb {option} http://m:1/libnvidia-container/stable/deb/amd64 ./"),
        "docker": f"deb {option} http://m:1/docker/linux/debian trixie stable",
        "kubernetes": f"deb {option} http://m:1/kubernetes/core:/stable:/v1.36/deb ./",
    }
    assert [path for repository in REPOSITORIES.values() for path in repository.key_paths] == [
        "cuda/repos/debian13/x86_64/3bf863cc.pub",
        "cuda/repos/debian13/x86_64/8793F200.pub",
        "libnvidia-container/gpgkey",
        "docker/linux/debian/gpg",
        "kubernetes/core:/stable:/v1.36/deb/Release.key",
    ]


def test_each_vendors_packages_have_a_repository() -> None:
    assert set(debs.VENDORS) < set(REPOSITORIES)


@pytest.mark.parametrize("suite", ["", "trixie"])
def test_indexes_are_signed_and_made_anew_only_when_packages_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str
) -> None:
    monkeypatch.setattr(deb, "KEPT", tmp_path / "debs")
    monkeypatch.setattr(repositories, "BUILD", tmp_path / "build")
    monkeypatch.setattr(repositories, "MIRROR", tmp_path / "web")
    monkeypatch.setattr(signing, "CACHE", tmp_path)
    monkeypatch.setattr(signing, "MIRROR", tmp_path / "web")
    monkeypatch.setattr(signing, "PUBLIC", tmp_path / "web/lab.asc")
    monkeypatch.setattr(signing, "FINGERPRINT", tmp_path / "web/fingerprint")
    monkeypatch.setattr(signing, "GNUPGHOME", tmp_path / "gnupg")
    (tmp_path / "build").mkdir()
    repository = Repository(
        path="vendor/deb",
        pool="pool",
        key_paths=("vendor/key.pub",),
        release={"Origin": "Vendor"},
        suite=suite,
        component="main" if suite else "",
    )
    signing.key()

    repositories.fill(repository, [deb.pack(TOOL)])
    assert repositories.index(repository)
    assert not repositories.index(repository)
    assert repositories.packages(repository) == ["tool=1:2.0-1"]

    release = (repository.release_dir / "Release").read_text()
    assert "Origin: Vendor\n" in release
    assert "in place of the vendor" in release
    keyring = tmp_path / "ring.gpg"
    subprocess.run(
        ["gpg", "--batch", "--dearmor", "-o", keyring, tmp_path / "web/vendor/key.pub"], check=True
    )
    for signed in (["InRelease"], ["Release.gpg", "Release"]):
        paths = [repository.release_dir / name for name in signed]
        subprocess.run(
            ["gpgv", "--keyring", keyring, *paths], check=True, stderr=subprocess.DEVNULL
        )

    # Made anew under the same version, as happens while the lab is being written.
    other = Deb(TOOL.name, TOOL.version, TOOL.description, {"/usr/bin/tool": File(b"x" * 5000)})
    packed = deb.pack(other)
    repositories.fill(repository, [packed])
    assert repositories.index(repository)
    checksum = hashlib.sha256(packed.read_bytes()).hexdigest()
    assert f"SHA256: {checksum}\n" in (repository.packages_dir / "Packages").read_text()

    repositories.fill(repository, [])
    assert repositories.index(repository)
    assert repositories.packages(repository) == []


def test_fingerprint_is_the_primary_keys() -> None:
    listing = (
        "sec:u:255:22:AAAA:1:::u:::scESC:::+::ed25519:::0:\nfpr:::::::::FIRST:\ngrp:::::::::G:"
    )
    assert signing.fingerprint(listing) == "FIRST"
    with pytest.raises(LabError, match="archive key: want one"):
        signing.fingerprint("")


def test_the_expired_key_is_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "CACHE", tmp_path)
    for name, path in {
        "MIRROR": "web", "PUBLIC": "web/lab.asc", "FINGERPRINT": "web/fingerprint",
        "GNUPGHOME": "gnupg",
    }.items():  # fmt: skip
        monkeypatch.setattr(signing, name, tmp_path / path)
    before = signing.key().read_text()
    expired = tmp_path / "expired.asc"
    expired.write_text(signing.expired())

    def shown(key: Path) -> list[str]:
        """Fields of the public key in gpg's listing."""
        listing = subprocess.run(
            ["gpg", "--homedir", tmp_path / "gnupg", "--batch", "--with-colons", "--show-keys",
             key], check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        assert signing.FINGERPRINT.read_text().strip() in listing
        return listing.splitlines()[0].split(":")

    made, expires = shown(expired)[5:7]
    # From its made-up moment on gpg's clock goes: a busy machine needs a second or two to sign.
    assert 1 <= int(expires) - int(made) <= 30
    assert shown(signing.PUBLIC)[5:7] == [made, ""]
    assert signing.key().read_text() == before


# --- Go modules ---------------------------------------------------------------------------------


def test_tools_are_read_from_go_mod() -> None:
    text = "module x\n\ntool (\n\texample/a/cmd/one // why\n\texample/b/v3\n)\n\ntool example/c\n"
    go_set = go.GoSet("1", "example", names={"example/b/v3": "two"})
    assert go.tools(text, go_set) == {
        "one": "example/a/cmd/one",
        "two": "example/b/v3",
        "c": "example/c",
    }


@pytest.mark.parametrize("set_name", go.SETS)
def test_sets_build_the_version_they_name(set_name: str) -> None:
    go_set = go.SETS[set_name]
    text = (go.SOURCES / set_name / "go.mod").read_text()
    required = [line.split()[:2] for line in text.splitlines() if line.startswith("\t")]
    assert [go_set.module, f"v{go_set.version}"] in required
    assert go.tools(text, go_set)
    assert (go.SOURCES / set_name / "go.sum").stat().st_size


def test_kubernetes_takes_all_its_parts_from_one_release() -> None:
    text = (go.SOURCES / "kubernetes/go.mod").read_text()
    minor_patch = go.SETS["kubernetes"].version.removeprefix("1.")
    parts = [line for line in text.splitlines() if "=> k8s.io/" in line]
    assert len(parts) >= 30
    assert all(line.endswith(f" v0.{minor_patch}") for line in parts)


def test_a_set_is_built_anew_when_its_flags_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = go.key("runc")
    monkeypatch.setitem(go.SETS, "runc", go.GoSet("1.5.2", "example", tags=("other",)))
    assert go.key("runc") != before


def test_a_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(go.LIBRARIES, "runc", ("no-such-library", "its-package-dev"))
    with pytest.raises(LabError, match=r"run: apt-get install .*its-package-dev"):
        go._check_library("runc")


# --- server -------------------------------------------------------------------------------------


def test_the_server_keeps_connections_and_stays_in_its_root(tmp_path: Path) -> None:
    (tmp_path / "root/core:").mkdir(parents=True)
    (tmp_path / "root/core:/a~b").write_text("content")
    (tmp_path / "secret").write_text("no")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(repositories.__file__).with_name("server.py")
    server = subprocess.Popen(
        [sys.executable, script, tmp_path / "root", "--port", str(port),
         "--for-client", tmp_path / "special"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        for _ in range(100):
            try:
                connection.connect()
                break
            except ConnectionRefusedError:
                assert server.poll() is None
                time.sleep(0.05)
        used = connection.sock
        for path in ("/core:/a~b", "/core%3A/a%7Eb"):
            connection.request("GET", path)
            assert connection.getresponse().read() == b"content"
        assert connection.sock is used
        connection.request("GET", "/../secret")
        assert connection.getresponse().status == 404

        # What is for another client, or for this one only.
        for address in ("127.0.0.1", "127.0.0.2"):
            (tmp_path / "special" / address / "core:").mkdir(parents=True)
        (tmp_path / "special/127.0.0.2/core:/a~b").write_text("for another")
        connection.request("GET", "/core:/a~b")
        assert connection.getresponse().read() == b"content"
        (tmp_path / "special/127.0.0.1/core:/a~b").write_text("for you")
        connection.request("GET", "/core:/a~b")
        assert connection.getresponse().read() == b"for you"
        connection.request("GET", "/core:/../../127.0.0.2/core:/a~b")
        assert connection.getresponse().status == 404
    finally:
        server.terminate()
        server.wait(5)
