"""Base: what every node needs of its system, and what must not change behind our back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from pyinfra.api import StringCommand, deploy

from deploys.phases import preflight
from facts.files import Files
from facts.modules import KernelModules
from facts.os import OsRelease
from facts.packages import Packages
from facts.system import Swap, Sysctls, UnattendedUpgrades
from nodespec import NodeSpec
from operations import certificates, node, packages, repositories
from operations.files import WRITTEN_BY_OTHERS, all_written
from operations.have import Have
from operations.nvidia import of_the_driver
from operations.step import Commands, Refusal, Step

HEADER = "# Written by Rackwright (deploys/phases/base.py). Local changes are lost.\n"

MODULES_LOAD = "/etc/modules-load.d/rackwright.conf"
SYSCTL = "/etc/sysctl.d/99-z-rackwright.conf"
"""Read last: Debian's 99-sysctl.conf, a link to sysctl.conf, comes before it."""
LIMITS = "/etc/security/limits.d/90-rackwright.conf"
UPGRADES = "/etc/apt/apt.conf.d/52rackwright"
"""After Debian's and Ubuntu's own 50unattended-upgrades, whose list it adds to."""
PROXY = "/etc/apt/apt.conf.d/51rackwright-proxy"

# Source: Kubernetes documentation, "Container Runtimes", "Install and configure prerequisites"
# (read 2026-11-30). The bridge parameters exist only once br_netfilter is loaded.
MODULES = ("overlay", "br_netfilter")
SYSCTLS = {
    "net.bridge.bridge-nf-call-ip6tables": "1",
    "net.bridge.bridge-nf-call-iptables": "1",
    "net.ipv4.ip_forward": "1",
}
# Without it `kubeadm join` refuses an API server that is given by its IPv6 address.
# Source: kubernetes cmd/kubeadm/app/preflight/checks.go at v1.36.3, JoinNodeChecks.
SYSCTLS_IPV6 = {"net.ipv6.conf.default.forwarding": "1"}

# RDMA pins what it registers. Pods get their limit from containerd; these are for logins.
MEMLOCK = "".join(
    f"{who} {kind} memlock unlimited\n" for who in ("*", "root") for kind in ("soft", "hard")
)

# A driver library that is newer than the loaded module stops every GPU pod until a reboot, and a
# kernel without modules built for it does so after one. Regular expressions, matched at the start.
UNTOUCHED = (
    "linux-image-", "linux-headers-", "linux-modules-", "linux-generic", "linux-kbuild-",
    "nvidia-", "libnvidia-", "libcuda", "cuda-", "xserver-xorg-video-nvidia",
    "containerd", "kubeadm", "kubelet", "kubectl", "kubernetes-cni", "cri-tools",
)  # fmt: skip

FSTAB_MARK = "# rackwright: no swap on a node: "


def files(spec: NodeSpec) -> tuple[str, ...]:
    return (
        MODULES_LOAD, SYSCTL, LIMITS, UPGRADES, PROXY,
        *certificates.files(spec.ca_certificates),
        *(repositories.files("debian") if spec.debian_repository_url else ()),
    )  # fmt: skip


