"""Hosts that somebody else has set up: a talkative shell, strict sudo, /tmp without programs.

And what a run leaves behind there, and here, of the secrets that it was given.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.paths import KUBECONFIG_ADMIN, SSH_KEY
from tests.guest.lab import NODES, ROOT, Lab, changed_inventory, say
from tests.support.secrets import files_below, leaks, of_run

pytestmark = [pytest.mark.guest, pytest.mark.long]

PASSWORD = "Kranich-lautlos-77"
VARIABLE = "RACKWRIGHT_TEST_SUDO_PASSWORD"

# Another user than the lab's own, who must go on being able to look at the guest.
STRANGE = r"""
set -e
id ops >/dev/null 2>&1 || useradd --create-home --shell /bin/bash ops
usermod --password '@HASH@' ops
install -d -m 0700 -o ops -g ops /home/ops/.ssh
install -m 0600 -o ops -g ops /home/lab/.ssh/authorized_keys /home/ops/.ssh/authorized_keys
cat >/home/ops/.bashrc <<'END'
echo "Welcome to $(hostname). 3 updates can be applied."
echo "stty: 'standard input': Inappropriate ioctl for device" >&2
alias ls='ls --color=always' grep='grep --color=always'
export LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 POSIXLY_CORRECT=1 GREP_COLORS='mt=01;31'
set -o noclobber
umask 077
cd /
END
echo "ops ALL=(ALL:ALL) ALL" >/etc/sudoers.d/ops
echo "Defaults:ops umask=0077, umask_override" >>/etc/sudoers.d/ops
mountpoint --quiet /tmp || mount -t tmpfs tmpfs /tmp
mount -o remount,noexec,nosuid,nodev /tmp
"""

# Every command line of every process, for as long as the file is there.
WATCH = """
import glob, os, time
seen = set()
while os.path.exists("/run/rackwright-test-watch"):
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            line = open(path, "rb").read()
        except OSError:
            continue
        if line not in seen:
            seen.add(line)
            with open("/run/rackwright-test-argv", "ab") as file:
                file.write(line.replace(b"\\0", b" ") + b"\\n")
    time.sleep(0.02)
"""


@pytest.fixture
def strange(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both nodes open; an inventory that comes as a user for whom everything is strange."""
    lab.to_open()
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input=PASSWORD, capture_output=True, text=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    for node in NODES:
        lab.ssh(node, STRANGE.replace("@HASH@", hashed))
    monkeypatch.setenv(VARIABLE, PASSWORD)
    changes = {
        '"ssh_user": "lab",': f'"ssh_user": "ops", "_sudo_password": os.environ["{VARIABLE}"],'
    }
    return str(changed_inventory(tmp_path, changes))


