"""What goes wrong between here and the Kubernetes API."""

from __future__ import annotations


class ClusterError(Exception):
    """The API could not be asked, refused, or answered something that cannot be worked with.

    The message has the form ``<component>: want <x>, have <y>; <what to do>``.
    """


class NotFound(ClusterError):
    """Asked, and it is not there. Unlike every other error this is an answer."""


class NoSuchResource(ClusterError):
    """The API server does not serve this kind of object: no such group, or no such resource."""


class Conflict(ClusterError):
    """Somebody else changed the object in between, owns the field, or the name is taken."""