def plan(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    yield from apt_proxy(spec, have)
    # The driver's packages may be broken for want of headers: its own phase brings both.
    if step := packages.repaired("repair dpkg", have, leaving=of_the_driver):
        yield step
    if spec.debian_repository_url:
        yield from repositories.present("debian", spec, have)
    yield from certificates.trusted(spec.ca_certificates, have)
    yield from settings(spec, have)
    yield from kernel(spec, have)
    yield from no_swap(have)


def apt_proxy(spec: NodeSpec, have: Have) -> Iterator[Step]:
    """apt's way out; taken back when the inventory no longer names one."""
    text = proxy_text(
        spec.http_proxy, spec.https_proxy, direct_hosts(spec.no_proxy_all, asked_by_apt(spec, have))
    )
    if text is not None:
        # A user and password in a proxy's URL are nobody's but root's.
        mode = "0600" if "@" in text else "0644"
        title = "send apt through the proxy"
        if step := all_written(title, {PROXY: text}, have[Files], mode, secret=mode == "0600"):
            yield step
    elif have[Files][PROXY] is not None:

        def remove() -> Commands:
            yield StringCommand("rm", "-f", PROXY)

        yield Step(
            "take apt's proxy back",
            "no proxy",
            PROXY,
            remove,
            remedy=f"{WRITTEN_BY_OTHERS}: `ls -l {PROXY}`",
        )


def asked_by_apt(spec: NodeSpec, have: Have) -> list[str]:
    """Hosts of the repositories that we give to apt, and of their keys."""
    if not (spec.http_proxy or spec.https_proxy):
        return []
    names = [*repositories.LAYOUTS, *(["debian"] if spec.debian_repository_url else [])]
    architecture = have[Packages].architecture or ""
    wanted = [repositories.repository(name, spec, have[OsRelease], architecture) for name in names]
    urls = [url for one in wanted for url in (one.url, one.key_url) if url]
    return list(dict.fromkeys(urlsplit(url).hostname or "" for url in urls))


def direct_hosts(no_proxy: Sequence[str], asked: Sequence[str]) -> list[str]:
    """
    What apt is to reach without the proxy.

    apt knows single hosts only: of a domain or a network it is told the hosts that it will ask.
    Source: apt.conf(5).
    """
    named = [name for name in no_proxy if not name.startswith(".") and "/" not in name]
    covered = [host for host in asked if any(covers(entry, host) for entry in no_proxy)]
    # apt parts its names at each ::, and takes the end of none for an address.
    return [
        host
        for host in dict.fromkeys([*named, *covered])
        if not host.startswith("::") and not host.endswith("::")
    ]


def covers(entry: str, host: str) -> bool:
    """Whether an entry of ``no_proxy`` is for *host*, as containerd would say."""
    try:
        address = ip_address(host)
    except ValueError:
        return f".{host}".endswith(f".{entry.removeprefix('.').lower()}")
    try:
        return address in ip_network(entry, strict=False)
    except ValueError:
        return False


def proxy_text(http: str | None, https: str | None, direct: Sequence[str]) -> str | None:
    """apt's configuration for a proxy, ``None`` without one; *direct*: hosts to reach without."""
    lines = [
        f'Acquire::{scheme}::Proxy "{url}";'
        for scheme, url in (("http", http), ("https", https))
        if url
    ]
    if not lines:
        return None
    lines += [
        f'Acquire::{scheme}::Proxy::{host} "DIRECT";'
        for host in direct
        for scheme in ("http", "https")
    ]
    return HEADER.replace("#", "//") + "\n".join(lines) + "\n"


def sysctls(spec: NodeSpec) -> dict[str, str]:
    return SYSCTLS | SYSCTLS_IPV6 if spec.ipv6 else SYSCTLS


def settings(spec: NodeSpec, have: Have) -> Iterator[Step | Refusal]:
    patterns = "".join(f'    "{pattern}";\n' for pattern in UNTOUCHED)
    texts = {
        MODULES_LOAD: HEADER + "".join(f"{name}\n" for name in MODULES),
        SYSCTL: HEADER + "".join(f"{name} = {value}\n" for name, value in sysctls(spec).items()),
        LIMITS: HEADER + MEMLOCK,
        UPGRADES: HEADER.replace("#", "//")
        + f"Unattended-Upgrade::Package-Blacklist {{\n{patterns}}};\n",
    }
    if step := all_written("write the system's settings", texts, have[Files]):
        yield step
        return
    lost = [name for name in UNTOUCHED if name not in have[UnattendedUpgrades]]
    if lost:
        yield Refusal(
            "base", "kernel and driver left alone by unattended upgrades",
            f"no word of {', '.join(lost)} in apt's configuration",
            "another file in /etc/apt/apt.conf.d clears Unattended-Upgrade::Package-Blacklist: "
            "let it not",
        )  # fmt: skip


def kernel(spec: NodeSpec, have: Have) -> Iterator[Step]:
    modules, values, wanted = have[KernelModules], have[Sysctls], sysctls(spec)
    missing = [name for name in MODULES if not modules.has(name)]
    if missing:

        def load() -> Commands:
            yield StringCommand("modprobe", "-a", *missing)

        yield Step(
            "load the modules for containers", ", ".join(MODULES), f"no {', '.join(missing)}", load,
            remedy="they come with the distribution's kernel: install linux-modules-extra",
        )  # fmt: skip
    wrong = {name: values[name] for name, want in wanted.items() if values[name] != want}
    if wrong:

        def apply() -> Commands:
            yield StringCommand("sysctl", "-q", "-p", SYSCTL)

        yield Step(
            "set the kernel's parameters",
            ", ".join(f"{name} = {wanted[name]}" for name in wrong),
            ", ".join(value or "no such parameter" for value in wrong.values()),
            apply,
            waits_for="the modules" if missing or have[Files][SYSCTL] is None else None,
            remedy="run `sysctl --system` on the host: a file read later sets another value",
        )


def no_swap(have: Have) -> Iterator[Step]:
    """Swap off, now and at every boot. Of fstab only the swap entries are touched."""
    swap = have[Swap]
    if not (swap.active or swap.fstab or swap.units):
        return

    def apply() -> Commands:
        mark = shlex.quote(FSTAB_MARK)
        yield StringCommand(
            "swapoff -a && { [ ! -e /etc/fstab ] || { "
            'f=$(readlink -f /etc/fstab) && t=$(mktemp "$f.XXXXXX") && '
            f'awk -v mark={mark} \'$1 !~ /^#/ && $3 == "swap" {{ print mark $0; next }} '
            '{ print }\' "$f" >"$t" && chmod --reference="$f" "$t" && sync "$t" && '
            'mv -fT "$t" "$f"; }; } && systemctl daemon-reload && '
            # Units that no fstab asks for: a partition of type swap, zram-generator.
            "for u in $(systemctl list-units --type=swap --all --plain --no-legend --no-pager | "
            'awk \'$2 == "loaded" { print $1 }\'); do systemctl mask --now "$u" || exit; done'
        )

    parts = [
        *(f"{name} in use" for name in swap.active),
        *(f"{entry.split()[0]} in /etc/fstab" for entry in swap.fstab),
        *swap.units,
    ]
    yield Step(
        "turn swap off for good", "no swap, now and after a boot", ", ".join(parts), apply,
        disrupts=True,  # systemd reads all units anew (failures RTM-13)
        remedy="look at `systemctl list-units --type=swap`",
    )  # fmt: skip


@deploy("Base")
def base() -> None:
    node.converge(name="Converge the base", phases=[preflight, sys.modules[__name__]])
