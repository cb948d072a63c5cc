"""A bare host becomes a validated GPU node.  pyinfra -y inventories/prod.py deploys/gpu_node.py"""

from deploys.order import PHASES
from operations import node

node.converge(name="Converge the node", phases=PHASES)
