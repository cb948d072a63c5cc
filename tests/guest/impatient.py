"""Given to pyinfra beside the main job: apt's locks are waited for for seconds, not minutes."""

from operations import packages

packages.WAIT_S = 20
