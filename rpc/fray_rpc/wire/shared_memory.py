"""Large buffers between processes of one host, through shared memory instead of the socket.

The sender copies a buffer into a segment. The receiver uses the segment's memory, and returns the segment when nothing
uses it any more (`buffers`). If the buffer is small, or if its buffers use much already, it copies the buffer out and
returns the segment at once. The sender copies a large buffer in pieces, the first one before its message is sent.
Meanwhile the receiver wakes up, or copies the pieces that are there. Segments are reused, because the first touch of
fresh memory costs more than the copy. Segments have no names: their descriptors are sent through the Unix socket, each
with that of an eventfd(2), which counts the pieces. The kernel frees both when both processes are gone, however they
ended. The content of a segment is not sealed with the connection's keys: only a process that was given the descriptor
can reach it.

**Invariant.** The segments of a process take a bounded part of its task's memory.
**Unsafe sequence.** The kernel charges a segment to its sender. Each of an actor's many callers keeps the arrays that
it has got, and the actor is killed for lack of memory, although it keeps nothing.
**Why this cannot happen.** All connections of a process share one budget (`budget`); what does not fit is sent through
the socket. Segments that were returned and are not used again are freed after `IDLE_SECONDS`, and when others need
room.

**Invariant.** A mapped segment never shrinks.
**Unsafe sequence.** Its sender truncates it while the receiver uses it, and the kernel kills the receiver with SIGBUS.
**Why this cannot happen.** Senders seal the size (fcntl(2), F_SEAL_SHRINK) before they send the descriptor. Such a seal
cannot be removed, and a receiver does not map a segment whose size is not sealed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import mmap
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple
from weakref import WeakSet

from fray_rpc.errors import BadMessage
from fray_rpc.wire.buffers import (
    ABANDONED,
    DATA_OFFSET,
    IN_USE,
    RETURNED,
    Buffer,
    OwnedDescriptor,
    Segment,
    borrow,
    buffer_pool,
    is_borrowed,
    within_limit,
)
from fray_rpc.wire.http_connection import STALL_TIMEOUT
from fray_rpc.wire.idle_watch import IDLE_SECONDS, IdleWatch

MIN_SHARED_BYTES = 128 * 1024
"""Bytes from which a buffer goes through shared memory: those for which a receiver that copies pools memory."""

MAX_SHARED_BYTES = 256 * 2**20
"""Most bytes that one side of a connection may have in segments; beyond that the socket is used."""

MAX_PROCESS_BYTES = 4 * MAX_SHARED_BYTES
"""The same for all connections of a process whose memory is not limited."""

PIECE_BYTES = 2**20
"""Bytes of a piece, after which the receiver may copy it.

