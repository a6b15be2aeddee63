"""Reaching a server: the Unix socket where there is one, else TCP."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from fray_agents.rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_agents.rpc.handshake import greet
from fray_agents.rpc.link import Link
from fray_agents.rpc.session import Keyring

CONNECT = 10.0  # seconds, for the connection and for each step of the handshake


class Target(NamedTuple):
    """Where an actor is served."""

    actor_id: str
    tcp: str  # host:port
    unix: str = ""  # path of a Unix socket, used where it exists
    identity: str = ""  # of the server; empty accepts any that holds the key
    fingerprint: str = ""  # of its certificate, in hexadecimal SHA-256; empty: no TLS


def dial(target: Target, keyring: Keyring) -> tuple[Link, str]:
    """An authenticated link, and the identity of the server it goes to.

    Raises:
        ConnectionLost: it does not answer; if it has ended for sure, `ServerGone`.
        NotAuthentic: who is there does not hold the key.
    """
    try:
        sock = _unix(target.unix) or _tcp(target)
    except NotAuthentic:
        raise
    except OSError as error:
        kind = ServerGone if isinstance(error, ConnectionRefusedError) else ConnectionLost
        raise kind(f"no server at {target.tcp}: {error}", started=False) from error
    try:
        return greet(sock, keyring, target.identity)
    except (ConnectionLost, BadMessage, NotAuthentic):
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"the server at {target.tcp} did not answer: {error}", started=False) from error


def _unix(path: str) -> socket.socket | None:
    if not path or not os.path.exists(path):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CONNECT)
    try:
        sock.connect(path)
    except OSError:  # left over from a server that is gone
        sock.close()
        return None
    return sock


def _tcp(target: Target) -> socket.socket:
    host, _, port = target.tcp.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), CONNECT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)
    if not target.fingerprint:
        return sock
    from fray_agents.rpc import tls

    return tls.connect(sock, target.fingerprint)


def keep_alive(sock: socket.socket) -> None:
    """Notice within about a minute that the other host is gone, whether nothing is sent or something is on its way.

    The probes of an idle connection pause while sent bytes wait to be acknowledged; the system alone would then send
    them again for a quarter of an hour (tcp(7), tcp_retries2).
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 20),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
