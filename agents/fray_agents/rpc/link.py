"""One authenticated connection: sealed messages made of parts, in order.

A body is a count, the sizes of the parts, and the parts. The seal of a small message, in its head, covers all of it.
The head of a large one carries a seal over the length, so that memory is only taken for a length that a holder of the
key wrote; the seal over its body comes behind it, so that both sides compute it while the body is under way.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fray_agents.rpc.errors import BadMessage, NotAuthentic
from fray_agents.rpc.framing import LARGE, RECEIVE, Framing, Message
from fray_agents.rpc.serial import Buffer
from fray_agents.rpc.session import SEAL_BYTES, Seals, same

if TYPE_CHECKING:
    from fray_agents.rpc.tls import TlsSocket

MAX_BODY = 4 * 2**30
"""Bytes; the largest message."""

PIECE = 256 * 1024  # of a large body: sent and sealed in turn, while the other side receives and checks the one before
STALLED = 30.0  # seconds; who has begun a message goes on within this time
_COUNT = struct.Struct("<I")

Space = TypeVar("Space", bytearray, memoryview)


class Link:
    """A socket after the handshake.

    Args:
        requests: whether requests come in (on the server), or responses.
        incoming, outgoing: the seals of both directions.
    """

    def __init__(self, sock: socket.socket, requests: bool, incoming: Seals, outgoing: Seals) -> None:
        self.sock: Plain | TlsSocket = _ready(sock)
        self._framing = Framing(requests, MAX_BODY)
        self._incoming = incoming
        self._outgoing = outgoing
        self._start = b"HTTP/1.1 200 OK\r\n" if requests else b"POST /calls HTTP/1.1\r\nhost: actor\r\n"

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message; never from two threads at once.

        Raises:
            OSError: the connection is broken.
        """
        prefix = struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts))
        length = len(prefix) + sum(map(len, parts))
        if length <= LARGE - SEAL_BYTES:
            body = b"".join((prefix, *parts))
            self.sock.sendall(self._head(length, body) + body)
        else:
            self._send_large(prefix, parts, length)

    def readable(self, seconds: float) -> bool:
        """Wait until a message, or part of one, is there; whether it is."""
        return self._framing.waiting or self.sock.readable(seconds)

    def receive(self) -> list[Buffer] | None:
        """The parts of the next message; None when the other side has closed.

        Raises:
            BadMessage, NotAuthentic: the connection must be closed.
            OSError: it is broken.
        """
        while (message := self._framing.next()) is None:
            if not (data := self._more()):
                return None
            self._framing.feed(data)
        return self._large(message) if message.length > LARGE else self._small(message)

    def close(self) -> None:
        """Wake whoever waits in `send` or `receive`, and close."""
        with contextlib.suppress(OSError):  # it was not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _head(self, length: int, body: bytes) -> bytes:
        seal = self._outgoing.next(length.to_bytes(8, "big") + body)
        return b"%bcontent-length: %d\r\nfray-seal: %b\r\n\r\n" % (self._start, length, seal)

    def _send_large(self, prefix: bytes, parts: Sequence[Buffer], length: int) -> None:
        head = self._head(length + SEAL_BYTES, b"")
        seal = self._outgoing.body()
        self.sock.sendall(head + prefix)
        seal.update(prefix)
        for part in parts:
            view = memoryview(part)
            for begin in range(0, len(view), PIECE):
                piece = view[begin : begin + PIECE]
                self.sock.sendall(piece)
                seal.update(piece)
        self.sock.sendall(seal.digest())

    def _more(self) -> bytes:
        while True:
            try:
                return self.sock.recv(RECEIVE)
            except BlockingIOError:  # nothing came for long
                if self._framing.begun:
                    raise BadMessage(f"a message stood still for {STALLED:.0f} s") from None

    def _small(self, message: Message) -> list[Buffer]:
        body = message.body
        self._check(message, len(body), body)
        if len(body) < _COUNT.size:
            raise BadMessage("a body without parts")
        view = memoryview(body)
        begin, sizes = self._sizes(view, len(body))
        parts: list[Buffer] = []
        for size in sizes:  # the first is a pickle; arrays will use the memory of the others, and must be able to write
            part = view[begin : begin + size]
            parts.append(bytearray(part) if parts else part)
            begin += size
        return parts

    def _large(self, message: Message) -> list[Buffer]:
        self._check(message, message.length, b"")
        return self._large_parts(_Incoming(self.sock, message.body), message.length - SEAL_BYTES)

    def _large_parts(self, incoming: _Incoming, length: int) -> list[Buffer]:
        seal = self._incoming.body()
        count = incoming.read(bytearray(_COUNT.size))
        table_size = _COUNT.unpack(count)[0] * 8
        if _COUNT.size + table_size > length:
            raise BadMessage("more parts than bytes")
        prefix = count + incoming.read(bytearray(table_size))
        seal.update(prefix)
        _, sizes = self._sizes(memoryview(prefix), length)
        parts: list[Buffer] = [bytearray(size) for size in sizes]
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), PIECE):
                seal.update(incoming.read(view[at : at + PIECE]))
        if not same(bytes(incoming.read(bytearray(SEAL_BYTES))), seal.digest()):
            raise NotAuthentic("the seal of a body is wrong")
        return parts

    def _sizes(self, view: memoryview, length: int) -> tuple[int, tuple[int, ...]]:
        """Where the parts begin, and their sizes, which add up to `length`."""
        (count,) = _COUNT.unpack_from(view)
        begin = _COUNT.size + 8 * count
        if begin > len(view):
            raise BadMessage("more parts than bytes")
        sizes = struct.unpack_from(f"<{count}Q", view, _COUNT.size)
        if begin + sum(sizes) != length or not sizes:
            raise BadMessage("the sizes of the parts do not add up")
        return begin, sizes

    def _check(self, message: Message, length: int, body: bytes) -> None:
        expected = self._incoming.next(length.to_bytes(8, "big") + body)
        if not same(message.headers.get(b"fray-seal", b""), expected):
            raise NotAuthentic("the seal of a message is wrong")


class _Incoming:
    """A large body: what the parser had of it, then the socket."""

    def __init__(self, sock: Plain | TlsSocket, had: bytes) -> None:
        self._sock = sock
        self._had = memoryview(had)

    def read(self, target: Space) -> Space:
        """Fill `target`."""
        view = memoryview(target)
        begun = min(len(self._had), len(view))
        view[:begun] = self._had[:begun]
        self._had = self._had[begun:]
        while begun < len(view):
            if not (count := self._sock.recv_into(view[begun:])):
                raise ConnectionResetError("closed within a message")
            begun += count
        return target


class Plain(socket.socket):
    """A socket that blocks, but for no longer than `STALLED`."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        stalled = struct.pack("@ll", int(STALLED), 0)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stalled)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stalled)
        self.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)

    def readable(self, seconds: float) -> bool:
        """Whether something to read comes within that time."""
        return bool(self._poll.poll(max(seconds, 0) * 1000))


def _ready(sock: socket.socket) -> Plain | TlsSocket:
    if not hasattr(sock, "pending"):
        return Plain(sock)
    from fray_agents.rpc.tls import TlsSocket

    return TlsSocket(sock, STALLED)  # type: ignore[arg-type]  # what has `pending` is an SSLSocket
