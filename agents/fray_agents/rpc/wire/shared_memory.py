"""Large buffers between processes of one host, through shared memory instead of the socket.

The sender copies a buffer into a segment. The receiver copies it out and returns the segment. A large buffer is copied
in pieces: the first piece before its message is sent; then, while the sender copies a piece, the receiver copies the
piece before it. Segments are reused, because the first touch of fresh memory costs more than the copy. No array ever
uses the memory of a segment, so no array changes when a segment is reused. Segments have no names: their descriptors
are sent through the Unix socket, each with that of an eventfd(2), which counts the pieces. The kernel frees both when
both processes are gone, however they ended. The content of a segment is not sealed with the connection's keys: only a
process that was given the descriptor can reach it.

**Invariant.** A mapped segment never shrinks.
**Unsafe sequence.** Its sender truncates it while the receiver copies, and the kernel kills the receiver with SIGBUS.
**Why this cannot happen.** Senders seal the size (fcntl(2), F_SEAL_SHRINK) before they send the descriptor. Such a seal
cannot be removed, and a receiver does not map a segment whose size is not sealed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
from typing import NamedTuple

from fray_agents.rpc.errors import BadMessage
from fray_agents.rpc.wire.buffers import Buffer, buffer_pool
from fray_agents.rpc.wire.sockets import STALL_TIMEOUT

MIN_SHARED_BYTES = 128 * 1024
"""Bytes from which a buffer goes through shared memory: those for which the receiver pools memory, see `buffers`."""

MAX_SHARED_BYTES = 256 * 2**20
"""Most bytes that one side of a connection may have in segments; beyond that the socket is used."""

PIECE_BYTES = 2**20
"""Bytes of a piece, after which the receiver may copy it.

From about this size on, glibc copies past the processor's caches. Copies of smaller pieces take longer, because the
other core has to fetch each line from this core's cache. Larger pieces delay the receiver's first copy.
"""

MAX_DESCRIPTORS = 32
"""Most descriptors in one message, two for each new segment; the kernel allows 253 (unix(7))."""

REQUIRED_SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)

_SEGMENT_GRAIN = 2**20
"""Sizes of segments are multiples of this, so that buffers of similar sizes can use the same ones."""

_DATA_OFFSET = 64
"""Position of the buffer in its segment. The segment's first byte is 1 while the receiver has it."""

_REFERENCE = struct.Struct("<IQ")
"""A reference: the number of a segment, and the bytes of the buffer in it."""


