"""Connecting to a server: through its Unix socket if that exists here, else by TCP."""

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fray_rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_rpc.wire.handshake import ClientHandshake, http_request, seconds_left
from fray_rpc.wire.http_connection import prepare_tcp
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.session import Keyring, Session

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
"""Most seconds for the connection and the whole handshake together, however slowly the other side answers. A lost SYN
packet is sent again after 1, 3 and 7 seconds."""


class Target(NamedTuple):
    """The address of an actor on a server.

    Attributes:
        tcp: "host:port".
        unix: path of a Unix socket, which is used if it exists.
        identity: identity of the server; "" accepts any server that holds the key.
        fingerprint: SHA-256 of its certificate in hexadecimal; "": any certificate, if the cluster encrypts at all.
    """

    actor_id: str
    tcp: str
    unix: str = ""
    identity: str = ""
    fingerprint: str = ""


def open_connection(target: Target, keyring: Keyring, deadline: float | None = None) -> tuple[SealedConnection, str]:
    """An authenticated connection, and the identity of its server.

    Args:
        deadline: a time of `time.monotonic`; at the latest `CONNECT_TIMEOUT` seconds from now.

    Raises:
        ConnectionLost: the server does not answer, or not in time; if it has certainly ended, `ServerGone`.
        NotAuthentic: the server does not hold the key.
    """
    return open_session(target, keyring, deadline, _prove_key)


def open_session(
    target: Target, keyring: Keyring, deadline: float | None, then: Callable[[ClientHandshake, Session], T]
) -> tuple[T, str]:
    """The result of `then`, which continues the handshake once the server has proved its identity; see above."""
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
        handshake = ClientHandshake(sock, certificate, deadline)
        session, identity = handshake.greet(keyring, target.identity)
        return then(handshake, session), identity
    except (ConnectionLost, NotAuthentic):
        sock.close()
        raise
    except BadMessage as error:
        sock.close()
        raise ConnectionLost(f"no server of this cluster answers at {target.tcp}: {error}", started=False) from error
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"the server at {target.tcp} did not answer: {error}", started=False) from error
    except BaseException:
        sock.close()
        raise


def _prove_key(handshake: ClientHandshake, session: Session) -> SealedConnection:
    if handshake.ask(http_request(b"/proof", proof=session.to_server.proof())).status != 200:
        raise NotAuthentic("the server refused our proof")
    return SealedConnection(handshake.sock, requests=False, incoming=session.to_client, outgoing=session.to_server)


def _connect_unix(path: str, deadline: float) -> tuple[socket.socket, str] | None:
    if not path or not os.path.exists(path):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(seconds_left(deadline))
    try:
        sock.connect(path)
    except OSError:  # the file is left from a server that has ended
        sock.close()
        return None
    return sock, ""


def _connect_tcp(target: Target, encrypted: bool, deadline: float) -> tuple[socket.socket, str]:
    """A connection, and the fingerprint of the certificate that encrypts it; "" if it is not encrypted."""
    host, _, port = target.tcp.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), seconds_left(deadline))
    prepare_tcp(sock)
    if not encrypted and not target.fingerprint:
        return sock, ""
    from fray_rpc.wire import tls

    sock.settimeout(seconds_left(deadline))
    return tls.start_tls(sock, target.fingerprint)
