"""Reaching a server: the Unix socket where there is one, else TCP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fray_agents.rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_agents.rpc.wire.handshake import ClientHandshake, http_request, seconds_left
from fray_agents.rpc.wire.sealed_connection import SealedConnection
from fray_agents.rpc.wire.session import Keyring, Session

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
"""Seconds for the connection and all of the handshake together, whoever answers and however slowly."""


class Target(NamedTuple):
    """Where an actor is served."""

    actor_id: str
    tcp: str  # host:port
    unix: str = ""  # path of a Unix socket, used where it exists
    identity: str = ""  # of the server; empty accepts any that holds the key
    fingerprint: str = ""  # of its certificate, in hexadecimal SHA-256; empty: any, if the cluster encrypts at all


def open_connection(target: Target, keyring: Keyring, deadline: float | None = None) -> tuple[SealedConnection, str]:
    """An authenticated link, and the identity of the server it goes to.

    Args:
        deadline: of `time.monotonic`; `CONNECT_TIMEOUT` seconds from now if that is sooner.

    Raises:
        ConnectionLost: it does not answer, or not in time; if it has ended for sure, `ServerGone`.
        NotAuthentic: who is there does not hold the key.
    """
    return open_session(target, keyring, deadline, _prove_key)


def open_session(
    target: Target, keyring: Keyring, deadline: float | None, then: Callable[[ClientHandshake, Session], T]
) -> tuple[T, str]:
    """As `open_connection`, with what `then` makes of the conversation once the server has shown who it is."""
    latest = time.monotonic() + CONNECT_TIMEOUT
    deadline = latest if deadline is None else min(latest, deadline)
    try:
        sock, certificate = _connect_unix(target.unix, deadline) or _connect_tcp(target, keyring.encrypted, deadline)
    except NotAuthentic:
        raise
    except OSError as error:
        kind = ServerGone if isinstance(error, ConnectionRefusedError) else ConnectionLost
        raise kind(f"no server at {target.tcp}: {error}", started=False) from error
    try:
        conversation = ClientHandshake(sock, certificate, deadline)
        session, identity = conversation.greet(keyring, target.identity)
        return then(conversation, session), identity
    except (ConnectionLost, NotAuthentic):
        sock.close()
        raise
    except BadMessage as error:
        sock.close()
        raise ConnectionLost(f"who answers at {target.tcp} is none of our servers: {error}", started=False) from error
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"the server at {target.tcp} did not answer: {error}", started=False) from error
    except BaseException:
        sock.close()
        raise


def _prove_key(conversation: ClientHandshake, session: Session) -> SealedConnection:
    if conversation.ask(http_request(b"/proof", proof=session.to_server.proof())).status != 200:
        raise NotAuthentic("the server refused our proof")
    return SealedConnection(conversation.sock, requests=False, incoming=session.to_client, outgoing=session.to_server)


def _connect_unix(path: str, deadline: float) -> tuple[socket.socket, str] | None:
    if not path or not os.path.exists(path):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(seconds_left(deadline))
    try:
        sock.connect(path)
    except OSError:  # left over from a server that is gone
        sock.close()
        return None
    return sock, ""


def _connect_tcp(target: Target, encrypted: bool, deadline: float) -> tuple[socket.socket, str]:
    """A connection, and the fingerprint of the certificate that it is encrypted with, if it is."""
    host, _, port = target.tcp.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), seconds_left(deadline))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    enable_keep_alive(sock)
    if not encrypted and not target.fingerprint:
        return sock, ""
    from fray_agents.rpc.wire import tls

    sock.settimeout(seconds_left(deadline))
    return tls.start_tls(sock, target.fingerprint)


def enable_keep_alive(sock: socket.socket) -> None:
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
