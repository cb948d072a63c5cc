"""Read by pyinfra before anything else."""

from pyinfra import config

from operations import sudo

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
sudo.install()
