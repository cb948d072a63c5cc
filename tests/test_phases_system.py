"""Phases base, ofed, nvidia_driver: fresh, converged, cut off, unreadable; each way to fail."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyinfra.api import FunctionCommand, StringCommand

from deploys.phases import base, nvidia_driver, ofed
from facts import readings
from facts.openpgp import dearmoured, fingerprints
from facts.snapshot import MARK
from operations import boot, node, repositories
from operations.report import RUN, Row
from tests.support.machine import (
    DRIVER,
    KERNEL,
    OTHER_KEY,
    Machine,
    Package,
    Port,
    bare,
    machine,
    spec,
)
from tests.support.simulated_node import SimulatedFile, SimulatedHost, Unreadable, run

NEWER = "6.12.99+deb13-amd64"


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node.Have, "node", None)
    nowhere = SimpleNamespace(ca_pem=b"PEM")
    monkeypatch.setattr(node.Cluster, "connect", lambda kubeconfig: nowhere)
    monkeypatch.setattr(RUN, "rows", {})
    monkeypatch.setattr(RUN, "folder", tmp_path)
    monkeypatch.setattr(boot, "RETRY_S", 0)
    answered = {"Files", *bare().facts}
    ours = tuple(fact for fact in readings.READINGS if fact.__name__ in answered)
    assert len(ours) == len(answered)
    monkeypatch.setattr(readings, "READINGS", ours)
    # Taking it costs a second per step; tests/test_node.py has it for real.
    monkeypatch.setattr(
        node.lock, "take", lambda: FunctionCommand(lambda state, host: True, (), {})
    )


@pytest.fixture
def converge(monkeypatch: pytest.MonkeyPatch):
    def go(host: SimulatedHost, *phases: ModuleType, **changes) -> Row:
        monkeypatch.setattr(node, "specs", lambda: {host.name: spec(**changes)})
        run([host], {}, lambda: node.converge(name="Converge", phases=list(phases)))
        return RUN.rows[host.name]

    return go


ALL = (base, ofed, nvidia_driver)


def changes(row: Row) -> list[str]:
    return [change.split(" | ")[1] for change in row.changes]


def test_fresh_host_gets_everything_in_order(converge):
    row = converge(bare(), *ALL)
    assert (row.state, row.problems) == ("done", [])
    assert row.changes == [
        "base | write the system's settings",
        "base | load the modules for containers",
        "base | set the kernel's parameters",
        "ofed | install the RDMA stack",
        "ofed | load the RDMA modules at boot",
        "ofed | load the RDMA modules",
        "nvidia_driver | add the cuda repository",
        "nvidia_driver | keep nouveau out",
        "nvidia_driver | install the driver",
        "nvidia_driver | take nouveau out of the initramfs",
        "nvidia_driver | load the driver",
        "nvidia_driver | turn persistence mode on",
    ]


def test_the_first_plan_names_what_is_to_come(converge):
    row = converge(bare(), *ALL, audit=True)
    assert row.state == "audited"
    assert {"nvidia_driver | load the driver", "nvidia_driver | turn persistence mode on"} <= set(
        row.planned
    )


def test_pyi_06_converged_host_plans_nothing_and_costs_one_command(converge):
    host = bare()
    converge(host, *ALL)
    host.log.clear()
    row = converge(host, *ALL)
    assert (row.state, row.planned) == ("done", [])
    assert len(host.log) == 1
    assert MARK in host.log[0]


@pytest.mark.parametrize("after", range(16))
def test_a_run_that_dies_anywhere_is_finished_by_the_next(converge, after):
    host = bare(swaps=["/dev/vda5"], fstab=["UUID=9d2e none swap sw 0 0"])
    host.cut_after = after
    converge(host, *ALL)
    host.cut_after = None
    row = converge(host, *ALL)
    assert (row.state, row.problems) == ("done", [])
    assert not converge(host, *ALL).planned
    assert machine(host).loaded == DRIVER


@pytest.mark.parametrize(
    ("phase", "fact"),
    [
        *((base, name) for name in ("Packages", "KernelModules", "Sysctls", "Swap")),
        *((ofed, name) for name in ("PciDevices", "Infiniband", "Packages", "Kernels")),
        *(
            (nvidia_driver, name)
            for name in ("OsRelease", "AptSources", "NvidiaDriver", "NvidiaModules", "Kernels")
        ),
    ],
)
def test_unreadable_is_not_absent(converge, phase, fact):
    host = bare()

    def unreadable(h: SimulatedHost) -> str:
        raise Unreadable(124)

    host.facts[fact] = unreadable
    row = converge(host, phase)
    assert row.state == "failed"
    assert host.changes == []
    assert fact in row.problems[0]
    assert "timed out" in row.problems[0]


def test_what_a_boot_brings_back_is_what_was_converged(converge):
    host = bare()
    converge(host, *ALL)
    machine(host).boot(host)
    assert not converge(host, *ALL).planned


# --- base --------------------------------------------------------------------------------------


def test_swap_goes_from_now_from_fstab_and_from_systemd(converge):
    root = "LABEL=root / ext4 defaults 0 1"
    host = bare(
        swaps=["/dev/zram0"], fstab=[root, "UUID=9d2e none swap sw 0 0"],
        swap_units={"dev-zram0.swap": "loaded"},
    )  # fmt: skip
    assert converge(host, base).state == "done"
    state = machine(host)
    assert state.swaps == []
    assert state.fstab == [root, "# rackwright: UUID=9d2e none swap sw 0 0"]
    assert state.swap_units == {"dev-zram0.swap": "masked"}


def test_kad_04_what_containers_need_of_the_kernel_is_there_again_after_a_boot(converge):
    host = bare()
    converge(host, base)
    machine(host).boot(host)
    assert {"overlay", "br_netfilter"} <= machine(host).modules.keys()
    for name, value in base.SYSCTLS.items():
        assert machine(host).sysctls[name.replace(".", "/")] == value


def test_pyi_11_an_interrupted_dpkg_is_repaired(converge):
    host = bare(packages={"jq": Package("1.7-1", status="half-configured")}, interrupted=True)
    row = converge(host, base)
    assert row.state == "done"
    assert changes(row)[0] == "repair dpkg"
    assert machine(host).packages["jq"].status == "installed"


def test_drv_04_a_driver_left_half_configured_is_left_to_its_own_phase(converge):
    broken = {"nvidia-kernel-open-dkms": Package(f"{DRIVER}-1+sim1", status="half-configured")}
    host = bare(packages=broken, headers=set())
    assert "repair dpkg" not in changes(converge(host, base))
    row = converge(host, base, nvidia_driver)
    assert row.state == "done"
    assert machine(host).on_disk[KERNEL][0] == DRIVER


def test_kad_04_bridge_parameters_come_after_their_module(converge):
    row = converge(bare(), base)
    assert changes(row).index("load the modules for containers") < changes(row).index(
        "set the kernel's parameters"
    )


def test_drv_05_a_file_that_clears_the_list_of_protected_packages_is_named(converge):
    host = bare()
    converge(host, base)
    host.facts["UnattendedUpgrades"] = lambda h: "## end"
    row = converge(host, base)
    assert "clears Unattended-Upgrade::Package-Blacklist" in row.problems[0]


def test_kad_04_a_parameter_that_another_file_sets_back_is_named(converge):
    host = bare()
    converge(host, base)
    machine(host).sysctls["net/ipv4/ip_forward"] = "0"
    host.on("^sysctl -q -p ", lambda h, m, s: True)
    (problem,) = converge(host, base).problems
    assert problem == (
        "base: want net.ipv4.ip_forward = 1, have 0 after: set the kernel's parameters; "
        "run `sysctl --system` on the host: a file read later sets another value"
    )


def test_proxy_comes_and_goes(converge):
    host = bare()
    converge(host, base, http_proxy="http://u:secret@proxy.test:3128", no_proxy=["mirror.test"])
    file = host.files[base.PROXY]
    assert 'Acquire::http::Proxy "http://u:secret@proxy.test:3128";' in file.text
    assert 'Acquire::http::Proxy::mirror.test "DIRECT";' in file.text
    assert file.mode == "0600"
    assert not any("secret" in line for line in host.log)
    assert converge(host, base).changes == ["base | take apt's proxy back"]
    assert base.PROXY not in host.files


def test_a_host_of_an_ipv6_site_is_as_kubeadm_wants_it(converge):
    host = bare()
    converge(host, base, kube_api_server="[fd00::1]:6443")
    assert machine(host).sysctls["net/ipv6/conf/default/forwarding"] == "1"
    assert converge(host, base, kube_api_server="[fd00::1]:6443").changes == []
    other = bare()
    converge(other, base)
    assert machine(other).sysctls["net/ipv6/conf/default/forwarding"] == "0"


def test_private_ca_is_in_the_bundle_also_after_a_run_that_died_before(converge, tmp_path):
    (tmp_path / "site ca.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----"
    )
    host = bare()
    converge(host, base, ca_certificates=[tmp_path / "site ca.pem"])
    assert "/usr/local/share/ca-certificates/rackwright-site-ca.crt" in host.files
    host.files["/etc/ssl/certs/ca-certificates.crt"].changed_at_s = 0
    row = converge(host, base, ca_certificates=[tmp_path / "site ca.pem"])
    assert row.changes == ["base | trust the private certificate authorities"]
    assert not converge(host, base, ca_certificates=[tmp_path / "site ca.pem"]).planned


# --- ofed --------------------------------------------------------------------------------------


def test_no_hcas_no_rdma_stack(converge):
    row = converge(bare(hcas=[]), ofed, hca_count=0, hca_model=None, hca_rate_gbps=None)
    assert (row.state, row.planned) == ("done", [])


def test_ofd_11_ethernet_where_infiniband_is_asked_names_the_hca_and_the_way_out(converge):
    row = converge(bare(port=Port(link_layer="Ethernet")), ofed)
    assert row.state == "failed"
    assert row.problems[0].splitlines()[0] == (
        "rdma: want link layer infiniband on mlx5_0 port 1 (0001:51:00.0), have ethernet; "
        "run `mstconfig -d 0001:51:00.0 set LINK_TYPE_P1=1`, then reboot"
    )


def test_a_port_below_its_rate_is_named(converge):
    row = converge(bare(port=Port(rate="100 Gb/sec (2X HDR)")), ofed)
    assert "want 200 Gbit/s on mlx5_0 port 1 (0001:51:00.0), have 100 Gbit/s" in row.problems[0]


def test_a_port_in_init_says_that_no_subnet_manager_has_spoken(converge):
    host = bare(port=Port(state="2: INIT"))
    row = converge(host, ofed)
    assert row.state == "failed"
    assert "mlx5_0 port 1 (0001:51:00.0) active" in row.problems[0]
    assert "INIT (LinkUp, no subnet manager has spoken)" in row.problems[0]
    assert "start a subnet manager" in row.problems[0]


def test_a_port_that_goes_down_on_a_converged_host_is_refused_without_a_change(converge):
    host = bare()
    converge(host, ofed)
    machine(host).port = Port(state="1: DOWN", phys_state="2: Polling")
    host.now_s += 4 * ofed.SETTLE_S
    host.log.clear()
    row = converge(host, ofed)
    assert row.state == "failed"
    assert host.changes == []
    assert "have DOWN (Polling)" in row.problems[0]


@pytest.mark.parametrize(
    "port",
    [
        Port(state="1: DOWN", phys_state="2: Polling"),
        Port(rate="100 Gb/sec (2X HDR)"),
        Port(link_layer="Ethernet"),
    ],
    ids=["down", "too slow", "of another kind"],
)
def test_where_rdma_is_not_required_a_port_is_told_and_holds_nothing_up(converge, caplog, port):
    host = bare(port=port)
    caplog.set_level("WARNING", "pyinfra")
    row = converge(host, ofed, rdma_required=False)
    assert (row.state, row.problems) == ("done", [])
    assert "load the RDMA modules" in changes(row)
    assert "] not required, and not there: rdma: want " in caplog.text
    host.now_s += 4 * ofed.SETTLE_S
    assert converge(host, ofed, rdma_required=False).planned == []


@pytest.mark.parametrize("killed", [False, True])
def test_ports_get_a_moment_after_their_modules_were_loaded(converge, killed):
    host = bare(port=Port(state="2: INIT"))

    def wait(h, match, stdin):
        machine(h).port = Port()
        return True

    if killed:
        host.cut_after = 3
        converge(host, ofed)
        assert host.changes[-1].startswith("udevadm settle -t 30; n=0")
        host.cut_after = None
    host.on("^udevadm settle -t 30; n=0", wait)
    row = converge(host, ofed)
    assert row.state == "done"
    assert changes(row)[-1] == "wait for the RDMA ports"


def test_ofd_08_a_roce_host_gets_umad_too(converge):
    host = bare(port=Port(link_layer="Ethernet"))
    assert converge(host, ofed, hca_link_layer="ethernet").state == "done"
    assert "ib_umad" in machine(host).modules
    assert "ib_ipoib" not in machine(host).modules


@pytest.mark.parametrize(
    ("asked", "kernel", "peer_memory", "problem"),
    [
        ("peermem", KERNEL, False, "without the peer-memory API"),
        ("auto", "5.10.0-30-amd64", False, "DMA-BUF needs 5.12"),
        ("dmabuf", "5.10.0-30-amd64", True, "DMA-BUF needs 5.12"),
    ],
    ids=["OFD-02 peermem", "OFD-05 whatever does", "OFD-05 dmabuf"],
)
def test_a_way_to_gpu_memory_that_is_not_there_is_refused(
    converge, asked, kernel, peer_memory, problem
):
    host = bare(
        kernels=[kernel], running=kernel, next_boot=kernel, headers={kernel}, initramfs={},
        peer_memory=peer_memory,
    )  # fmt: skip
    row = converge(host, ofed, gpudirect=asked)
    assert host.changes == []
    assert problem in row.problems[0]


# --- nvidia_driver -----------------------------------------------------------------------------


def test_drv_18_a_driver_of_the_run_installer_is_refused(converge):
    host = bare()
    host.files[nvidia_driver.UNINSTALLER] = SimulatedFile("x\n", "0755")
    row = converge(host, nvidia_driver)
    assert host.changes == []
    assert ".run installer" in row.problems[0]


def test_another_key_is_not_trusted(converge, caplog):
    host = bare(offered_key=OTHER_KEY)
    row = converge(host, nvidia_driver)
    assert row.state == "failed"
    assert "/etc/apt/keyrings/rackwright-cuda.asc" not in host.files
    assert machine(host).packages == {}


@pytest.mark.parametrize(
    ("said", "code", "remedy"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "find what has changed"),
        ("Unable to determine the device handle for GPU 0: GPU is lost", 15, "a card that is lost"),
        ("Failed to initialize NVML: Unknown Error", 255, "run `nvidia-smi` on the host"),
        ("No devices were found", 6, "power off and on again, not another driver"),
    ],
    ids=["DRV-05 mismatch", "DRV-17 lost", "unknown", "DRV-14 no GPU has started"],
)
def test_a_library_that_does_not_talk_to_the_driver_is_told_with_what_to_do(
    converge, said, code, remedy
):
    host = bare()
    assert converge(host, nvidia_driver).state == "done"
    host.facts["Gpus"] = lambda h: f"## query\n{said}\n## rc\n{code}"
    host.log.clear()
    row = converge(host, nvidia_driver)
    (problem,) = row.problems
    assert said in problem
    assert remedy in problem
    assert host.changes == []


EXPIRED, RENEWED = (OTHER_KEY.parent / f"{name}.asc" for name in ("expired", "renewed"))
CUDA_KEYRING = "/etc/apt/keyrings/rackwright-cuda.asc"


@pytest.mark.parametrize("offered", [EXPIRED, RENEWED])
@pytest.mark.parametrize("work", [True, False])
def test_a_key_that_has_expired_is_fetched_anew_when_apt_needs_it(
    converge, monkeypatch, offered, work
):
    """If the vendor has renewed it; if not, or if there is nothing to fetch, nothing changes."""
    host = bare(offered_key=EXPIRED)
    fingerprint = {"cuda_repository_fingerprint": fingerprints(EXPIRED.read_bytes())[0]}
    assert converge(host, nvidia_driver, **fingerprint).state == "done"
    machine(host).offered_key = offered
    if work:
        del machine(host).packages["nvidia-modprobe"]
    host.log.clear()
    row = converge(host, nvidia_driver, **fingerprint)
    assert row.state == "done", row.problems
    assert any("apt-helper" in line for line in host.log) is work
    keyring = host.files[CUDA_KEYRING].text.encode()
    renewed = work and offered == RENEWED
    assert dearmoured(keyring) == dearmoured((RENEWED if renewed else EXPIRED).read_bytes())


@pytest.mark.parametrize(
    ("pattern", "said", "told"),
    [
        (
            "apt-helper", "E: Failed to fetch http://m/key  Could not resolve 'm'",
            "have no address for m; mend the host's name resolution",
        ),
        (
            "apt-helper", "E: Failed to fetch http://m/key  404  Not Found [IP: 10.0.0.1 80]",
            "have 404  Not Found for http://m/key; look at that repository",
        ),
        ("apt-helper", "E: The disk is on fire", "have The disk is on fire; check the address"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_had_is_told_with_its_reason(converge, pattern, said, told):
    host = bare()
    host.on(pattern, lambda h, m, s: (False, said))
    (problem,) = converge(host, nvidia_driver).problems
    assert told in problem


def test_a_key_that_cannot_be_kept_is_told_with_its_reason(converge, monkeypatch):
    host = bare()
    monkeypatch.setattr(repositories, "put", lambda path, text: StringCommand("keep the key"))
    host.on("^keep the key$", lambda h, m, s: (False, "mktemp: No space left on device"))
    (problem,) = converge(host, nvidia_driver).problems
    assert problem == (
        "cuda repository: want its key in /etc/apt/keyrings/rackwright-cuda.asc, have no space "
        "left on a disk; make room (`df -h`, `df -i` on the host), then run again"
    )


def test_another_key_is_no_renewal(converge):
    host = bare(offered_key=EXPIRED)
    fingerprint = {"cuda_repository_fingerprint": fingerprints(EXPIRED.read_bytes())[0]}
    assert converge(host, nvidia_driver, **fingerprint).state == "done"
    machine(host).offered_key = OTHER_KEY
    del machine(host).packages["nvidia-modprobe"]
    converge(host, nvidia_driver, **fingerprint)
    assert dearmoured(host.files[CUDA_KEYRING].text.encode()) == dearmoured(EXPIRED.read_bytes())


def test_rep_02_the_same_repository_from_elsewhere_is_set_aside(converge):
    url = "http://mirror.test/cuda/repos/debian13/x86_64"
    old = {"/etc/apt/sources.list.d/cuda.list": f"deb [signed-by=/x.gpg] {url}/ ./"}
    host = bare(sources=old)
    assert converge(host, nvidia_driver).state == "done"
    assert machine(host).sources == {}


def test_rep_02_a_file_with_other_repositories_too_is_not_renamed(converge):
    url = "http://mirror.test/cuda/repos/debian13/x86_64"
    lines = f"deb {url} /\ndeb http://deb.debian.org/debian trixie main"
    host = bare(sources={"/etc/apt/sources.list": lines})
    row = converge(host, nvidia_driver)
    assert host.changes == []
    assert "/etc/apt/sources.list" in row.problems[0]


DEBIAN = "http://deb.test/debian"
OURS = "/etc/apt/sources.list.d/rackwright-debian.sources"


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ("deb {url} trixie main non-free-firmware", "main non-free-firmware"),
        ("deb {url}/ trixie contrib # x\ndeb [arch=amd64] {url} trixie main", "main contrib"),
        ("deb {url} trixie main", "main"),
        (None, "main"),
    ],
)
def test_rep_02_components_of_a_source_that_is_set_aside_stay_available(converge, there, kept):
    path = "/etc/apt/sources.list"
    host = bare(sources={path: there.format(url=DEBIAN)} if there else {})
    assert converge(host, base, debian_repository_url=DEBIAN).state == "done"
    assert machine(host).sources == {}
    assert f"\nComponents: {kept}\n" in host.files[OURS].text
    assert not converge(host, base, debian_repository_url=DEBIAN).planned


@pytest.mark.parametrize("after", range(4))
def test_rep_02_components_outlive_a_run_that_dies_anywhere(converge, after):
    host = bare(sources={"/etc/apt/sources.list": f"deb {DEBIAN} trixie main contrib"})
    host.cut_after = after
    converge(host, base, debian_repository_url=DEBIAN)
    host.cut_after = None
    assert converge(host, base, debian_repository_url=DEBIAN).state == "done"
    assert machine(host).sources == {}
    assert "\nComponents: main contrib\n" in host.files[OURS].text


kubernetes_repository: Any = SimpleNamespace(
    __name__="deploys.phases.kubernetes_repository",
    files=lambda spec: repositories.files("kubernetes"),
    plan=lambda spec, have: repositories.present("kubernetes", spec, have),
)


def test_rep_04_the_repository_that_pkgs_k8s_io_has_replaced_is_set_aside(converge):
    old = {
        "/etc/apt/sources.list.d/kubernetes.list": "deb https://apt.kubernetes.io/ "
        "kubernetes-xenial main\ndeb https://packages.cloud.google.com/apt kubernetes-xenial main",
        "/etc/apt/sources.list.d/gcloud.list": "deb https://packages.cloud.google.com/apt "
        "cloud-sdk main",
        "/etc/apt/sources.list.d/next.list": "deb https://pkgs.k8s.io/core:/stable:/v1.37/deb/ /",
    }
    host = bare(sources=old)
    row = converge(host, kubernetes_repository)
    assert row.changes == ["kubernetes_repository | add the kubernetes repository"]
    assert machine(host).sources.keys() == old.keys() - {"/etc/apt/sources.list.d/kubernetes.list"}
    assert not converge(host, kubernetes_repository).planned


OF_A_MINOR = "http://mirror.test/v{minor}/deb/"


def test_rep_04_the_repository_is_that_of_the_minor_version(converge):
    host = bare()
    assert converge(host, kubernetes_repository, kubernetes_repository_url=OF_A_MINOR).changes
    text = host.files["/etc/apt/sources.list.d/rackwright-kubernetes.sources"].text
    assert "URIs: http://mirror.test/v1.36/deb/\nSuites: /\n" in text


def test_rep_06_a_key_is_fetched_the_way_that_apt_goes(converge):
    """By the host, through apt's own proxy: that is set before any repository is added."""
    host = bare()
    row = converge(host, base, nvidia_driver, http_proxy="http://proxy.test:3128")
    assert row.state == "done"
    # apt-helper goes apt's way, curl and gpg would not.
    (fetched,) = [n for n, line in enumerate(host.log) if "apt-helper" in line]
    (proxied,) = [n for n, line in enumerate(host.log) if f"p={base.PROXY} " in line]
    assert proxied < fetched


