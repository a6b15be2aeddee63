"""HTTP/1.1 messages over a socket, after the handshake: the socket's options, the parser, and the connection.

Only a Content-Length says where a message ends: httptools refuses a second one, and this module refuses transfer
encodings. Only the start of a large body goes through the parser; the rest is read directly to its destination.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

from fray_rpc.errors import BadMessage

if TYPE_CHECKING:
    from fray_rpc.wire.tls import TlsSocket


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
    from fray_rpc.wire.tls import TlsSocket

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


LARGE_BODY = 64 * 1024
"""Bytes above which a body is large: its length is then authenticated before memory is allocated for it."""

RECEIVE_BYTES = LARGE_BODY
"""Most bytes of one read: never more than a large body has, so that a read cannot reach beyond the body."""

MAX_HEAD = 8 * 1024
"""Most bytes of a head; those of this protocol have some 300."""

MAX_HEADERS = 64
"""Most headers of a message; this protocol needs five, and HTTP libraries add some ten. In memory a header takes up to
thirty times its bytes, so the size of the head alone would not bound what a stranger costs."""


class HttpMessage:
    """A request or a response; a large one, with more than `LARGE_BODY` bytes, has only the start of its body."""

    __slots__ = ("body", "headers", "length", "path", "status")

    def __init__(self) -> None:
        self.path = b""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.length = 0
        self.body = b""


class MessageParser:
    """Turns bytes into messages, in order.

    Args:
        requests: parse requests; otherwise responses.
        max_body: most bytes of a body; a longer one is refused as soon as its length is known.
    """

    def __init__(self, requests: bool, max_body: int) -> None:
        self._parser_type = HttpRequestParser if requests else HttpResponseParser
        self._max_body = max_body
        self._ready: deque[HttpMessage] = deque()
        self._restart()

    def next(self) -> HttpMessage | None:
        """The next message that is complete, or that has a complete head and a large body."""
        return self._ready.popleft() if self._ready else None

    @property
    def waiting(self) -> bool:
        return bool(self._ready)

    @property
    def begun(self) -> bool:
        return self._message is not None

    def feed(self, data: bytes) -> None:
        """Parse at most `RECEIVE_BYTES` bytes.

        Raises BadMessage: this is not HTTP, or not a message of this protocol.
        """
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, BadMessage):
                raise error.__context__ from None
            raise BadMessage(f"not a message of this protocol: {error}") from None
        message = self._message
        if message is None:
            return
        if not self._head_complete:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD + RECEIVE_BYTES:
                raise BadMessage(f"a head of more than {MAX_HEAD} bytes")
        elif message.length > LARGE_BODY:
            message.body = b"".join(self._body)
            self._ready.append(message)
            self._restart()

    def _restart(self) -> None:
        self._parser = self._parser_type(self)
        self._message: HttpMessage | None = None
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._head_complete = False

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self._message = HttpMessage()
        self._head_bytes = 0
        self._head_complete = False

    def on_url(self, url: bytes) -> None:
        assert self._message is not None
        self._message.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._message is not None
        name = name.lower()
        if name == b"content-length":
            self._message.length = int(value)
        elif name == b"transfer-encoding":
            raise BadMessage("a transfer encoding is not accepted; send a Content-Length")
        elif len(self._message.headers) == MAX_HEADERS:
            raise BadMessage(f"more than {MAX_HEADERS} headers")
        else:
            self._message.headers[name] = value

    def on_headers_complete(self) -> None:
        assert self._message is not None
        self._head_complete = True
        if self._message.length > self._max_body:
            raise BadMessage(f"a body of {self._message.length} bytes; at most {self._max_body} are accepted")
        if isinstance(self._parser, HttpResponseParser):
            self._message.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._message is not None
        self._message.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._ready.append(self._message)
        self._message = None
        self._body = []


Space = TypeVar("Space", bytearray, memoryview)


class HttpConnection:
    """A connection that carries HTTP messages.

    requests, max_body: for the incoming messages; see `MessageParser`.
    """

    def __init__(self, sock: socket.socket, requests: bool, max_body: int) -> None:
        self.sock: PlainSocket | TlsSocket = with_timeouts(sock)
        self._parser = MessageParser(requests, max_body)

    def close(self) -> None:
        """Wake threads that wait for the socket, and close it."""
        with contextlib.suppress(OSError):  # it was no longer connected
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def abandon(self) -> None:
        """In the child of a fork: close the socket, which the parent still uses."""
        self.sock.close()

    def readable(self, seconds: float) -> bool:
        """Whether a message, or a part of one, arrives within `seconds`."""
        return self._parser.waiting or self.sock.readable(seconds)

    def _next(self) -> HttpMessage | None:
        """The next message, a large one with the start of its body; None if the other side has closed."""
        while (message := self._parser.next()) is None:
            if not (data := self._more()):
                return None
            self._parser.feed(data)
        return message

    def _more(self) -> bytes:
        while True:
            try:
                return self._receive()
            except BlockingIOError:  # nothing arrived within `STALL_TIMEOUT`
                if self._parser.begun:
                    raise BadMessage(f"a message did not continue for {STALL_TIMEOUT:.0f} s") from None

    def _receive(self) -> bytes:
        return self.sock.recv(RECEIVE_BYTES)


class BodyReader:
    """Reads a large body: first the bytes that the parser already has, then from the socket."""

    def __init__(self, sock: PlainSocket | TlsSocket, had: bytes) -> None:
        self._sock = sock
        self._had = memoryview(had)

    def read(self, target: Space) -> Space:
        """Fill `target` with the next bytes. Raises ConnectionResetError: the other side has closed."""
        view = memoryview(target)
        begun = min(len(self._had), len(view))
        view[:begun] = self._had[:begun]
        self._had = self._had[begun:]
        while begun < len(view):
            if not (count := self._sock.recv_into(view[begun:])):
                raise ConnectionResetError("closed within a message")
            begun += count
        return target
