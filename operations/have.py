"""What is known of one node: its host's readings, and the cluster's word on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from pyinfra.api import FactBase
from pyinfra.context import ctx_host

from cluster import Cluster, NodeState, PodState
from facts.network import ApiServer
from facts.os import Machine
from facts.snapshot import Readings
from nodespec import NodeSpec
from operations.reading import forget, read

T = TypeVar("T")


def look(
    spec: NodeSpec,
    cluster: Cluster,
    files: Sequence[str] = (),
    api_server: Sequence[str] = (),
    *,
    asks: bool = True,
) -> Have:
    """
    What is known of the current host now: from the cache if nothing has been sent to it since.

    A busy host may have been slow, and a packet lost: what is wrong with it is wrong twice.
    """
    readings = read(files, api_server)
    api = readings.known(ApiServer)
    if readings.unread or (api is not None and api.asked and not api.connects):
        forget(ctx_host.get())
        readings = read(files, api_server)
    return Have(readings, spec, cluster, asks=asks)


@dataclass
class Have:
    """One moment's knowledge, made anew after changes; the cluster is read only if need be."""

    readings: Readings
    spec: NodeSpec
    cluster: Cluster
    asks: bool = field(default=True)
    """Whether the API is asked what takes many questions: once, for the plan that is shown. Nothing
    else depends on it: what a run has done decides no step."""
    pending: bool = field(default=False)
    """Whether an earlier phase of the plan that is being made has a step."""

    def __getitem__(self, fact: type[FactBase[T]]) -> T:
        """The value of *fact*. Raises ``UnknownReading`` if the host could not tell."""
        return self.readings.of(fact)

    def known(self, fact: type[FactBase[T]]) -> T | None:
        """The value of *fact*, ``None`` if the host could not tell."""
        return self.readings.known(fact)

    @cached_property
    def node(self) -> NodeState | None:
        """The Node object, ``None`` if there is none. Raises ``ClusterError`` if unknown."""
        return self.cluster.node(self.spec.kube_node_name)

    def of_another(self, node: NodeState) -> bool:
        """Whether *node* is known to be another machine's: then nothing is written on it."""
        machine = self.known(Machine)
        return machine is not None and (
            node.of_machine(machine.machine_id, machine.product_uuid) is False
        )

    @property
    def own(self) -> NodeState | None:
        """The Node object, unless it is another machine's."""
        return None if self.node is None or self.of_another(self.node) else self.node

    @cached_property
    def pods(self) -> list[PodState]:
        return list(self.cluster.pods_on(self.spec.kube_node_name))