def test_rep_01_a_rotated_key_replaces_the_old_one(converge):
    host = bare()
    keyring = "/etc/apt/keyrings/rackwright-cuda.asc"
    host.files[keyring] = SimulatedFile(OTHER_KEY.read_text())
    assert converge(host, nvidia_driver).state == "done"
    assert host.files[keyring].text != OTHER_KEY.read_text()


def test_drv_01_headers_of_the_running_and_of_the_next_kernel_come_first(converge):
    host = bare(
        kernels=[KERNEL, NEWER], next_boot=NEWER, headers=set(), initramfs={KERNEL: 5, NEWER: 5}
    )
    assert converge(host, nvidia_driver).state == "done"
    assert machine(host).headers == {KERNEL, NEWER}
    assert {version for version, _ in machine(host).on_disk.values()} == {DRIVER}


def test_drv_01_a_module_that_dkms_left_out_is_built(converge):
    host = bare(kernels=[KERNEL, NEWER], next_boot=NEWER, headers={KERNEL, NEWER}, initramfs={})
    converge(host, nvidia_driver)
    del machine(host).on_disk[NEWER], machine(host).dkms[DRIVER][NEWER]
    row = converge(host, nvidia_driver)
    assert row.state == "done"
    assert changes(row) == ["build the modules"]


