"""The list of claims, in the order in which a person would ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from claims import hardware, host, node
from claims.finding import Finding
from cluster import NodeState
from facts.snapshot import Readings, UnknownReading
from nodespec import NodeSpec

Claim = Callable[[Readings, NodeState | None, NodeSpec], Iterator[Finding]]

CLAIMS: dict[str, Claim] = {
    "gpus_present": hardware.gpus_present,
    "hcas_present": hardware.hcas_present,
    "links_at_full_width": hardware.links_at_full_width,
    "no_fatal_xid": hardware.no_fatal_xid,
    "no_swap": host.no_swap,
    "ports": host.ports,
    "driver": host.driver,
    "management_library": host.management_library,
    "persistence": host.persistence,
    "mig": host.mig,
    "runtime_configuration": host.runtime_configuration,
    "runtime": host.runtime,
    "ready": node.ready,
    "of_this_host": node.of_this_host,
    "taints": node.taints,
    "version": node.version,
    "resources": node.resources,
}


def check(have: Readings, state: NodeState | None, spec: NodeSpec) -> list[Finding]:
    """Everything that is wrong with a node; a claim that could not be judged is wrong too."""
    findings = []
    for name, claim in CLAIMS.items():
        try:
            findings += list(claim(have, state, spec))
        except UnknownReading as unknown:
            findings.append(
                Finding(f"claim {name}", "it judged", f"unknown ({unknown})", "look at the host")
            )
    return findings
