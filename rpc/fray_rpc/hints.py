"""Hints: single words, as JSON, for a process that serves no calls; nothing is unpickled on either side.

    POST /session  ...                                           as for calls, see `handshake`
    POST /hint     fray-seal, {"hint": <one of a fixed few>}  ->  200

The seal proves that the caller holds the key, so it replaces the proof; the connection ends after the hint. All of this
happens in the acceptor's thread: no caller, even with a key, gets a thread or more than `MAX_HINT_BYTES` here.
"""

import secrets
import socket
from collections.abc import Callable, Mapping

import msgspec

from fray_rpc.client.connect import Target, open_session
from fray_rpc.errors import BadMessage, NotAuthentic
from fray_rpc.server.acceptor import Acceptor
from fray_rpc.server.server import address_of, certificate_if, listen_tcp
from fray_rpc.wire.handshake import ClientHandshake, http_request, http_response
from fray_rpc.wire.http_connection import HttpMessage
from fray_rpc.wire.session import Keyring, Session, constant_time_equal

MAX_HINT_BYTES = 256
"""Most bytes of a hint, which is one word; a server reads no more from a caller."""

_PATH = b"/hint"


class _HintBody(msgspec.Struct, forbid_unknown_fields=True):
    hint: str


class HintServer:
    """Receives hints from callers that hold a key of the cluster.

    Args:
        host: address to bind, at a free port.
        hints: by hint, what to do; returns whether the hint is accepted. Runs in the server's thread, must not wait.
    """

    def __init__(self, keyring: Keyring, host: str, hints: Mapping[str, Callable[[], bool]]) -> None:
        self.identity = secrets.token_hex(16)
        listener = listen_tcp(host)
        self.address = address_of(listener)
        self._hints = hints
        certificate = certificate_if(keyring.encrypted)
        self._acceptor = Acceptor(
            [listener], self.identity, keyring, self._on_authenticated, certificate, max_body=MAX_HINT_BYTES
        )

    def start(self) -> None:
        self._acceptor.start()

    def close(self) -> None:
        self._acceptor.close()

    def _on_authenticated(self, sock: socket.socket, session: Session, message: HttpMessage) -> None:
        if message.path != _PATH or not constant_time_equal(
            message.headers.get(b"fray-seal", b""), _seal(session, message.body)
        ):
            raise NotAuthentic("a hint without its seal")
        act = self._hints.get(read_hint(message.body))
        taken = act is not None and act()
        with sock:
            sock.sendall(http_response(200 if taken else 400))


def send_hint(target: Target, keyring: Keyring, hint: str) -> None:
    """Send a hint to the server of `target`.

    Raises:
        ConnectionLost: the server does not answer, or another one is there.
        NotAuthentic: the server does not hold the key, or does not accept this hint.
    """

    def give(handshake: ClientHandshake, session: Session) -> None:
        body = msgspec.json.encode(_HintBody(hint))
        answer = handshake.ask(http_request(_PATH, body, seal=_seal(session, body)))
        handshake.sock.close()
        if answer.status != 200:
            raise NotAuthentic(f"the hint '{hint}' was refused")

    open_session(target, keyring, None, give)


def _seal(session: Session, body: bytes) -> bytes:
    return session.to_server.next_json(_PATH, body)


def read_hint(body: bytes) -> str:
    """The name of the hint in a body. Raises BadMessage: there is none."""
    try:
        return msgspec.json.decode(body, type=_HintBody).hint
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a hint: {error}") from None
