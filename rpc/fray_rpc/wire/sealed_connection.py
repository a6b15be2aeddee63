"""An authenticated connection that carries sealed messages made of parts, in order.

A body is a count, the sizes of the parts, and the parts. The seal of a small message is in its head and covers all of
it. The head of a large message has a seal over its length, so that memory is allocated only for a length that a
holder of the key wrote. The seal over its body follows the body, so that both sides compute it during the transfer.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from fray_rpc.errors import BadMessage, NotAuthentic
from fray_rpc.wire.buffers import Buffer, buffer_pool
from fray_rpc.wire.http_connection import (
    LARGE_BODY,
    RECEIVE_BYTES,
    BodyReader,
    HttpConnection,
    HttpMessage,
    PlainSocket,
)
from fray_rpc.wire.session import BODY_SEAL_BYTES, SealSequence, constant_time_equal
from fray_rpc.wire.shared_memory import (
    MAX_DESCRIPTORS,
    MIN_SHARED_BYTES,
    SegmentReceiver,
    SegmentSender,
    is_available,
)

MAX_BODY = 4 * 2**30
"""Most bytes of a message: it bounds the memory that a caller can make a server allocate at once."""

CHUNK = 256 * 1024
"""Bytes of a large body that are sent and sealed at a time, while the other side receives and checks earlier ones."""

_SHARED_FLAG = 1 << 63
"""Bit in the size of a part that says that the part is a reference to shared memory."""

_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_COUNT = struct.Struct("<I")


class SealedConnection(HttpConnection):
    """A connection after the handshake, on either side.

    Args:
        requests: requests come in, as on the server; otherwise responses.
        incoming, outgoing: the seals of the two directions.
    """

    def __init__(self, sock: socket.socket, requests: bool, incoming: SealSequence, outgoing: SealSequence) -> None:
        super().__init__(sock, requests, MAX_BODY)
        self._segment_sender: SegmentSender | None = None
        self._segment_receiver: SegmentReceiver | None = None
        if isinstance(self.sock, PlainSocket) and self.sock.family == socket.AF_UNIX and is_available():
            self._segment_sender = SegmentSender()
            self._segment_receiver = SegmentReceiver(self.sock.fileno())
        self._incoming = incoming
        self._outgoing = outgoing
        self._start = b"HTTP/1.1 200 OK\r\n" if requests else b"POST /calls HTTP/1.1\r\nhost: actor\r\n"

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message; two threads must not call this at once. Raises OSError: the connection is broken."""
        sizes = [len(part) for part in parts]
        if self._segment_sender is not None and max(sizes) >= MIN_SHARED_BYTES:
            parts, sizes = self._share(self._segment_sender, parts, sizes)
        prefix = struct.pack(f"<I{len(parts)}Q", len(parts), *sizes)
        length = len(prefix) + sum(map(len, parts))
        if length > LARGE_BODY - BODY_SEAL_BYTES:
            self._send_large(prefix, parts, length)
        else:
            body = b"".join((prefix, *parts))
            self._send_head(self._head(length, body) + body)
        if self._segment_sender is not None:
            self._segment_sender.finish()

    def receive(self) -> list[Buffer] | None:
        """The parts of the next message; None if the other side has closed.

        Raises:
            BadMessage, NotAuthentic: the message violates the protocol or its seal; the connection must be closed.
            OSError: the connection is broken.
        """
        message = self._next()
        if message is None:
            return None
        return self._large(message) if message.length > LARGE_BODY else self._small(message)

    def _share(
        self, sender: SegmentSender, parts: Sequence[Buffer], sizes: list[int]
    ) -> tuple[Sequence[Buffer], list[int]]:
        """The parts and their sizes, with large ones moved to shared memory; sizes mark references to it."""
        parts = list(parts)
        for number, part in enumerate(parts[1:], 1):
            if sizes[number] >= MIN_SHARED_BYTES and (reference := sender.send(part)) is not None:
                parts[number], sizes[number] = reference, len(reference) | _SHARED_FLAG
        return parts, sizes

    def _send_head(self, data: bytes) -> None:
        descriptors = self._segment_sender.new_descriptors() if self._segment_sender is not None else []
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
        if self._segment_receiver is None:
            return super()._receive()
        assert isinstance(self.sock, PlainSocket)
        data, descriptors, _, _ = socket.recv_fds(self.sock, RECEIVE_BYTES, MAX_DESCRIPTORS, _CLOSE_ON_EXEC)
        if descriptors:
            self._segment_receiver.add(descriptors)
        return data

    def _small(self, message: HttpMessage) -> list[Buffer]:
        body = message.body
        self._check(message, len(body), body)
        if len(body) < _COUNT.size:
            raise BadMessage("a body without parts")
        view = memoryview(body)
        begin, sizes = self._sizes(view, len(body))
        parts: list[Buffer] = []
        for size in sizes:  # the first is a pickle; arrays will use the memory of the others, so it must be writable
            end = begin + (size & ~_SHARED_FLAG)
            part = view[begin:end]
            parts.append((self._contents(part, size)) if parts else part)
            begin = end
        return parts

    def _contents(self, part: Buffer, size: int) -> Buffer:
        """A copy of a part, or the buffer in shared memory to which it refers."""
        if not size & _SHARED_FLAG:
            return bytearray(part)
        if self._segment_receiver is None:
            raise BadMessage("shared memory over a connection that cannot carry it")
        return self._segment_receiver.take(part)

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
        return [
            self._contents(part, size) if size & _SHARED_FLAG else part for part, size in zip(parts, sizes, strict=True)
        ]

    def _sizes(self, view: memoryview, length: int) -> tuple[int, tuple[int, ...]]:
        """The position of the first part, and all sizes. Raises BadMessage: they do not add up to `length`."""
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
