"""The phases of a GPU node, in the order in which they are planned and applied."""

from deploys.phases import (
    admission,
    base,
    container_runtime,
    device_plugins,
    kubernetes,
    mig,
    nvidia_driver,
    ofed,
    preflight,
)

PHASES = (
    preflight,
    base,
    ofed,  # before the driver: its peer-memory module is built against it
    nvidia_driver,
    container_runtime,
    mig,  # after the toolkit, which writes the CDI specification of what mig makes
    kubernetes,
    device_plugins,
    admission,
)
