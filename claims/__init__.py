"""What "validated" means: claims, pure functions of what was read.

Used three times: by the admission phase as its gate, by ``tests/validation`` over a
fleet, and by whatever runs them every day.
"""

from claims.finding import Finding
from claims.list import CLAIMS, check

__all__ = ["CLAIMS", "Finding", "check"]
