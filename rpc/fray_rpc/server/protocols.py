"""The protocols of connections: batches of pickled calls from Python, and calls in JSON from any language.

A client that speaks JSON has one call at a time on each connection; calls and replies are sealed like all others.

    POST /v1/actors/<name>/methods/<method>    fray-seal, {"args": [...], "kwargs": {...}}
                                               ->  200  fray-seal, {"result": ...} or {"error": {...}}

**Invariant.** A JSON message is never unpickled.
**Unsafe sequence.** An attacker between the two sides sends a message that was sealed as JSON where pickled calls are
read.
**Why this cannot happen.** The client's proof names the protocol of the connection, and no seal of a JSON message fits
a batch of pickled calls (`SealSequence.next_json`).
"""

import secrets
import socket
from urllib.parse import unquote_to_bytes

from fray_layouts.errors import Malformed
from fray_rpc.errors import BadMessage, NoSuchActor, NotAuthentic, ResultLost
from fray_rpc.wire.http_connection import BodyReader, HttpConnection, HttpMessage
from fray_rpc.wire.json_codec import JSON, MAX_JSON_BODY, error_as_json, parse_call
from fray_rpc.wire.messages import CallBatch, CallId, Reply, ReplyKind, Request, decode_calls, encode_replies
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.serialization import Payload
from fray_rpc.wire.session import SealSequence, constant_time_equal

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nfray-seal: %b\r\n\r\n"


class JsonProtocol(HttpConnection):
    """The server's end of a connection; see `connection.WireProtocol`."""

    def __init__(self, sock: socket.socket, incoming: SealSequence, outgoing: SealSequence) -> None:
        super().__init__(sock, requests=True, max_body=MAX_JSON_BODY)
        self._incoming = incoming
        self._outgoing = outgoing
        self._anonymous = f"json:{secrets.token_hex(8)}"  # the client of calls without an id of their own
        self._client = ""
        self._number = 0
        self._path: bytes | None = None  # path of the request that is not answered yet
        self._problem = ""  # why that request is not a call

    @property
    def may_reconnect(self) -> bool:
        return self._client not in ("", self._anonymous)

    def receive(self) -> CallBatch | None:
        message = self._next()
        if message is None:
            return None
        if self._path is not None:
            raise BadMessage("a call came before the reply to the previous one; open a connection for each")
        body = self._body(message)
        self._path = message.path
        try:
            call = self._call(message.path, body)
            return CallBatch(call.id.client, call.id.sequence, True, [call], [])
        except Malformed as error:
            self._problem = str(error)
            return CallBatch(self._client, 0, False, [], [])

    def send(self, client: str, replies: list[Reply]) -> None:
        if not replies:
            self._answer(b"error", error_as_json("InvalidInput", self._problem))
            return
        (reply,) = replies
        match reply.kind:
            case ReplyKind.VALUE:
                self._answer(b"result", reply.payload)
            case ReplyKind.ERROR:
                self._answer(b"error", reply.payload)
            case ReplyKind.NO_SUCH_ACTOR:
                self._answer(b"error", error_as_json("NoSuchActor", str(NoSuchActor()), retry=True))
            case _:
                self._answer(b"error", error_as_json("ResultLost", str(ResultLost())))

    def _body(self, message: HttpMessage) -> bytes:
        """The whole body of a message. Raises NotAuthentic: its seal is wrong."""
        body = message.body
        if len(body) < message.length:
            body = bytes(BodyReader(self.sock, body).read(bytearray(message.length)))
        if not constant_time_equal(
            message.headers.get(b"fray-seal", b""), self._incoming.next_json(message.path, body)
        ):
            raise NotAuthentic("the seal of a call in JSON is wrong")
        return body

    def _call(self, path: bytes, body: bytes) -> Request:
        actor_id, method = parse_path(path)
        call = parse_call(body)
        client = f"json:{call.client}" if call.client else self._anonymous
        if self._client not in ("", client):
            raise Malformed("the call: all calls of a connection have one client; open another connection")
        self._client = client
        self._number += 1
        return Request(CallId(client, call.number or self._number), actor_id, method, Payload(body), codec=JSON)

    def _answer(self, field: bytes, payload: Payload) -> None:
        assert self._path is not None, "a request waits for this reply"
        path, self._path = self._path, None  # before sending: with the reply, the client may send its next call
        body = b'{"%b":%b}' % (field, payload.data)
        self.sock.sendall(_HEAD % (len(body), self._outgoing.next_json(path, body)) + body)


def parse_path(path: bytes) -> tuple[str, str]:
    """The names of the actor and the method in a path. Raises Malformed: it has none."""
    match path.split(b"/"):
        case [b"", b"v1", b"actors", name, b"methods", method] if name and method:
            return _text(name), _text(method)
    raise Malformed(f"there is nothing at {path[:200]!r}; calls go to /v1/actors/<name>/methods/<method>")


def _text(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Malformed(f"{segment[:200]!r} in the path is not UTF-8") from None


class PickleProtocol:
    """The server's end of a sealed connection; see `connection.WireProtocol`."""

    may_reconnect = True

    def __init__(self, connection: SealedConnection) -> None:
        self._connection = connection

    def receive(self) -> CallBatch | None:
        parts = self._connection.receive()
        return None if parts is None else decode_calls(parts)

    def send(self, client: str, replies: list[Reply]) -> None:
        self._connection.send(encode_replies(client, replies))

    def close(self) -> None:
        self._connection.close()

    def abandon(self) -> None:
        self._connection.abandon()