From about this size on, glibc copies past the processor's caches. Copies of smaller pieces take longer, because the
other core has to fetch each line from this core's cache. With larger ones the receiver wakes up later.
"""

MAX_DESCRIPTORS = 32
"""Most descriptors in one message, two for each new segment; the kernel allows 253 (unix(7))."""

REQUIRED_SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)

_SEGMENT_GRAIN = 2**20
"""Sizes of segments are multiples of this, so that buffers of similar sizes can use the same ones."""

_REFERENCE = struct.Struct("<IQ")
"""A reference: the number of a segment, and the bytes of the buffer in it."""


@dataclass(slots=True)
class _SentSegment:
    memory: mmap.mmap
    pieces: OwnedDescriptor
    used_at: float


class _ReceivedSegment(NamedTuple):
    segment: Segment
    pieces: OwnedDescriptor
    """The eventfd with the number of pieces that were not read yet."""


class SegmentSender:
    """The segments that this side of a connection has created."""

    def __init__(self) -> None:
        self._segments: dict[int, _SentSegment] = {}
        self._numbers = itertools.count()
        self._unfinished: list[tuple[_SentSegment, memoryview]] = []
        self._new: list[int] = []
        _senders.add(self)

    @property
    def size(self) -> int:
        """Bytes of its segments."""
        return sum(len(one.memory) for one in self._segments.values())

    def send(self, buffer: Buffer) -> bytes | None:
        """Copy the first piece of `buffer` into a segment; returns the reference for `SegmentReceiver.take`.

        Call `finish` once the reference is sent. None: no segment is available, use the socket.
        """
        size = len(buffer)
        with _lock:
            number = self._free(size + DATA_OFFSET)
            if number is None:
                number = self._make(size + DATA_OFFSET)
            if number is None:
                return None
            segment, view = self._segments[number], memoryview(buffer)
            segment.memory[0], segment.used_at = IN_USE, time.monotonic()
        _write(segment, view, 0)
        if size > PIECE_BYTES:
            self._unfinished.append((segment, view))
        return _REFERENCE.pack(number, size)

    def finish(self) -> None:
        """Copy the remaining pieces of the buffers that were sent."""
        unfinished, self._unfinished = self._unfinished, []
        for segment, view in unfinished:
            for begin in range(PIECE_BYTES, len(view), PIECE_BYTES):
                _write(segment, view, begin)
                os.eventfd_write(segment.pieces.number, 1)

    def new_descriptors(self) -> list[int]:
        """Descriptors of segments that the receiver does not know yet; the caller closes them after sending."""
        new, self._new = self._new, []
        return new

    def _free(self, size: int) -> int | None:
        """The smallest returned segment that fits; not a much larger one, which an array that is kept would keep."""
        self._segments = {n: one for n, one in self._segments.items() if one.memory[0] != ABANDONED}
        most = max(_SEGMENT_GRAIN, 2 * size)
        sizes = [(len(one.memory), n) for n, one in self._segments.items() if one.memory[0] == RETURNED]
        return min(((has, number) for has, number in sizes if size <= has <= most), default=(0, None))[1]

    def _make(self, size: int) -> int | None:
        size = -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        if len(self._new) >= MAX_DESCRIPTORS or not self._makes_room(size):
            return None
        descriptors: list[int] = []
        try:
            descriptors.append(os.memfd_create("fray-rpc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.posix_fallocate(descriptors[0], 0, size)  # fails here, instead of with a signal at the first touch
            fcntl.fcntl(descriptors[0], fcntl.F_ADD_SEALS, REQUIRED_SEALS)
            pieces = OwnedDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            descriptors.append(os.dup(pieces.number))
            made = _SentSegment(_map(descriptors[0], size), pieces, time.monotonic())
        except OSError:  # no memory or no descriptor is left
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        self._new += descriptors
        number = next(self._numbers)  # only now: the receiver counts the segments that it gets
        self._segments[number] = made
        _watch.begin()
        return number

    def _makes_room(self, size: int) -> bool:
        """Abandon returned segments until one more of `size` bytes is within the bounds; False: they are too few."""
        others = [sender for sender in _senders if sender is not self]
        own = self.size + size - MAX_SHARED_BYTES
        total = self.size + sum(sender.size for sender in others) + size - budget()
        spare = self._spare()
        if own > spare or total > spare + sum(sender._spare() for sender in others):
            return False
        for sender in (self, *others):
            freed = sender.abandon(max(own, total) if sender is self else total)
            own, total = own - freed, total - freed
        return True

    def _spare(self) -> int:
        return sum(len(one.memory) for one in self._segments.values() if one.memory[0] == RETURNED)

    def abandon(self, wanted: float, unused_since: float = float("inf")) -> int:
        """Abandon returned segments until `wanted` bytes are free; returns how many are. `_lock` must be held."""
        freed = 0
        for number, one in list(self._segments.items()):
            if freed < wanted and one.memory[0] == RETURNED and one.used_at <= unused_since:
                one.memory[0] = ABANDONED
                freed += len(one.memory)
                del self._segments[number]
                with contextlib.suppress(OSError):  # else its memory is free once its receiver forgets it, too
                    one.memory.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE, len(one.memory) - mmap.PAGESIZE)
        return freed


@functools.cache
def budget() -> int:
    """Most bytes of the segments that this process has created."""
    return within_limit(MAX_PROCESS_BYTES)


_lock = threading.Lock()
"""Held while segments of any sender are made, taken or abandoned."""

_senders: WeakSet[SegmentSender] = WeakSet()


def _free_idle() -> bool:
    """Free segments that are not used any more; whether there are others. `_lock` must be held."""
    for sender in list(_senders):
        sender.abandon(float("inf"), time.monotonic() - IDLE_SECONDS)
    return any(sender.size for sender in list(_senders))


def _new_watch() -> IdleWatch:
    return IdleWatch("fray-segments", _lock, lambda: IDLE_SECONDS / 2, _free_idle)


_watch = _new_watch()


def _after_fork() -> None:
    """In the child: its parent's segments are its parent's, and the thread is not here."""
    global _lock, _watch
    _lock = threading.Lock()
    _watch = _new_watch()
    _senders.clear()


os.register_at_fork(after_in_child=_after_fork)


class SegmentReceiver:
    """The segments that the other side of a connection has created. connection: the descriptor of its socket."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._segments: dict[int, _ReceivedSegment] = {}
        self._numbers = itertools.count()

    def add(self, descriptors: list[int]) -> None:
        """Map the next segments; takes over the descriptors.

        Raises BadMessage: a segment is not one of a `SegmentSender`, or there are more than `MAX_SHARED_BYTES`.
        """
        owned = [OwnedDescriptor(descriptor) for descriptor in descriptors]
        if len(owned) % 2:
            raise BadMessage("shared memory without a counter of its pieces")
        self._segments = {n: one for n, one in self._segments.items() if one.segment.memory[0] != ABANDONED}
        for file, pieces in zip(owned[::2], owned[1::2], strict=True):
            os.set_blocking(pieces.number, False)
            segment = Segment(self._checked(file.number), file)
            self._segments[next(self._numbers)] = _ReceivedSegment(segment, pieces)

    def _checked(self, descriptor: int) -> mmap.mmap:
        try:
            seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
            if seals & REQUIRED_SEALS != REQUIRED_SEALS or not size or size % _SEGMENT_GRAIN:
                raise BadMessage("shared memory whose size is not sealed, or is not a multiple of 1 MiB")
            mapped = sum(len(one.segment.memory) for one in self._segments.values())
            if mapped + size > MAX_SHARED_BYTES:
                raise BadMessage(f"more than {MAX_SHARED_BYTES} bytes of shared memory")
            return _map(descriptor, size)
        except OSError as error:
            if isinstance(error, BadMessage):
                raise
            raise BadMessage(f"shared memory that cannot be used: {error}") from None

    def take(self, reference: Buffer) -> memoryview:
        """The buffer for a reference of `SegmentSender.send`, in its segment or copied.

        Raises:
            BadMessage: no such buffer was announced, its next piece does not arrive, or its segment was not returned.
            ConnectionResetError: the sender ended before all of it was there.
        """
        if len(reference) != _REFERENCE.size:
            raise BadMessage("a reference to shared memory of the wrong size")
        number, size = _REFERENCE.unpack(reference)
        found = self._segments.get(number)
        if found is None or size > len(found.segment.memory) - DATA_OFFSET:
            raise BadMessage("a reference to shared memory that was not announced")
        if is_borrowed(found.segment):
            raise BadMessage("a reference to shared memory that was not returned")
        buffer = borrow(found.segment, size)
        if buffer is None:
            return self._copied(found, size)
        for _ in self._pieces(found.pieces, size):
            pass
        return buffer

    def _copied(self, found: _ReceivedSegment, size: int) -> memoryview:
        copy = buffer_pool().take(size)
        with memoryview(found.segment.memory)[DATA_OFFSET : DATA_OFFSET + size] as there:
            for begin in self._pieces(found.pieces, size):
                copy[begin : begin + PIECE_BYTES] = there[begin : begin + PIECE_BYTES]
        found.segment.memory[0] = RETURNED
        return copy

    def _pieces(self, counter: OwnedDescriptor, size: int) -> Iterator[int]:
        """Yield the position of each piece of a buffer once the piece is there."""
        have = 1
        for piece, begin in enumerate(range(0, size, PIECE_BYTES)):
            while have <= piece:
                have += self._wait(counter)
            yield begin

    def _wait(self, pieces: OwnedDescriptor) -> int:
        """Wait for further pieces; returns how many have arrived."""
        events = select.poll()
        events.register(pieces.number, select.POLLIN)
        events.register(self._connection, select.POLLRDHUP)
        ready = dict(events.poll(STALL_TIMEOUT * 1000))
        if pieces.number in ready:
            try:
                return os.eventfd_read(pieces.number)
            except OSError as error:
                raise BadMessage(f"shared memory whose pieces cannot be counted: {error}") from None
        if ready:
            raise ConnectionResetError("closed within a buffer in shared memory")
        raise BadMessage(f"a buffer in shared memory did not continue for {STALL_TIMEOUT:.0f} s")


@functools.cache
def is_available() -> bool:
    """Whether this system has unnamed memory whose size can be sealed, as Linux has."""
    if not (hasattr(os, "memfd_create") and hasattr(os, "eventfd") and REQUIRED_SEALS):
        return False
    return find_spec("_ctypes") is not None  # `buffers` needs it before a fork


def _write(segment: _SentSegment, view: memoryview, begin: int) -> None:
    piece = view[begin : begin + PIECE_BYTES]
    segment.memory[DATA_OFFSET + begin : DATA_OFFSET + begin + len(piece)] = piece


def _map(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
