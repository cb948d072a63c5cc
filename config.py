"""Read by pyinfra before anything else."""

from pyinfra import config

from operations import hostkeys, redaction, sudo

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
redaction.install()
hostkeys.install()
sudo.install()