def test_drv_03_a_build_that_fails_ends_the_run_and_loads_nothing(converge):
    host = bare(dkms_fails=True)
    row = converge(host, nvidia_driver)
    assert row.state == "failed"
    assert machine(host).loaded is None
    machine(host).dkms_fails = False
    assert converge(host, nvidia_driver).state == "done"


def test_drv_05_a_loaded_module_of_another_version_asks_for_a_reboot(converge):
    host = bare()
    converge(host, nvidia_driver, nvidia_driver_version="580.159.03")
    assert machine(host).loaded == "580.159.03"
    row = converge(host, nvidia_driver)
    assert row.state == "done"
    assert "reboot into the new driver" in changes(row)
    assert (machine(host).loaded, machine(host).library, host.boot) == (DRIVER, DRIVER, 2)
    assert "nvidia-driver-pinning-580.159.03" not in machine(host).packages


def test_pyi_06_a_reboot_that_is_owed_is_found_by_the_next_run(converge):
    host = bare()
    converge(host, nvidia_driver, nvidia_driver_version="580.159.03")
    # The packages were there, and then the operator's machine lost power.
    machine(host).install_driver(DRIVER)
    assert (machine(host).loaded, machine(host).library) == ("580.159.03", DRIVER)
    assert "reboot into the new driver" in changes(converge(host, nvidia_driver))


