"""The handshake: the two requests with which a connection begins, and the code of both sides for them.

    POST /session   fray-key, fray-nonce       ->  200  fray-identity, fray-nonce, fray-proof
    POST /proof     fray-proof                 ->  200

Each side's proof is a seal with the key of its direction. So each side knows that the other holds the RPC key before it
sends a call, or gives a thread to the connection. The client's proof also says how its calls will be encoded: pickled
(`messages`) or as JSON (`json_codec`). Neither request has a body. A hint is another kind of second request, see
`hints`.
"""

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from fray_rpc.errors import BadMessage, NotAuthentic, ServerGone
from fray_rpc.wire.http_connection import HttpMessage, MessageParser
from fray_rpc.wire.session import Keyring, RpcKey, Session, constant_time_equal, new_nonce


@dataclass
class ServerHandshake:
    """The server's side of one handshake.

    Attributes:
        identity: the server's identity.
        certificate: fingerprint of the certificate that encrypts this connection; "" if it is not encrypted.
        session: the keys of the connection, once the first request is answered.
    """

    identity: str
    certificate: str
    session: Session | None = None

    def answer(self, message: HttpMessage, keys: Iterable[RpcKey]) -> bytes | None:
        """The response to the first request; None if its key is not in `keys`. Raises BadMessage: another request."""
        if message.path != b"/session" or message.length:
            raise BadMessage("a connection begins with /session, without a body")
        key_id = message.headers.get(b"fray-key", b"").decode("latin-1")
        key = next((key for key in keys if key.id == key_id), None)
        if key is None:
            return None
        client_nonce = message.headers.get(b"fray-nonce", b"")
        own, identity = new_nonce(), self.identity.encode()
        self.session = Session.derive(key, client_nonce, own, identity, self.certificate)
        return http_response(200, identity=identity, nonce=own, proof=self.session.to_client.proof())


def speaks_json(session: Session, message: HttpMessage) -> bool:
    """Whether the second request of a handshake announces calls as JSON; otherwise they are pickled.

    Raises NotAuthentic: it does not prove that the client holds the key.
    """
    proof = message.headers.get(b"fray-proof", b"")
    if message.path == b"/proof":
        if constant_time_equal(proof, session.to_server.proof()):
            return False
        if constant_time_equal(proof, session.to_server.proof(b"json")):
            return True
    raise NotAuthentic("a wrong proof")


class ClientHandshake:
    """The client's side of one handshake: requests and their responses, all by one deadline.

    Args:
        certificate: fingerprint of the server's certificate; "" if the socket is not encrypted.
        deadline: a time of `time.monotonic`.
    """

    def __init__(self, sock: socket.socket, certificate: str, deadline: float) -> None:
        self.sock = sock
        self._certificate = certificate
        self._deadline = deadline
        self._parser = MessageParser(requests=False, max_body=0)

    def greet(self, keyring: Keyring, identity: str) -> tuple[Session, str]:
        """A session with the server, which has proved that it holds the key, and the server's identity.

        Args:
            identity: identity of the wanted server; "": any server that holds the key.

        Raises:
            NotAuthentic: the server does not hold the key, or refuses all keys of `keyring`.
            ServerGone: another server is at this address.
            OSError: the connection broke, or the deadline has passed.
        """
        refused: set[str] = set()
        for fresh in (False, True):
            for key in keyring.keys(fresh=fresh):
                if key.id in refused:
                    continue
                refused.add(key.id)
                own = new_nonce()
                answer = self.ask(http_request(b"/session", key=key.id.encode(), nonce=own))
                if answer.status == 200:
                    return self._session(answer, key, own, identity)
        raise NotAuthentic(f"the server knows none of the keys {', '.join(sorted(refused)) or '(there are none)'}")

    def _session(self, answer: HttpMessage, key: RpcKey, own: bytes, identity: str) -> tuple[Session, str]:
        server_identity = answer.headers.get(b"fray-identity", b"")
        session = Session.derive(key, own, answer.headers.get(b"fray-nonce", b""), server_identity, self._certificate)
        if not constant_time_equal(answer.headers.get(b"fray-proof", b""), session.to_client.proof()):
            raise NotAuthentic("the server at this address does not hold the cluster's key, or relays our messages")
        if identity and server_identity != identity.encode():
            raise ServerGone(f"another server ({server_identity.decode('latin-1')}) is at this address", started=False)
        return session, server_identity.decode("latin-1")

    def ask(self, data: bytes) -> HttpMessage:
        """The response to a request."""
        self._limit_wait()
        self.sock.sendall(data)
        while (message := self._parser.next()) is None:
            self._limit_wait()
            if not (received := self.sock.recv(4096)):
                raise ConnectionResetError("closed before it was established")
            self._parser.feed(received)
        return message

    def _limit_wait(self) -> None:
        self.sock.settimeout(seconds_left(self._deadline))


def seconds_left(deadline: float) -> float:
    """Seconds until `deadline`, a time of `time.monotonic`. Raises TimeoutError: it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("not established in time")
    return seconds


def http_response(status: int, **headers: bytes) -> bytes:
    """The bytes of a response without a body; `headers` get the prefix "fray-"."""
    reason = {200: b"OK", 400: b"Bad Request", 401: b"Unauthorized"}[status]
    return b"HTTP/1.1 %d %b\r\n%b" % (status, reason, _head(headers))


def http_request(path: bytes, body: bytes = b"", **headers: bytes) -> bytes:
    """The bytes of a request; `headers` get the prefix "fray-"."""
    return b"POST %b HTTP/1.1\r\nhost: actor\r\n%b%b" % (path, _head(headers, len(body)), body)


def _head(headers: dict[str, bytes], length: int = 0) -> bytes:
    lines = [b"fray-%b: %b\r\n" % (name.encode(), value) for name, value in headers.items()]
    return b"content-length: %d\r\n%b\r\n" % (length, b"".join(lines))
