"""Read by pyinfra before anything else."""

from pyinfra import config

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
