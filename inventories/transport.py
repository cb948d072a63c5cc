"""How pyinfra's SSH connections are made; what group data imports, and nothing else."""

from __future__ import annotations

import socket
from typing import Any

from paramiko import Channel, Transport

DEAD_AFTER_S = 60
"""A host that acknowledges nothing for so long is gone: its run fails instead of waiting."""

KEEPALIVE_S = 15


def no_delay(sock: Any, **arguments: Any) -> Transport:
    """
    Make the transport of an SSH connection: packets are sent at once, a dead host is noticed.

    Without TCP_NODELAY each remote command waits some 40 ms for the other side's acknowledgement. A
    plain function, because ``pyinfra --json INVENTORY debug-inventory`` can print nothing else that
    is callable.
    """
    tcp = sock
    while isinstance(tcp, Channel):  # through a jump host: its connection carries ours
        tcp = tcp.get_transport().sock
    if isinstance(tcp, socket.socket):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
    transport = Transport(sock, **arguments)
    transport.set_keepalive(KEEPALIVE_S)
    return transport
