"""What the lab consists of: the typed reading of ``nodes.yaml``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lab.errors import LabError
from lab.paths import TREE

NODES_YAML = TREE / "nodes.yaml"

# 52:54:00 is the prefix that QEMU uses for its guests.
MAC_PREFIX = "52:54:00"


class DescriptionError(LabError):
    """``nodes.yaml`` asks for something the lab cannot be."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(Part):
    """A simulated GPU; ``model`` is a name that the simulated hardware knows."""

    model: str = Field(min_length=1)
    numa: int = Field(default=0, ge=0)


class Hca(Part):
    """A simulated InfiniBand/RoCE adapter with one port."""

    model: str = Field(min_length=1)
    link_layer: Literal["infiniband", "ethernet"] = "infiniband"
    rate_gbps: int = Field(gt=0)
    state: Literal["active", "init", "down"] = "active"
    numa: int = Field(default=0, ge=0)


class Network(Part):
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")
    """Also the bridge's name, which the kernel limits to 15 characters."""
    host: IPv4Address
    prefix: int = Field(ge=8, le=30)

    @property
    def subnet(self) -> IPv4Network:
        return IPv4Interface(f"{self.host}/{self.prefix}").network


class Node(Part):
    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    address: IPv4Address
    memory_mib: int = Field(ge=1024)
    cpus: int = Field(ge=1)
    gpus: tuple[Gpu, ...] = ()
    hcas: tuple[Hca, ...] = ()

    @property
    def mac(self) -> str:
        """Made from the address, so that it is unique where the address is."""
        return ":".join([MAC_PREFIX, *(f"{byte:02x}" for byte in self.address.packed[1:])])


class Description(Part):
    network: Network
    nodes: tuple[Node, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def addresses_fit(self) -> Self:
        taken = {self.network.host: "the lab host"}
        for node in self.nodes:
            if node.address not in self.network.subnet:
                raise ValueError(
                    f"{node.name}: want an address in {self.network.subnet}, have {node.address}"
                )
            if node.address in taken:
                raise ValueError(
                    f"{node.name}: want an address of its own, "
                    f"have that of {taken[node.address]}, {node.address}"
                )
            taken[node.address] = node.name
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("nodes: want names that differ, have one twice")
        return self

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise DescriptionError(
            f"lab: want a node of {NODES_YAML}, have {name!r}; "
            f"there are {', '.join(node.name for node in self.nodes)}"
        )

    def select(self, names: Iterable[str]) -> tuple[Node, ...]:
        """The nodes with these names; all of them if no name is given."""
        return tuple(self.node(name) for name in names) or self.nodes


def read(path: Path) -> Description:
    try:
        return Description.model_validate(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, ValidationError) as error:
        raise DescriptionError(
            f"lab: want a description of the lab, have {path} wrong; correct it: {error}"
        ) from error


@cache
def load() -> Description:
    """The lab's own description."""
    return read(NODES_YAML)
