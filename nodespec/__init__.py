"""
What is asked of a host: typed, validated inventory data.

Of pyinfra it needs only the inventory and its hosts; it connects to nothing.
``docs/inventory.md`` is made from the models here.
"""

from nodespec.fleet import of_all, read_all
from nodespec.mig import GpuLayout, MigLayoutEntry, Placement, feasible, mig_layout
from nodespec.model import NodeSpec
from nodespec.problems import HostProblem, InventoryProblems, Problem
from nodespec.values import repository_url

__all__ = [
    "GpuLayout",
    "HostProblem",
    "InventoryProblems",
    "MigLayoutEntry",
    "NodeSpec",
    "Placement",
    "Problem",
    "feasible",
    "mig_layout",
    "of_all",
    "read_all",
    "repository_url",
]
