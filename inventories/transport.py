"""How pyinfra's SSH connections are made; what group data imports, and nothing else."""

from __future__ import annotations

import socket
from typing import Any

from paramiko import Channel, Transport


def no_delay(sock: Any, **arguments: Any) -> Transport:
    """
    Make the transport of an SSH connection whose packets are sent at once.

    Without TCP_NODELAY each remote command waits some 40 ms for the other side's acknowledgement. A
    plain function, because ``pyinfra --json INVENTORY debug-inventory`` can print nothing else that
    is callable.
    """
    tcp = sock
    while isinstance(tcp, Channel):  # through a jump host: its connection carries ours
        tcp = tcp.get_transport().sock
    if isinstance(tcp, socket.socket):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Transport(sock, **arguments)
