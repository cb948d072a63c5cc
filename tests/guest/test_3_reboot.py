"""Both nodes after a reboot that nobody converges."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.guest.lab import NODES, Lab, say

pytestmark = [pytest.mark.guest, pytest.mark.long]


def test_nodes_are_right_after_a_reboot_without_us(lab: Lab) -> None:
    before = lab.to_open()
    boots = {node: lab.ssh(node, "cat /proc/sys/kernel/random/boot_id") for node in NODES}
    for node in NODES:
        lab.ssh(node, "nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &")
    deadline = time.monotonic() + 1200
    for node in NODES:
        while True:
            assert time.monotonic() < deadline, f"{node} does not come back"
            try:
                if lab.ssh(node, "cat /proc/sys/kernel/random/boot_id") != boots[node]:
                    break
            except (AssertionError, subprocess.TimeoutExpired):
                pass
            time.sleep(5)
        say(f"{node} is back")
        # Nobody converges them: the boot unit, the kubelet and the plugins do it alone.
        boot_id = lab.ssh(node, "cat /proc/sys/kernel/random/boot_id").strip()
        while lab.offers(node, boot_id) != before[node]:
            assert time.monotonic() < deadline, f"{node} offers {lab.offers(node, boot_id)}"
            time.sleep(5)
        say(f"{node} offers what it did")
    lab.validate()
