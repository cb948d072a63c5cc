"""Sites whose hosts go out through a proxy, or have no IPv4 address."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from lab.description import load
from lab.paths import KNOWN_HOSTS, KUBECONFIG_RACKWRIGHT, SSH_KEY
from tests.guest.lab import Lab, changed_inventory, say
from tests.support import relays

pytestmark = [pytest.mark.guest, pytest.mark.long]

# Something for apt, for our own download, for the container runtime's and for the kubelet's pull.
MISSING = """
set -e
dpkg --purge --force-depends infiniband-diags
apt-get clean
rm -rf /var/lib/apt/lists/* /var/lib/rackwright/apt-updated
rm -f /etc/apt/keyrings/rackwright-kubernetes.asc /var/lib/rackwright/container-runtime.json
crictl rmi registry.k8s.io/rackwright-lab/probe:1 || true
ctr -n rackwright images rm registry.k8s.io/rackwright-lab/probe:1 || true
"""
FETCHED = {
    "ofed | install the RDMA stack",
    "kubernetes | add the kubernetes repository",
    "container_runtime | run a container through the nvidia runtime",
}


@pytest.fixture
def lacking(lab: Lab) -> Iterator[None]:
    """gpu02 is closed, and lacks what has to be fetched; afterwards all is as it was."""
    lab.to_open()
    lab.close("gpu02")
    lab.ssh("gpu02", MISSING)
    yield
    lab.reset(to="open")


PROXY_PORT = 3128
PROXY = f"http://10.88.0.1:{PROXY_PORT}"
NAMES = ("packages.example", "registry.example")
BEHIND_A_PROXY = f"""
import json as _json

_asked = _json.dumps(gpu_nodes[1])
_asked = _asked.replace(MIRROR, "http://packages.example:8080")
_asked = _asked.replace(REGISTRY, "http://registry.example:5000")
gpu_nodes[0][1][1].update(
    _json.loads(_asked),
    http_proxy="{PROXY}",
    https_proxy="{PROXY}",
    no_proxy=["10.88.0.0/24", "10.244.0.0/16", "10.96.0.0/16"],
)
"""


def test_a_host_behind_a_proxy_fetches_through_it_and_reaches_the_cluster_without(
    lab: Lab, lacking: None, tmp_path: Path
) -> None:
    inventory = str(changed_inventory(tmp_path, {}, BEHIND_A_PROXY))
    for name in NAMES:
        assert not lab.ssh("gpu02", f"getent hosts {name} || true"), "the proxy is not needed"
    with relays.proxy("10.88.0.1", PROXY_PORT, dict.fromkeys(NAMES, "10.88.0.1")) as proxy:
        done = lab.run(inventory=inventory)
        assert done.code == 0, done.output[-4000:]
        again = lab.run(inventory=inventory)
    (lab.folder / "proxy.json").write_text(json.dumps(proxy.asked, indent=1))
    say(f"{len(proxy.asked)} requests")
    assert lab.verdict("gpu02").open
    assert set(done.nodes["gpu02"]["changes"]) >= FETCHED
    assert done.nodes["gpu01"]["changes"] == []
    assert (again.code, again.nodes["gpu02"]["changes"]) == (0, [])

    urls = [url for _, url in proxy.asked]
    packages = [url for url in urls if url.startswith("http://packages.example:8080/debian/pool/")]
    assert any("infiniband-diags" in url for url in packages)
    assert any(url.endswith("/Release.key") for url in urls)
    probe = "http://registry.example:5000/v2/rackwright-lab/probe/"
    assert any(url.startswith(probe) for url in urls)
    # Neither the API server nor anything else of the nodes' own network.
    assert all(url.startswith(("http://packages.example:", "http://registry.example:"))
               for url in urls), urls  # fmt: skip


HOST, GUEST, PREFIX = "fd88::1", "fd88::12", 64
PORTS = (8080, 5000, 6443)
IPV6_ONLY = """
import json as _json

gpu_nodes[0].pop(0)  # a kubeconfig is of one API server
gpu_nodes[1].update(
    _json.loads(_json.dumps(gpu_nodes[1]).replace("10.88.0.1:", "[fd88::1]:")),
    ssh_known_hosts_file="@KNOWN_HOSTS@",
    kube_kubeconfig="@KUBECONFIG@",
)
gpu_nodes[0][0][1].update(ssh_hostname="fd88::12", kube_node_ip="fd88::12")
"""
OUT_OF_THE_CLUSTER = "kubeadm reset -f >/dev/null 2>&1"
WITH_IPV6 = """
set -e
device=$(ip -o -4 route show default | sed 's/.* dev \\([^ ]*\\).*/\\1/')
echo $device >/run/rackwright-test-device
sysctl -qw net.ipv6.conf.$device.disable_ipv6=0
ip -6 address replace fe80::12/64 dev $device nodad
ip -6 address replace fd88::12/64 dev $device nodad
ip -6 route replace default via fd88::1 dev $device
"""
# It ends the connection that it comes through.
WITHOUT_IPV4 = """
systemd-run --quiet --collect --on-active=2 sh -c '
systemctl stop systemd-networkd.socket systemd-networkd.service
read -r device </run/rackwright-test-device
ip -4 address flush dev $device
ip -4 route flush dev $device
ip -6 address replace fd88::12/64 dev $device nodad
ip -6 route replace default via fd88::1 dev $device'
"""
IPV4_LEFT = "read -r d </run/rackwright-test-device; ip -4 -o address show dev $d; ip -4 route"


@contextmanager
def bridge_with_ipv6() -> Iterator[None]:
    """The lab host's own IPv6 address, on the bridge that libvirt has made without."""
    name = load().network.name
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    before = switch.read_text()
    switch.write_text("0")
    address = ["ip", "-6", "address"]
    subprocess.run([*address, "replace", f"{HOST}/{PREFIX}", "dev", name, "nodad"], check=True)
    try:
        yield
    finally:
        subprocess.run([*address, "delete", f"{HOST}/{PREFIX}", "dev", name], check=True)
        switch.write_text(before)


