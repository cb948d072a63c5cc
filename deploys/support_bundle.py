"""A support bundle of hosts and runs.  pyinfra -y inventories/prod.py deploys/support_bundle.py"""

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
from operations import support_bundle

support_bundle.collect(
    name="Collect a support bundle",
    phases=[
        preflight,
        base,
        ofed,
        nvidia_driver,
        container_runtime,
        mig,
        kubernetes,
        device_plugins,
        admission,
    ],
)