class _PieceCounter:
    """An eventfd with the number of pieces in a segment that were not read yet; closed with its last user."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class _Segment(NamedTuple):
    memory: mmap.mmap
    pieces: _PieceCounter


class SegmentSender:
    """The segments that this side of a connection has created."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._unfinished: list[tuple[_Segment, memoryview]] = []
        self._new: list[int] = []
        self._bytes = 0

    def send(self, buffer: Buffer) -> bytes | None:
        """Copy the first piece of `buffer` into a segment; returns the reference for `SegmentReceiver.take`.

        Call `finish` once the reference is sent. None: no segment is available, use the socket.
        """
        size = len(buffer)
        number = self._free(size + _DATA_OFFSET)
        if number is None:
            number = self._make(size + _DATA_OFFSET)
        if number is None:
            return None
        segment, view = self._segments[number], memoryview(buffer)
        _write(segment, view, 0)
        segment.memory[0] = 1
        if size > PIECE_BYTES:
            self._unfinished.append((segment, view))
        return _REFERENCE.pack(number, size)

    def finish(self) -> None:
        """Copy the remaining pieces of the buffers that were sent."""
        unfinished, self._unfinished = self._unfinished, []
        for segment, view in unfinished:
            for begin in range(PIECE_BYTES, len(view), PIECE_BYTES):
                _write(segment, view, begin)
                os.eventfd_write(segment.pieces.descriptor, 1)

    def new_descriptors(self) -> list[int]:
        """Descriptors of segments that the receiver does not know yet; the caller closes them after sending."""
        new, self._new = self._new, []
        return new

    def _free(self, size: int) -> int | None:
        """The smallest returned segment of at least `size` bytes."""
        sizes = [(len(one.memory), number) for number, one in enumerate(self._segments) if not one.memory[0]]
        return min(((has, number) for has, number in sizes if has >= size), default=(0, None))[1]

    def _make(self, size: int) -> int | None:
        size = -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        if len(self._new) >= MAX_DESCRIPTORS or self._bytes + size > MAX_SHARED_BYTES:
            return None
        descriptors = [os.memfd_create("fray-rpc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)]
        try:
            os.posix_fallocate(descriptors[0], 0, size)  # fails here, instead of with a signal at the first touch
            fcntl.fcntl(descriptors[0], fcntl.F_ADD_SEALS, REQUIRED_SEALS)
            pieces = _PieceCounter(os.eventfd(0, os.EFD_CLOEXEC))
            descriptors.append(os.dup(pieces.descriptor))
            self._segments.append(_Segment(_map(descriptors[0], size), pieces))
        except OSError:  # no memory or no descriptor is left
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        self._new += descriptors
        self._bytes += size
        return len(self._segments) - 1


class SegmentReceiver:
    """The segments that the other side of a connection has created. connection: the descriptor of its socket."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._segments: list[_Segment] = []
        self._bytes = 0

    def add(self, descriptors: list[int]) -> None:
        """Map the next segments; takes over the descriptors.

        Raises BadMessage: a segment is not one of a `SegmentSender`, or there are more than `MAX_SHARED_BYTES`.
        """
        counters = [_PieceCounter(descriptor) for descriptor in descriptors[1::2]]
        try:
            if len(descriptors) % 2:
                raise BadMessage("shared memory without a counter of its pieces")
            for descriptor, pieces in zip(descriptors[::2], counters, strict=True):
                self._segments.append(_Segment(self._checked(descriptor), pieces))
        finally:
            for descriptor in descriptors[::2]:
                os.close(descriptor)

    def _checked(self, descriptor: int) -> mmap.mmap:
        try:
            seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
            if seals & REQUIRED_SEALS != REQUIRED_SEALS or not size or size % _SEGMENT_GRAIN:
                raise BadMessage("shared memory whose size is not sealed, or is not a multiple of 1 MiB")
            self._bytes += size
            if self._bytes > MAX_SHARED_BYTES:
                raise BadMessage(f"more than {MAX_SHARED_BYTES} bytes of shared memory")
            return _map(descriptor, size)
        except OSError as error:
            if isinstance(error, BadMessage):
                raise
            raise BadMessage(f"shared memory that cannot be used: {error}") from None

    def take(self, reference: Buffer) -> memoryview:
        """A copy of the buffer for a reference of `SegmentSender.send`; returns the segment to the sender.

        Raises:
            BadMessage: no such buffer was announced, or its next piece does not arrive.
            ConnectionResetError: the sender ended before all of it was there.
        """
        if len(reference) != _REFERENCE.size:
            raise BadMessage("a reference to shared memory of the wrong size")
        number, size = _REFERENCE.unpack(reference)
        if number >= len(self._segments) or size > len(self._segments[number].memory) - _DATA_OFFSET:
            raise BadMessage("a reference to shared memory that was not announced")
        segment = self._segments[number]
        copy, have = buffer_pool().take(size), 1
        with memoryview(segment.memory)[_DATA_OFFSET : _DATA_OFFSET + size] as there:
            for piece, begin in enumerate(range(0, size, PIECE_BYTES)):
                while have <= piece:
                    have += self._wait(segment.pieces)
                copy[begin : begin + PIECE_BYTES] = there[begin : begin + PIECE_BYTES]
        segment.memory[0] = 0
        return copy

    def _wait(self, pieces: _PieceCounter) -> int:
        """Wait for further pieces; returns how many have arrived."""
        events = select.poll()
        events.register(pieces.descriptor, select.POLLIN)
        events.register(self._connection, select.POLLRDHUP)
        ready = dict(events.poll(STALL_TIMEOUT * 1000))
        if pieces.descriptor in ready:
            try:
                return os.eventfd_read(pieces.descriptor)
            except OSError as error:
                raise BadMessage(f"shared memory whose pieces cannot be counted: {error}") from None
        if ready:
            raise ConnectionResetError("closed within a buffer in shared memory")
        raise BadMessage(f"a buffer in shared memory did not continue for {STALL_TIMEOUT:.0f} s")


def is_available() -> bool:
    """Whether this system has unnamed memory whose size can be sealed, as Linux has."""
    return hasattr(os, "memfd_create") and hasattr(os, "eventfd") and REQUIRED_SEALS != 0


def _write(segment: _Segment, view: memoryview, begin: int) -> None:
    piece = view[begin : begin + PIECE_BYTES]
    segment.memory[_DATA_OFFSET + begin : _DATA_OFFSET + begin + len(piece)] = piece


def _map(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
