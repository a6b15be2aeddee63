"""One authenticated connection: sealed messages made of parts, in order.

A body is a count, the sizes of the parts, and the parts. The seal of a small message, in its head, covers all of it.
The head of a large one carries a seal over the length, so that memory is only taken for a length that a holder of the
key wrote; the seal over its body comes behind it, so that both sides compute it while the body is under way.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fray_agents.rpc.errors import BadMessage, NotAuthentic
from fray_agents.rpc.wire.buffers import Buffer, buffer_pool
from fray_agents.rpc.wire.framing import (
    LARGE_BODY,
    RECEIVE_BYTES,
    HttpMessage,
    MessageParser,
)
from fray_agents.rpc.wire.session import BODY_SEAL_BYTES, SealSequence, constant_time_equal
from fray_agents.rpc.wire.shared_memory import (
    MAX_DESCRIPTORS,
    MIN_SHARED_BYTES,
    SegmentReceiver,
    SegmentSender,
    is_available,
)

if TYPE_CHECKING:
    from fray_agents.rpc.wire.tls import TlsSocket

MAX_BODY = 4 * 2**30
"""Bytes; the largest message."""

CHUNK = 256 * 1024  # of a large body: sent and sealed in turn, while the other side receives and checks the one before
STALL_TIMEOUT = 30.0  # seconds; who has begun a message goes on within this time
_SHARED_FLAG = 1 << 63  # in the size of a part: it is a reference to shared memory
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_COUNT = struct.Struct("<I")

Space = TypeVar("Space", bytearray, memoryview)


class HttpConnection:
    """HTTP messages of a socket after the handshake; see `MessageParser`."""

    def __init__(self, sock: socket.socket, requests: bool, max_body: int) -> None:
        self.sock: PlainSocket | TlsSocket = _with_timeouts(sock)
        self._framing = MessageParser(requests, max_body)

    def close(self) -> None:
        """Wake whoever waits for the socket, and close."""
        with contextlib.suppress(OSError):  # it was not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def abandon(self) -> None:
        """In the child of a fork: close the socket, with which the parent goes on."""
        self.sock.close()

    def readable(self, seconds: float) -> bool:
        """Wait until a message, or part of one, is there; whether it is."""
        return self._framing.waiting or self.sock.readable(seconds)

    def _next(self) -> HttpMessage | None:
        """The next message, of a large one the head; None when the other side has closed."""
        while (message := self._framing.next()) is None:
            if not (data := self._more()):
                return None
            self._framing.feed(data)
        return message

    def _more(self) -> bytes:
        while True:
            try:
                return self._receive()
            except BlockingIOError:  # nothing came for long
                if self._framing.begun:
                    raise BadMessage(f"a message stood still for {STALL_TIMEOUT:.0f} s") from None

    def _receive(self) -> bytes:
        return self.sock.recv(RECEIVE_BYTES)


class SealedConnection(HttpConnection):
    """Sealed messages made of parts.

    Args:
        requests: whether requests come in (on the server), or responses.
        incoming, outgoing: the seals of both directions.
    """

    def __init__(self, sock: socket.socket, requests: bool, incoming: SealSequence, outgoing: SealSequence) -> None:
        super().__init__(sock, requests, MAX_BODY)
        shares = self.sock.family == socket.AF_UNIX and is_available()
        self._lender = SegmentSender() if shares else None
        self._borrower = SegmentReceiver() if shares else None
        self._incoming = incoming
        self._outgoing = outgoing
        self._start = b"HTTP/1.1 200 OK\r\n" if requests else b"POST /calls HTTP/1.1\r\nhost: actor\r\n"

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message; never from two threads at once.

        Raises:
            OSError: the connection is broken.
        """
        sizes = [len(part) for part in parts]
        if self._lender is not None and max(sizes) >= MIN_SHARED_BYTES:
            parts, sizes = self._share(self._lender, parts, sizes)
        prefix = struct.pack(f"<I{len(parts)}Q", len(parts), *sizes)
        length = len(prefix) + sum(map(len, parts))
        if length > LARGE_BODY - BODY_SEAL_BYTES:
            self._send_large(prefix, parts, length)
            return
        body = b"".join((prefix, *parts))
        self._send_head(self._head(length, body) + body)

    def receive(self) -> list[Buffer] | None:
        """The parts of the next message; None when the other side has closed.

        Raises:
            BadMessage, NotAuthentic: the connection must be closed.
            OSError: it is broken.
        """
        message = self._next()
        if message is None:
            return None
        return self._large(message) if message.length > LARGE_BODY else self._small(message)

    def _share(
        self, lender: SegmentSender, parts: Sequence[Buffer], sizes: list[int]
    ) -> tuple[Sequence[Buffer], list[int]]:
        """Put large parts into shared memory; what is sent for them is marked in its size."""
        parts = list(parts)
        for number, part in enumerate(parts[1:], 1):
            if sizes[number] >= MIN_SHARED_BYTES and (reference := lender.lend(part)) is not None:
                parts[number], sizes[number] = reference, len(reference) | _SHARED_FLAG
        return parts, sizes

    def _send_head(self, data: bytes) -> None:
        descriptors = self._lender.fresh() if self._lender is not None else []
        if descriptors:
            assert isinstance(self.sock, PlainSocket)
            sent = socket.send_fds(self.sock, [data], descriptors)
            data = data[sent:]
            for descriptor in descriptors:
                os.close(descriptor)
        self.sock.sendall(data)

    def _head(self, length: int, body: bytes) -> bytes:
        seal = self._outgoing.next(length.to_bytes(8, "big") + body)
        return b"%bcontent-length: %d\r\nfray-seal: %b\r\n\r\n" % (self._start, length, seal)

    def _send_large(self, prefix: bytes, parts: Sequence[Buffer], length: int) -> None:
        head = self._head(length + BODY_SEAL_BYTES, b"")
        seal = self._outgoing.body()
        self._send_head(head + prefix)
        seal.update(prefix)
        for part in parts:
            view = memoryview(part)
            for begin in range(0, len(view), CHUNK):
                piece = view[begin : begin + CHUNK]
                self.sock.sendall(piece)
                seal.update(piece)
        self.sock.sendall(seal.digest())

    def _receive(self) -> bytes:
        if self._borrower is None:
            return super()._receive()
        assert isinstance(self.sock, PlainSocket)
        data, descriptors, _, _ = socket.recv_fds(self.sock, RECEIVE_BYTES, MAX_DESCRIPTORS, _CLOSE_ON_EXEC)
        if descriptors:
            self._borrower.learn(descriptors)
        return data

    def _small(self, message: HttpMessage) -> list[Buffer]:
        body = message.body
        self._check(message, len(body), body)
        if len(body) < _COUNT.size:
            raise BadMessage("a body without parts")
        view = memoryview(body)
        begin, sizes = self._sizes(view, len(body))
        parts: list[Buffer] = []
        for size in sizes:  # the first is a pickle; arrays will use the memory of the others, and must be able to write
            end = begin + (size & ~_SHARED_FLAG)
            part = view[begin:end]
            parts.append((self._own(part, size)) if parts else part)
            begin = end
        return parts

    def _own(self, part: Buffer, size: int) -> Buffer:
        """The part itself, or what it refers to."""
        if not size & _SHARED_FLAG:
            return bytearray(part)
        if self._borrower is None:
            raise BadMessage("shared memory over a connection that cannot carry it")
        return self._borrower.take(part)

    def _large(self, message: HttpMessage) -> list[Buffer]:
        self._check(message, message.length, b"")
        return self._large_parts(BodyReader(self.sock, message.body), message.length - BODY_SEAL_BYTES)

    def _large_parts(self, incoming: BodyReader, length: int) -> list[Buffer]:
        seal = self._incoming.body()
        count = incoming.read(bytearray(_COUNT.size))
        table_size = _COUNT.unpack(count)[0] * 8
        if _COUNT.size + table_size > length:
            raise BadMessage("more parts than bytes")
        prefix = count + incoming.read(bytearray(table_size))
        seal.update(prefix)
        _, sizes = self._sizes(memoryview(prefix), length)
        parts: list[Buffer] = [buffer_pool().take(size & ~_SHARED_FLAG) for size in sizes]
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), CHUNK):
                seal.update(incoming.read(view[at : at + CHUNK]))
        if not constant_time_equal(bytes(incoming.read(bytearray(BODY_SEAL_BYTES))), seal.digest()):
            raise NotAuthentic("the seal of a body is wrong")
        return [self._own(part, size) if size & _SHARED_FLAG else part for part, size in zip(parts, sizes, strict=True)]

    def _sizes(self, view: memoryview, length: int) -> tuple[int, tuple[int, ...]]:
        """Where the parts begin, and their sizes, which add up to `length`."""
        (count,) = _COUNT.unpack_from(view)
        begin = _COUNT.size + 8 * count
        if begin > len(view):
            raise BadMessage("more parts than bytes")
        sizes = struct.unpack_from(f"<{count}Q", view, _COUNT.size)
        if begin + sum(size & ~_SHARED_FLAG for size in sizes) != length or not sizes:
            raise BadMessage("the sizes of the parts do not add up")
        return begin, sizes

    def _check(self, message: HttpMessage, length: int, body: bytes) -> None:
        expected = self._incoming.next(length.to_bytes(8, "big") + body)
        if not constant_time_equal(message.headers.get(b"fray-seal", b""), expected):
            raise NotAuthentic("the seal of a message is wrong")


class BodyReader:
    """A large body: what the parser had of it, then the socket."""

    def __init__(self, sock: PlainSocket | TlsSocket, had: bytes) -> None:
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


class PlainSocket(socket.socket):
    """A socket that blocks, but for no longer than `STALL_TIMEOUT`."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        stalled = struct.pack("@ll", int(STALL_TIMEOUT), 0)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stalled)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stalled)
        self.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self, select.POLLIN)

    def readable(self, seconds: float) -> bool:
        """Whether something to read comes within that time."""
        return bool(self._poll.poll(max(seconds, 0) * 1000))


def _with_timeouts(sock: socket.socket) -> PlainSocket | TlsSocket:
    if not hasattr(sock, "pending"):
        return PlainSocket(sock)
    from fray_agents.rpc.wire.tls import TlsSocket

    return TlsSocket(sock, STALL_TIMEOUT)  # type: ignore[arg-type]  # what has `pending` is an SSLSocket
