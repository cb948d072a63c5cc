"""A support bundle of hosts and runs.  pyinfra -y inventories/prod.py deploys/support_bundle.py"""

from deploys.order import PHASES
from operations import support_bundle

support_bundle.collect(name="Collect a support bundle", phases=PHASES)
