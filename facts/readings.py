"""The list of readings: one line per fact, in the order in which a host answers them."""

from __future__ import annotations

from typing import Any

from pyinfra.api import FactBase

from facts.cni import PodBridge
from facts.containerd import CdiSpecification, Containerd, ContainerdService
from facts.files import Files
from facts.headers import KernelHeaders
from facts.infiniband import Infiniband
from facts.kubernetes import Kubelet
from facts.mig import Gpus, MigService
from facts.modules import KernelModules
from facts.network import ApiServer
from facts.nvidia import NvidiaDriver, NvidiaModules, NvidiaPersistenced
from facts.os import Clock, DiskFree, Kernels, Machine, OsRelease
from facts.packages import Packages
from facts.pci import PciDevices
from facts.repositories import AptSources
from facts.system import Swap, Sysctls, UnattendedUpgrades
from facts.xid import Xids

READINGS: tuple[type[FactBase[Any]], ...] = (
    Files,
    OsRelease,
    Machine,
    DiskFree,
    Kernels,
    KernelHeaders,
    KernelModules,
    PciDevices,
    Packages,
    AptSources,
    UnattendedUpgrades,
    Sysctls,
    Swap,
    Infiniband,
    NvidiaDriver,
    NvidiaModules,
    NvidiaPersistenced,
    ApiServer,
    Containerd,
    ContainerdService,
    CdiSpecification,
    Gpus,
    MigService,
    Kubelet,
    PodBridge,
    Xids,
    Clock,  # last: what is compared with our own clock should not be old
)
