"""Given to pyinfra beside the main job: apt's locks are waited for for seconds, not minutes."""

from operations import lock

lock.PACKAGES_WAIT_S = 20
