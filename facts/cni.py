"""What a container network plugin has left on the host."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from facts.value import ABSENT, FactValue, sections

BRIDGE = "cni0"
"""The bridge plugin's default, which flannel leaves as it is.

Source: containernetworking/plugins plugins/main/bridge/bridge.go, ``defaultBrName``.
"""


@dataclass(frozen=True, slots=True)
class PodBridgeState(FactValue):
    present: bool
    addresses: tuple[str, ...]
    """As in ``10.244.1.1/24``."""
    ports: int
    """Interfaces of pods that are attached to it."""


class PodBridge(FactBase[PodBridgeState]):
    """
    The bridge of the pod network, which outlives ``kubeadm reset``.

    .. code:: python

        PodBridgeState(present=True, addresses=("10.244.1.1/24",), ports=2)
    """

    def command(self) -> str:
        return (
            f"if [ -e /sys/class/net/{BRIDGE} ]; then echo '## addresses'; "
            f"ip -o address show dev {BRIDGE} scope global || exit; "
            f"echo '## ports'; ls /sys/class/net/{BRIDGE}/brif || exit; "
            f"else echo {ABSENT}; fi; echo '## done'"
        )

    def process(self, output: list[str]) -> PodBridgeState:
        return parse_pod_bridge(output)


def parse_pod_bridge(output: list[str]) -> PodBridgeState:
    """Read what ``PodBridge.command`` printed."""
    if output == [ABSENT, "## done"]:
        return PodBridgeState(present=False, addresses=(), ports=0)
    part = sections(output)
    if not {"addresses", "ports", "done"} <= part.keys():
        raise FactProcessError(f"the state of {BRIDGE} was cut off")
    addresses = []
    for line in part["addresses"]:
        # 5: cni0    inet 10.244.1.1/24 brd 10.244.1.255 scope global cni0\       valid_lft ...
        match line.split():
            case [_, name, "inet" | "inet6", address, *_] if name == BRIDGE:
                addresses.append(address)
            case _:
                raise FactProcessError(f"no address in {line!r}")
    return PodBridgeState(present=True, addresses=tuple(addresses), ports=len(part["ports"]))
