"""A host with another key than the known one: refused, with what a person has to compare."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from paramiko import BadHostKeyException, PKey
from pyinfra import logger
from pyinfra.connectors.sshuserclient import client

COMPARE = "compare with `ssh-keygen -lf` of the keys in /etc/ssh on the host's console"


def shown(key: PKey) -> str:
    """As ``ssh-keygen -l`` shows it: ``ssh-ed25519 SHA256:...``."""
    return f"{key.get_name()} {key.fingerprint}"


def told(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Make pyinfra's SSH client say both fingerprints; pyinfra says that they do not match."""

    @wraps(connect)
    def connecting(self: Any, hostname: str, *given: Any, **arguments: Any) -> Any:
        try:
            return connect(self, hostname, *given, **arguments)
        except BadHostKeyException as error:
            logger.error(
                f"host key: want {shown(error.expected_key)} of {error.hostname}, as known_hosts "
                f"says, have {shown(error.key)}; {COMPARE}, and correct known_hosts only if the "
                "host was installed anew"
            )
            raise

    return connecting


def asked(missing: Callable[..., Any]) -> Callable[..., Any]:
    """Make the policy that refuses unknown keys say which key it was shown."""

    @wraps(missing)
    def refusing(self: Any, of: Any, hostname: str, key: PKey) -> Any:
        logger.error(
            f"host key: want the key of {hostname} in known_hosts, have it show {shown(key)}; "
            f"{COMPARE}, then add it"
        )
        return missing(self, of, hostname, key)

    return refusing


def install() -> None:
    """Let pyinfra's SSH connections work like that: once, before the first of them."""
    ssh_client: Any = client.SSHClient
    policy: Any = client.StrictPolicy
    if hasattr(ssh_client.connect, "__wrapped__"):
        return
    ssh_client.connect = told(ssh_client.connect)
    policy.missing_host_key = asked(policy.missing_host_key)
