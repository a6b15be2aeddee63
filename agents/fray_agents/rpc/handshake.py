"""The two requests with which a connection begins.

    POST /session   fray-key, fray-nonce       ->  200  fray-identity, fray-nonce, fray-proof
    POST /proof     fray-proof                 ->  200

Each side's proof is a seal with the key of its direction, so the other knows that the RPC key is held before a call
is sent, and before a thread is given to the connection. Neither request has a body.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from fray_agents.rpc.errors import BadMessage, NotAuthentic, ServerGone
from fray_agents.rpc.framing import Framing, Message
from fray_agents.rpc.link import Link
from fray_agents.rpc.session import Keyring, RpcKey, Session, nonce, same


@dataclass
class Greeting:
    """The server's side, for one connection."""

    identity: str
    keyring: Keyring
    session: Session | None = None

    def answer(self, message: Message, fresh: bool) -> bytes | None:
        """What to answer to the first request; None if the key is not known.

        Args:
            fresh: whether the keys may be read again.
        """
        if message.path != b"/session":
            raise BadMessage("a connection begins with /session")
        key_id = message.headers.get(b"fray-key", b"").decode("latin-1")
        client_nonce = message.headers.get(b"fray-nonce", b"")
        key = find_key(self.keyring, key_id, fresh)
        if key is None:
            return None
        own, identity = nonce(), self.identity.encode()
        self.session = Session.derive(key, client_nonce, own, identity)
        return response(200, identity=identity, nonce=own, proof=self.session.to_client.proof())

    def proven(self, message: Message) -> bool:
        """Whether the second request shows that the client holds the key."""
        assert self.session is not None
        proof = message.headers.get(b"fray-proof", b"")
        return message.path == b"/proof" and same(proof, self.session.to_server.proof())


def find_key(keyring: Keyring, key_id: str, fresh: bool) -> RpcKey | None:
    """The key by that id, read again if need be and allowed."""
    for again in (False, True) if fresh else (False,):
        for key in keyring.keys(fresh=again):
            if key.id == key_id:
                return key
    return None


def greet(sock: socket.socket, keyring: Keyring, identity: str) -> tuple[Link, str]:
    """The client's side: a link over `sock`, and the server's identity.

    Args:
        identity: the server that is meant; empty: any that holds the key.

    Raises:
        NotAuthentic: the server does not hold the key, or refuses each of ours.
        ServerGone: another server is there.
        OSError: the connection broke.
    """
    framing = Framing(requests=False, max_body=0)
    refused: set[str] = set()
    for fresh in (False, True):
        for key in keyring.keys(fresh=fresh):
            if key.id in refused:
                continue
            refused.add(key.id)
            own = nonce()
            sock.sendall(_request(b"/session", key=key.id.encode(), nonce=own))
            answer = _response(sock, framing)
            if answer.status == 200:
                return _prove(sock, framing, answer, key, own, identity)
    raise NotAuthentic(f"the server knows none of the keys {', '.join(sorted(refused)) or '(there are none)'}")


def _prove(
    sock: socket.socket, framing: Framing, answer: Message, key: RpcKey, own: bytes, identity: str
) -> tuple[Link, str]:
    there = answer.headers.get(b"fray-identity", b"")
    session = Session.derive(key, own, answer.headers.get(b"fray-nonce", b""), there)
    if not same(answer.headers.get(b"fray-proof", b""), session.to_client.proof()):
        raise NotAuthentic("who answers at this address does not hold the cluster's key")
    if identity and there != identity.encode():
        raise ServerGone(f"another server ({there.decode('latin-1')}) is at this address", started=False)
    sock.sendall(_request(b"/proof", proof=session.to_server.proof()))
    if _response(sock, framing).status != 200:
        raise NotAuthentic("the server refused our proof")
    return Link(sock, requests=False, incoming=session.to_client, outgoing=session.to_server), there.decode()


def response(status: int, **headers: bytes) -> bytes:
    """A response without a body."""
    reason = {200: b"OK", 401: b"Unauthorized"}[status]
    return b"HTTP/1.1 %d %b\r\n%b" % (status, reason, _head(headers))


def _request(path: bytes, **headers: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: actor\r\n%b" % (path, _head(headers))


def _head(headers: dict[str, bytes]) -> bytes:
    lines = [b"fray-%b: %b\r\n" % (name.encode(), value) for name, value in headers.items()]
    return b"content-length: 0\r\n" + b"".join(lines) + b"\r\n"


def _response(sock: socket.socket, framing: Framing) -> Message:
    while (message := framing.next()) is None:
        if not (data := sock.recv(4096)):
            raise ConnectionResetError("closed before it was established")
        framing.feed(data)
    return message