def test_drv_06_packages_of_two_versions_become_one(converge):
    host = bare()
    converge(host, nvidia_driver)
    machine(host).archive["libnvidia-cfg1"] = ["580.159.03-1+sim1", f"{DRIVER}-1+sim1"]
    machine(host).packages["libnvidia-cfg1"] = Package("580.159.03-1+sim1")
    row = converge(host, nvidia_driver)
    assert row.state == "done"
    assert machine(host).packages["libnvidia-cfg1"] == Package(f"{DRIVER}-1+sim1", held=True)


def test_drv_05_every_package_of_the_driver_is_held(converge):
    host = bare()
    converge(host, nvidia_driver)
    machine(host).packages["nvidia-firmware"] = Package(f"{DRIVER}-1+sim1")
    assert changes(converge(host, nvidia_driver)) == ["hold the rest of the driver"]
    assert machine(host).packages["nvidia-firmware"].held


def test_nouveau_on_the_gpus_leaves_with_a_reboot_after_the_initramfs(converge):
    host = bare(modules={"nouveau": 2}, gpu_driver="nouveau", nouveau_in_initramfs=True)
    row = converge(host, nvidia_driver)
    assert row.state == "done"
    done = changes(row)
    assert done.index("take nouveau out of the initramfs") < done.index("reboot without nouveau")
    assert machine(host).loaded == DRIVER


