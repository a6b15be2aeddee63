"""Addresses and options of sockets: how long they wait, and when they notice that the other host is gone."""

from __future__ import annotations

import select
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import TlsSocket

STALL_TIMEOUT = 30.0
"""Most seconds of silence within a message: a participant that has begun one must continue it."""


class PlainSocket(socket.socket):
    """A blocking, unencrypted socket whose waits end after `STALL_TIMEOUT` with BlockingIOError."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        timeout = struct.pack("@ll", int(STALL_TIMEOUT), 0)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)

    def readable(self, seconds: float) -> bool:
        return bool(self._poll.poll(max(seconds, 0) * 1000))


def host_and_port(host: str, port: int | str) -> str:
    """The "host:port" of an address; an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_timeouts(sock: socket.socket) -> PlainSocket | TlsSocket:
    """The socket, encrypted or not, wrapped for threads that wait no longer than `STALL_TIMEOUT`."""
    if not hasattr(sock, "pending"):
        return PlainSocket(sock)
    from fray_agents.rpc.wire.tls import TlsSocket

    return TlsSocket(sock, STALL_TIMEOUT)  # type: ignore[arg-type]  # what has `pending` is an SSLSocket


def prepare_tcp(sock: socket.socket) -> None:
    """Make a TCP socket send without delay, and notice within about a minute that the other host is gone.

    The keep-alive probes of an idle connection pause while sent bytes wait for acknowledgement. Without
    TCP_USER_TIMEOUT the system would then send these again for a quarter of an hour (tcp(7), tcp_retries2).
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 60_000)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
