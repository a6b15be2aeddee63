"""Reaching a server: the Unix socket where there is one, else TCP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fray_agents.rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_agents.rpc.handshake import Conversation, left, request
from fray_agents.rpc.link import Link
from fray_agents.rpc.session import Keyring, Session

T = TypeVar("T")

CONNECT = 10.0
"""Seconds for the connection and all of the handshake together, whoever answers and however slowly."""


class Target(NamedTuple):
    """Where an actor is served."""

    actor_id: str
    tcp: str  # host:port
    unix: str = ""  # path of a Unix socket, used where it exists
    identity: str = ""  # of the server; empty accepts any that holds the key
    fingerprint: str = ""  # of its certificate, in hexadecimal SHA-256; empty: any, if the cluster encrypts at all


def dial(target: Target, keyring: Keyring, deadline: float | None = None) -> tuple[Link, str]:
    """An authenticated link, and the identity of the server it goes to.

    Args:
        deadline: of `time.monotonic`; `CONNECT` seconds from now if that is sooner.

    Raises:
        ConnectionLost: it does not answer, or not in time; if it has ended for sure, `ServerGone`.
        NotAuthentic: who is there does not hold the key.
    """
    return converse(target, keyring, deadline, _link)


def converse(
    target: Target, keyring: Keyring, deadline: float | None, then: Callable[[Conversation, Session], T]
) -> tuple[T, str]:
    """As `dial`, with what `then` makes of the conversation once the server has shown who it is."""
    latest = time.monotonic() + CONNECT
    deadline = latest if deadline is None else min(latest, deadline)
    try:
        sock, certificate = _unix(target.unix, deadline) or _tcp(target, keyring.encrypted, deadline)
    except NotAuthentic:
        raise
    except OSError as error:
        kind = ServerGone if isinstance(error, ConnectionRefusedError) else ConnectionLost
        raise kind(f"no server at {target.tcp}: {error}", started=False) from error
    try:
        conversation = Conversation(sock, certificate, deadline)
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


def _link(conversation: Conversation, session: Session) -> Link:
    if conversation.ask(request(b"/proof", proof=session.to_server.proof())).status != 200:
        raise NotAuthentic("the server refused our proof")
    return Link(conversation.sock, requests=False, incoming=session.to_client, outgoing=session.to_server)


def _unix(path: str, deadline: float) -> tuple[socket.socket, str] | None:
    if not path or not os.path.exists(path):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(left(deadline))
    try:
        sock.connect(path)
    except OSError:  # left over from a server that is gone
        sock.close()
        return None
    return sock, ""


def _tcp(target: Target, encrypted: bool, deadline: float) -> tuple[socket.socket, str]:
    """A connection, and the fingerprint of the certificate that it is encrypted with, if it is."""
    host, _, port = target.tcp.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), left(deadline))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)
    if not encrypted and not target.fingerprint:
        return sock, ""
    from fray_agents.rpc import tls

    sock.settimeout(left(deadline))
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