@contextmanager
def again_and_again(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """*look* every now and then while the body runs."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(every_s):
            look()

    watcher = threading.Thread(target=loop, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(5)


@contextmanager
def watching(lab: Lab, node: str) -> Iterator[dict[str, str]]:
    """The command lines of all processes in the guest and here, while the body runs."""
    texts: dict[str, str] = {}
    here = set[bytes]()
    own = {Path("/proc/self/cmdline").read_bytes()}  # pytest's, with the names of tests

    def look() -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended
                here.add(path.read_bytes())

    lab.ssh(
        node,
        "rm -f /run/rackwright-test-argv; touch /run/rackwright-test-watch; "
        f"systemd-run --quiet --collect python3 -c {shlex.quote(WATCH)}",
    )
    try:
        with again_and_again(look, 0.1):
            yield texts
    finally:
        lab.ssh(node, "rm -f /run/rackwright-test-watch")
        texts["argv in the guest"] = lab.ssh(node, "cat /run/rackwright-test-argv")
        lines = sorted(here - own)
        texts["argv here"] = "\n".join(line.replace(b"\0", b" ").decode("utf-8", "replace")
                                       for line in lines)  # fmt: skip


@contextmanager
def tokens(lab: Lab) -> Iterator[dict[str, str]]:
    """The secret halves of the bootstrap tokens that come and go while the body runs."""
    found: dict[str, str] = {}

    def look() -> None:
        for secret in lab.bootstrap_tokens():
            found[secret.metadata.name] = base64.b64decode(secret.data["token-secret"]).decode()

    with again_and_again(look, 0.2):
        yield found


def on_disk(node: str, secrets: dict[str, str]) -> str:
    """Names of the guest's files, and lines of its journal, that have one of *secrets* in them."""
    script = (
        "cat >/dev/shm/patterns; "
        "grep -rlaF -f /dev/shm/patterns /etc /home /opt /root /run /srv /tmp /usr/local /var "
        "2>/dev/null; journalctl --no-pager -o cat | grep -F -f /dev/shm/patterns | cut -c 1-200; "
        "rm -f /dev/shm/patterns"
    )
    done = subprocess.run(
        [sys.executable, "-m", "lab", "ssh", node, "--", f"sudo sh -c {shlex.quote(script)}"],
        cwd=ROOT, input="\n".join(secrets.values()) + "\n", capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    return done.stdout


def test_a_run_converges_there_and_leaves_no_secret_anywhere(lab: Lab, strange: str) -> None:
    lab.ssh("gpu02", "kubeadm reset -f >/dev/null 2>&1")
    lab.kubernetes().delete_node("gpu02")
    with watching(lab, "gpu02") as texts, tokens(lab) as minted:
        done = lab.run(inventory=strange)
    assert done.code == 0, done.output[-4000:]
    assert done.nodes["gpu01"]["changes"] == []
    assert "kubernetes | join the cluster" in done.nodes["gpu02"]["changes"]
    assert lab.verdict("gpu02").open
    say(f"{len(texts['argv in the guest'].splitlines())} command lines, {len(minted)} tokens")
    assert minted, "no bootstrap token was seen: the test watched nothing"
    assert "kubeadm join" in texts["argv in the guest"], "the test watched nothing"

    kubeconfig = KUBECONFIG_ADMIN.with_name("rackwright.kubeconfig")
    secrets = of_run({"_sudo_password": PASSWORD}, kubeconfig, SSH_KEY)
    secrets |= {f"the bootstrap token {name}": value for name, value in minted.items()}
    objects = subprocess.run(
        [sys.executable, "-c", OBJECTS, str(KUBECONFIG_ADMIN)], capture_output=True, text=True,
        check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    texts |= {"the run's output": done.output, "Kubernetes objects": objects}
    texts |= files_below(lab.runs)
    assert leaks(texts, secrets) == []
    assert on_disk("gpu02", secrets) == ""
    # What the cluster has for nodes that read it is meant for them; a token of ours it has not.
    assert lab.bootstrap_tokens() == []


OBJECTS = """
import sys
from kubernetes import client, config
api = client.CoreV1Api(config.new_client_from_config(sys.argv[1]))
for list_all in (api.list_node, api.list_pod_for_all_namespaces, api.list_event_for_all_namespaces,
                 api.list_config_map_for_all_namespaces, api.list_secret_for_all_namespaces):
    print(list_all(_preload_content=False).data.decode())
"""


def test_a_sudo_that_wants_a_terminal_is_told(lab: Lab, strange: str) -> None:
    lab.ssh("gpu02", "echo 'Defaults:ops requiretty' >>/etc/sudoers.d/ops")
    done = lab.run(inventory=strange)
    assert done.code != 0
    assert done.nodes["gpu01"]["state"] == "open"
    assert done.nodes["gpu02"]["state"] == "failed"
    (problem,) = done.nodes["gpu02"]["problems"]
    assert "requiretty" in problem
    assert lab.verdict("gpu02").open  # nothing is known against it


def test_a_dry_run_changes_nothing_and_shows_what_the_run_then_does(lab: Lab) -> None:
    lab.to_open()
    lab.close("gpu02")
    lab.ssh("gpu02", "dpkg --purge --force-depends infiniband-diags")
    lab.ssh("gpu02", "touch /run/rackwright-test-now; sleep 1")
    before = lab.results()
    code = subprocess.run(
        [sys.executable, "-m", "pyinfra", "--dry", "inventories/lab.py", "deploys/gpu_node.py"],
        cwd=ROOT, env=lab.environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert code.returncode == 0, code.stdout[-2000:] + code.stderr[-2000:]
    (result,) = lab.results() - before
    planned = {row["node"]: row["planned"] for row in json.loads(result.read_text())["nodes"]}
    changed = lab.ssh(
        "gpu02",
        "find / -xdev -ignore_readdir_race -newer /run/rackwright-test-now -type f "
        "! -path '/var/log/*' "
        "! -path '/var/lib/systemd/*' ! -path '/var/lib/kubelet/*' ! -path '/var/lib/containerd/*' "
        "! -path '/var/lib/sudo/*' ! -path '/var/cache/ldconfig/*'",
    )
    assert changed == ""
    assert lab.verdict("gpu02").closed
    done = lab.run()
    assert done.code == 0
    for node in NODES:
        assert done.nodes[node]["changes"] == planned[node]


def test_the_second_of_two_runs_says_who_has_the_host_and_does_the_others(lab: Lab) -> None:
    lab.to_open()
    lab.close("gpu02")
    holder = (
        "flock /run/rackwright.lock sh -c 'echo someone@desk pid 7 since noon >"
        "/run/rackwright.lock.owner; sleep 600'"
    )
    lab.ssh("gpu02", f"systemd-run --quiet --collect --unit=rackwright-test-holder {holder}")
    time.sleep(2)
    started = time.monotonic()
    done = lab.run()
    assert done.code != 0
    assert time.monotonic() - started < 240
    assert done.nodes["gpu01"]["state"] == "open"
    assert done.nodes["gpu02"]["state"] == "failed"
    assert any("someone@desk pid 7 since noon" in text for text in done.nodes["gpu02"]["problems"])
    lab.ssh("gpu02", "systemctl stop rackwright-test-holder")
    assert lab.run().code == 0


USERS_POD = {
    "metadata": {"name": "rackwright-test-profile", "namespace": "default"},
    "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": "gpu02"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "shell",
                "image": "registry.k8s.io/rackwright-lab/probe:1",
                "command": ["sh", "-c", "cat /proc/self/attr/current"],
            }
        ],
    },
}


def said_by(lab: Lab, pod: dict[str, Any], timeout_s: float = 180) -> str:
    """What a pod of a user has said when it is over."""
    api, name = lab.kubernetes(), pod["metadata"]["name"]
    api.create_namespaced_pod("default", pod)
    try:
        deadline = time.monotonic() + timeout_s
        while api.read_namespaced_pod(name, "default").status.phase != "Succeeded":
            assert time.monotonic() < deadline, api.read_namespaced_pod(name, "default").status
            time.sleep(2)
        return str(api.read_namespaced_pod_log(name, "default"))
    finally:
        api.delete_namespaced_pod(name, "default", grace_period_seconds=0)


def test_a_node_opens_under_an_apparmor_that_enforces(lab: Lab) -> None:
    """Its kernel always does; containerd confines containers where the tools are installed too."""
    lab.to_open()
    lab.close("gpu02")
    assert lab.ssh("gpu02", "cat /sys/module/apparmor/parameters/enabled").strip() == "Y"
    lab.ssh(
        "gpu02",
        "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update >/dev/null && "
        "apt-get -qq -y --no-install-recommends install apparmor </dev/null >/dev/null && "
        "systemctl restart containerd",
    )
    lab.delete_pods("gpu02")  # they have been started without
    done = lab.run()
    assert done.code == 0, done.output[-4000:]
    assert lab.verdict("gpu02").open
    assert said_by(lab, USERS_POD).strip() == "cri-containerd.apparmor.d (enforce)"
