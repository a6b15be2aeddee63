"""Hints: one word for a process that serves no calls, as JSON; nothing is unpickled on either side.

    POST /session  ...                                           as for calls, see `handshake`
    POST /hint     fray-seal, {"hint": <one of a fixed few>}  ->  200

The seal shows that the key is held, so the hint takes the place of the proof, and the connection ends with it. All of
it happens in the door's thread: no caller, whatever he holds, gets a thread or more than `MAX_BYTES` here.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping

import msgspec

from fray_agents.rpc.dial import Target, converse
from fray_agents.rpc.door import Door
from fray_agents.rpc.errors import BadMessage, NotAuthentic
from fray_agents.rpc.framing import Message
from fray_agents.rpc.handshake import Conversation, request, response
from fray_agents.rpc.listening import address_of, certificate_if, listen_tcp
from fray_agents.rpc.session import Keyring, Session, same

MAX_BYTES = 256

_PATH = b"/hint"


class _Hint(msgspec.Struct, forbid_unknown_fields=True):
    hint: str


class HintServer:
    """Takes hints from who holds the cluster's key.

    Args:
        host: address to bind, at a free port.
        hints: what each hint does; called in the server's thread, must not wait.
    """

    def __init__(self, keyring: Keyring, host: str, hints: Mapping[str, Callable[[], None]]) -> None:
        self.identity = secrets.token_hex(16)
        listener = listen_tcp(host)
        self.address = address_of(listener)
        self._hints = hints
        certificate = certificate_if(keyring.encrypted)
        self._door = Door([listener], self.identity, keyring, self._receive, certificate, max_body=MAX_BYTES)

    def start(self) -> None:
        """Take hints from now on, in a thread of its own."""
        self._door.start()

    def close(self) -> None:
        """Take no more."""
        self._door.close()

    def _receive(self, sock: socket.socket, session: Session, message: Message) -> None:
        if message.path != _PATH or not same(message.headers.get(b"fray-seal", b""), _seal(session, message.body)):
            raise NotAuthentic("a hint without its seal")
        act = self._hints.get(read_hint(message.body))
        if act is not None:
            act()
        with sock:
            sock.sendall(response(200 if act is not None else 400))


def tell(target: Target, keyring: Keyring, hint: str) -> None:
    """Give a hint to the server of `target`.

    Raises:
        ConnectionLost: it does not answer, or another server is there.
        NotAuthentic: who is there does not hold the key, or does not take this hint.
    """

    def give(conversation: Conversation, session: Session) -> None:
        body = msgspec.json.encode(_Hint(hint))
        answer = conversation.ask(request(_PATH, body, seal=_seal(session, body)))
        conversation.sock.close()
        if answer.status != 200:
            raise NotAuthentic(f"the hint {hint!r} was refused")

    converse(target, keyring, None, give)


def _seal(session: Session, body: bytes) -> bytes:
    return session.to_server.next_json(_PATH, body)


def read_hint(body: bytes) -> str:
    """The hint's name. Raises BadMessage: the body is none."""
    try:
        return msgspec.json.decode(body, type=_Hint).hint
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a hint: {error}") from None