@contextmanager
def cluster_of_ipv6(lab: Lab) -> Iterator[None]:
    """
    The cluster calls itself by the address that its IPv6 hosts reach, as kubeadm would have.

    New pods of its network do so too; the other node, which has no IPv6, keeps the pod it has.
    """
    api = lab.kubernetes()
    apps = client.AppsV1Api(api.api_client)
    info_at, network_at = ("cluster-info", "kube-public"), ("lab-cni", "kube-system")
    before = api.read_namespaced_config_map(*info_at).data["kubeconfig"]
    info = yaml.safe_load(before)
    info["clusters"][0]["cluster"]["server"] = f"https://[{HOST}]:6443"
    api.patch_namespaced_config_map(*info_at, {"data": {"kubeconfig": yaml.safe_dump(info)}})
    apps.patch_namespaced_daemon_set(*network_at, network(f"https://[{HOST}]:6443", "OnDelete"))
    try:
        yield
    finally:
        api.patch_namespaced_config_map(*info_at, {"data": {"kubeconfig": before}})
        server = "https://10.88.0.1:6443"
        apps.patch_namespaced_daemon_set(*network_at, network(server, "RollingUpdate"))


def network(server: str, update: str) -> dict[str, Any]:
    """Patch of the pod network's DaemonSet."""
    environment = [{"name": "API_SERVER", "value": server}]
    pod = {"spec": {"containers": [{"name": "cni", "env": environment}]}}
    return {"spec": {"updateStrategy": {"type": update}, "template": pod}}


def over_ipv6(known_hosts: Path, command: str) -> str | None:
    """What *command* says in gpu02, over IPv6; ``None`` if it fails."""
    done = subprocess.run(
        ["ssh", "-F", "none", "-i", str(SSH_KEY), "-oBatchMode=yes", "-oIdentitiesOnly=yes",
         "-oStrictHostKeyChecking=yes", f"-oUserKnownHostsFile={known_hosts}",
         "-oConnectTimeout=10", f"lab@{GUEST}", command],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else None


def test_a_host_that_has_ipv6_only_joins_and_opens(lab: Lab, lacking: None, tmp_path: Path) -> None:
    known_hosts, kubeconfig = tmp_path / "known_hosts", tmp_path / "kubeconfig"
    (line,) = [line for line in KNOWN_HOSTS.read_text().splitlines() if "gpu02" in line]
    known_hosts.write_text(f"{GUEST} {line.partition(' ')[2]}\n")
    kubeconfig.touch(0o600)
    text = KUBECONFIG_RACKWRIGHT.read_text()
    assert "https://10.88.0.1:6443" in text
    kubeconfig.write_text(text.replace("https://10.88.0.1:6443", f"https://[{HOST}]:6443"))
    more = IPV6_ONLY.replace("@KNOWN_HOSTS@", str(known_hosts))
    inventory = changed_inventory(tmp_path, {}, more.replace("@KUBECONFIG@", str(kubeconfig)))

    lab.ssh("gpu02", OUT_OF_THE_CLUSTER)
    lab.kubernetes().delete_node("gpu02")
    with ExitStack() as site:
        site.enter_context(bridge_with_ipv6())
        came = {port: site.enter_context(relays.relay(HOST, port, "10.88.0.1")) for port in PORTS}
        site.enter_context(cluster_of_ipv6(lab))
        lab.ssh("gpu02", WITH_IPV6)
        assert over_ipv6(known_hosts, "true") is not None, "no way to the guest over IPv6"
        lab.ssh("gpu02", WITHOUT_IPV4)
        deadline = time.monotonic() + 120
        while (left := over_ipv6(known_hosts, IPV4_LEFT)) is None or "10.88.0" in left:
            assert time.monotonic() < deadline, f"IPv4 stays: {left}"
            time.sleep(2)

        done = lab.run(inventory=str(inventory))
        assert done.code == 0, done.output[-4000:]
        assert "kubernetes | join the cluster" in done.nodes["gpu02"]["changes"]
        assert set(done.nodes["gpu02"]["changes"]) >= FETCHED
        again = lab.run(inventory=str(inventory))
        assert (again.code, again.nodes["gpu02"]["changes"]) == (0, [])
        assert lab.verdict("gpu02").open
        addresses = lab.kubernetes().read_node("gpu02").status.addresses
        assert [a.address for a in addresses if a.type == "InternalIP"] == [GUEST]
        kubelet = over_ipv6(known_hosts, "sudo grep server: /etc/kubernetes/kubelet.conf") or ""
        assert f"https://[{HOST}]:6443" in kubelet
    for port, clients in came.items():
        say(f"port {port}: {len(clients)} connections")
        assert GUEST in clients