def test_nouveau_without_a_gpu_is_unloaded(converge):
    host = bare(modules={"nouveau": 0})
    row = converge(host, nvidia_driver)
    assert "unload nouveau" in changes(row)
    assert host.boot == 1


def test_an_initramfs_is_looked_at_once(converge):
    host = bare()
    converge(host, nvidia_driver)
    assert machine(host).initramfs == {KERNEL: 500}
    assert not converge(host, nvidia_driver).planned


def test_drv_16_persistence_mode_is_on_and_not_only_its_daemon_running(converge):
    unit = {
        "ActiveState": "active", "UnitFileState": "static",
        "argv": "/usr/bin/nvidia-persistenced --user x --no-persistence-mode --verbose",
    }  # fmt: skip
    host = bare(persistenced=unit)
    assert converge(host, nvidia_driver).state == "done"
    assert machine(host).persistence_mode
    assert "ExecStart=/usr/bin/nvidia-persistenced --user x --verbose --persistence-mode\n" in (
        host.files[nvidia_driver.DROP_IN].text
    )
    assert not converge(host, nvidia_driver).planned


def test_drv_16_a_daemon_that_does_not_start_fails_with_its_own_words(converge):
    host = bare()
    said = "Failed to find user ID of user 'nvidia-persistenced': No such process"
    host.on("systemctl enable --no-reload nvidia-pers", lambda h, m, s: (False, said))
    (problem,) = converge(host, nvidia_driver).problems
    assert problem == (
        "nvidia_driver: want nvidia-persistenced enabled, running, mode on, "
        f"have {said}; read `journalctl -u nvidia-persistenced`"
    )


