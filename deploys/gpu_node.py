"""A bare host becomes a validated GPU node.  pyinfra -y inventories/prod.py deploys/gpu_node.py"""

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
from operations import node

node.converge(
    name="Converge the node",
    phases=[
        preflight,
        base,
        ofed,  # before the driver: its peer-memory module is built against it
        nvidia_driver,
        container_runtime,
        mig,  # after the toolkit, which writes the CDI specification of what mig makes
        kubernetes,
        device_plugins,
        admission,
    ],
)
