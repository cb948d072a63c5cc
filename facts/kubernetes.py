"""The kubelet: whether the host has joined a cluster, which one, and what lies around."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, properties, sections, where_there

KUBELET_CONF = "/etc/kubernetes/kubelet.conf"
BOOTSTRAP_CONF = "/etc/kubernetes/bootstrap-kubelet.conf"
CA = "/etc/kubernetes/pki/ca.crt"

CNI_FOLDER = "/etc/cni/net.d"
CNI_ENDINGS = (".conf", ".conflist", ".json")
"""Source: containerd/go-cni opts.go, loadFromConfDir; the first by name is used."""


@dataclass(frozen=True, slots=True)
class KubeletState(FactValue):
    api_server: str | None
    """Of the kubelet's own credentials, as in ``https://10.0.0.1:6443``; ``None``: it has none."""
    bootstrapping: bool
    """A join has begun and has not ended: its bootstrap credentials are there."""
    ca_present: bool
    active: bool
    running_s: float | None
    """How long its process has been running; ``None`` if it is not."""
    enabled: bool
    cni_configs: tuple[str, ...]
    """Names in ``/etc/cni/net.d`` that a container runtime reads."""
    plugin_sockets: tuple[str, ...]
    """Names in ``/var/lib/kubelet/device-plugins``, the kubelet's own among them."""

    @property
    def joined(self) -> bool:
        return self.api_server is not None

    @property
    def half_joined(self) -> bool:
        return not self.joined and (self.bootstrapping or self.ca_present)


class Kubelet(FactBase[KubeletState]):
    """The kubelet's state, from its files and its unit. Secrets in them are not read."""

    def command(self) -> str:
        return (
            f"echo '## server'; if [ -e {KUBELET_CONF} ]; then "
            f"grep -oE 'server: *[^ ]+' {KUBELET_CONF} || echo unreadable; else echo {ABSENT}; fi; "
            f"echo '## bootstrap'; [ -e {BOOTSTRAP_CONF} ] && echo yes || echo no; "
            f"echo '## ca'; [ -e {CA} ] && echo yes || echo no; "
            # By the clock that nobody sets; the uptime after it, so that no age is negative.
            "echo '## unit'; systemctl show kubelet.service -p ActiveState -p UnitFileState "
            "-p ExecMainStartTimestampMonotonic; echo '## uptime'; cat /proc/uptime; "
            f"echo '## cni'; {where_there(CNI_FOLDER, 'ls -A')} || exit; "
            "echo '## sockets'; ls -A /var/lib/kubelet/device-plugins 2>/dev/null; echo '## done'"
        )

    def process(self, output: list[str]) -> KubeletState:
        return parse_kubelet(output)


def parse_kubelet(output: list[str]) -> KubeletState:
    """Read what ``Kubelet.command`` printed."""
    part = sections(output)
    if "done" not in part:
        raise FactProcessError("the kubelet's state was cut off")
    server = part["server"][0] if part["server"] else ""
    if server != ABSENT and not server.startswith("server:"):
        raise FactProcessError(f"{KUBELET_CONF} names no server")
    started = "ExecMainStartTimestampMonotonic"
    unit = properties(part["unit"], "kubelet.service", "ActiveState", "UnitFileState", started)
    for name in ("bootstrap", "ca"):
        if part[name] not in (["yes"], ["no"]):
            raise FactProcessError(f"whether there is a {name} file is not said in {part[name]!r}")
    active = unit["ActiveState"] == "active"
    try:
        (uptime,) = part["uptime"]
        running_s = float(uptime.split()[0]) - int(unit[started]) / 1e6
    except (KeyError, ValueError, IndexError) as error:
        raise FactProcessError(f"since when the kubelet runs is not said: {error}") from error
    return KubeletState(
        api_server=None if server == ABSENT else server.removeprefix("server:").strip(),
        bootstrapping=part["bootstrap"] == ["yes"],
        ca_present=part["ca"] == ["yes"],
        active=active,
        running_s=round(running_s, 1) if active else None,
        enabled=unit["UnitFileState"] == "enabled",
        cni_configs=tuple(name for name in part["cni"] if name.endswith(CNI_ENDINGS)),
        plugin_sockets=tuple(part["sockets"]),
    )
