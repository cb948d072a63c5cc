"""Runs that do not end: the next one converges, and no node is open without having passed.

Each starts from two open nodes, of which one was closed and lacks something.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.guest.lab import Done, Lab, at_work, say

pytestmark = [pytest.mark.guest, pytest.mark.long]

RDMA_PACKAGES = (
    "dpkg --purge --force-depends infiniband-diags ibverbs-utils ibverbs-providers && "
    "rm -f /var/lib/rackwright/apt-updated"
)
NO_DRIVER_SOURCE = (
    "dkms remove nvidia/580.178.04 --all >/dev/null; "
    "dpkg --purge --force-depends nvidia-kernel-open-dkms"
)
# As in test_4_faults: only a boot mends it.
OTHER_DRIVER = (
    "sed 's/580.178.04/580.159.03/' /proc/driver/nvidia/version >/run/other-driver && "
    "mount --bind /run/other-driver /proc/driver/nvidia/version"
)
NO_MIG = (
    "for i in 0 1; do nvidia-smi mig -i $i -dci; nvidia-smi mig -i $i -dgi; "
    "nvidia-smi -i $i -mig 0; done"
)


# An initramfs that has nouveau in it and is older than the file that keeps it out. The archive in
# front is what an early one is, with processors' microcode: the kernel unpacks both.
NOUVEAU_IN_INITRAMFS = """
set -e
image=$(readlink -f /boot/initrd.img-$(uname -r))
folder=$(mktemp -d)
mkdir $folder/lab
touch $folder/lab/nouveau.ko
(cd $folder && find . | cpio --quiet -o -H newc) >$image.early
cat $image >>$image.early
mv $image.early $image
touch -d '2 years ago' $image
rm -rf $folder /var/lib/rackwright/initramfs-without-nouveau
lsinitramfs $image >/run/rackwright-test-listed
grep -q /nouveau.ko /run/rackwright-test-listed
"""
WITHOUT_NOUVEAU = """
lsinitramfs /boot/initrd.img-$(uname -r) >/run/rackwright-test-listed &&
grep -q /virtio_blk.ko /run/rackwright-test-listed && ! grep nouveau /run/rackwright-test-listed
"""
UNPACKING = at_work("dpkg .*--(unpack|configure)")
OUT_OF_THE_CLUSTER = "kubeadm reset -f >/dev/null 2>&1"


@dataclass(frozen=True)
class Case:
    name: str
    node: str
    work: str
    after: str
    """Pattern of the line of the run after which it is killed."""
    delay_s: float = 0
    until: str = ""
    """Shell condition that holds in the guest when the run dies."""
    proof: str = ""
    """Shell that must succeed in the guest after the next run."""


# An operator's machine that is gone is the same to a host as a run that is killed; one that is cut
# off from the host is a test of its own.
CASES = [
    Case("dpkg", "gpu02", RDMA_PACKAGES, r"gpu02.*ofed \| install the RDMA stack: want",
         until=UNPACKING),
    Case("initramfs", "gpu02", NOUVEAU_IN_INITRAMFS,
         r"gpu02.*nvidia_driver \| take nouveau out of the initramfs: want",
         until=at_work("update-initramfs|mkinitramfs"), proof=WITHOUT_NOUVEAU),
    # Half a join: the kubelet has a token and no certificate, and the token is in the cluster.
    Case("join", "gpu02", OUT_OF_THE_CLUSTER, r"gpu02.*kubernetes \| join the cluster: want",
         until="[ -e /etc/kubernetes/bootstrap-kubelet.conf ]"),
    Case("admission", "gpu02", "true", r"gpu02.*running a pod", 4),
    Case("mig", "gpu01", NO_MIG, r"gpu01.*mig \| apply the MIG layout: want",
         until=at_work("mig-apply")),
    Case("reboot", "gpu02", OTHER_DRIVER, r"gpu02.*rebooting: ", 5),
    Case("dkms", "gpu02", NO_DRIVER_SOURCE, r"gpu02.*nvidia_driver \| install the driver: want",
         until=at_work("make|cc1")),
]  # fmt: skip


@pytest.fixture
def prepared(lab: Lab) -> Callable[[str, str], None]:
    """Both nodes as they were when they were opened; then one is closed and lacks something."""

    def prepare(node: str, work: str) -> None:
        lab.to_open()
        lab.close(node)
        lab.ssh(node, work)

    return prepare


def taken_up(lab: Lab, node: str) -> Done:
    """The next run, after one that died: all is well, and the node was closed until then."""
    assert not lab.serves(node)
    done = lab.run()
    assert done.code == 0, done.output[-4000:]
    assert {name: row["state"] for name, row in done.nodes.items()} == {
        "gpu01": "open",
        "gpu02": "open",
    }
    assert lab.verdict(node).open
    broken = lab.ssh(node, "dpkg --audit; ls /var/lib/dpkg/updates")
    assert not broken.strip(), broken
    assert lab.bootstrap_tokens() == []
    return done


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_run_is_taken_up_by_the_next(
    lab: Lab, prepared: Callable[[str, str], None], case: Case
) -> None:
    prepared(case.node, case.work)
    if case.work == OUT_OF_THE_CLUSTER:
        lab.kubernetes().delete_node(case.node)
    boot_id = lab.boot_id(case.node)
    lab.killed(case.after, delay_s=case.delay_s, node=case.node, until=case.until)
    if case.name == "reboot":
        lab.wait_back(case.node, boot_id)
    done = taken_up(lab, case.node)
    if case.proof:
        lab.ssh(case.node, case.proof)
    say(f"{case.name}: {done.seconds:.0f} s, {done.nodes[case.node]['changes']}")


def test_a_connection_that_is_cut_fails_its_node_alone_and_the_next_run_goes_on(
    lab: Lab, prepared: Callable[[str, str], None]
) -> None:
    prepared("gpu02", RDMA_PACKAGES)

    def cut(process: subprocess.Popen[str]) -> None:
        lab.wait_until("gpu02", UNPACKING)
        lab.fault("gpu02", "network-cut", "on")

    done = lab.disturbed(r"gpu02.*ofed \| install the RDMA stack: want", cut)
    assert done.code != 0
    assert done.nodes["gpu01"]["state"] == "open"
    assert done.nodes["gpu02"]["state"] == "failed"
    (problem,) = done.nodes["gpu02"]["problems"]
    assert "have the connection lost" in problem
    assert done.seconds < 300
    assert lab.verdict("gpu02").closed
    lab.fault("gpu02", "network-cut", "off")
    taken_up(lab, "gpu02")


def test_a_host_that_loses_its_power_during_dpkg_is_repaired_by_the_next_run(
    lab: Lab, prepared: Callable[[str, str], None]
) -> None:
    prepared("gpu02", RDMA_PACKAGES)

    def fail(process: subprocess.Popen[str]) -> None:
        lab.wait_until("gpu02", UNPACKING)
        lab.fault("gpu02", "power-off", "on")

    done = lab.disturbed(r"gpu02.*ofed \| install the RDMA stack: want", fail)
    assert done.code != 0
    assert done.nodes["gpu01"]["state"] == "open"
    assert done.nodes["gpu02"]["state"] == "failed"
    assert lab.verdict("gpu02").closed
    lab.fault("gpu02", "power-off", "off")
    say(lab.ssh("gpu02", "dpkg --audit; ls /var/lib/dpkg/updates", check=False))
    taken_up(lab, "gpu02")