def test_drv_16_without_gpus_there_is_no_daemon_to_start(converge):
    host = bare(gpus=[])
    asked = {"gpu_count": 0, "gpu_model": None}
    assert converge(host, nvidia_driver, **asked).planned == []


def test_dpl_01_a_library_in_another_place_is_named(converge):
    """Container toolkit and device plugin would not find it either."""
    host = bare()
    assert converge(host, nvidia_driver).state == "done"
    machine(host).library = None
    (problem,) = converge(host, nvidia_driver).problems
    assert problem.startswith(f"nvidia driver: want libnvidia-ml {DRIVER}, have none; ")


def test_drv_17_a_gpu_that_fell_off_the_bus_is_named(converge):
    host = bare()
    converge(host, nvidia_driver)
    machine(host).lost_gpus = {"0001:42:00.0"}
    host.log.clear()
    row = converge(host, nvidia_driver)
    assert host.changes == []
    assert "want 2 GPUs driven, have 1, without 0001:42:00.0" in row.problems[0]


def test_peermem_is_loaded_now_and_at_boot_where_the_kernel_has_the_api(converge):
    host = bare(peer_memory=True)
    assert converge(host, ofed, nvidia_driver, gpudirect="peermem").state == "done"
    assert "nvidia_peermem" in machine(host).modules
    assert "nvidia_peermem" in host.files[nvidia_driver.MODULES_LOAD].text


def test_peermem_is_left_out_where_dmabuf_does(converge):
    host = bare(peer_memory=True)
    converge(host, ofed, nvidia_driver)
    assert "nvidia_peermem" not in machine(host).modules


def test_a_driver_in_use_is_not_replaced_on_a_node_in_service(converge, monkeypatch):
    host = bare()
    converge(host, nvidia_driver, nvidia_driver_version="580.159.03")
    serving = SimpleNamespace(
        closed=False, unschedulable=False, open=True, name="gpu01", conditions={}, allocatable={}
    )
    monkeypatch.setattr(node.Have, "node", serving)
    monkeypatch.setattr(node.Have, "pods", [])
    host.log.clear()
    row = converge(host, nvidia_driver)
    assert host.changes == []
    assert "nvidia_driver | install the driver" in row.problems[0]


def test_a_simulated_machine_starts_bare():
    assert Machine().loaded is None
