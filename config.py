"""Read by pyinfra before anything else."""

from pyinfra import config

from nodespec.loading import refuse_before_contact
from operations import hostkeys, redaction, sudo

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
refuse_before_contact()
redaction.install()
hostkeys.install()
sudo.install()
