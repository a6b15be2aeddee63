"""Large buffers between processes of one host, through shared memory instead of the socket.

The sender copies a buffer into a segment. The receiver copies it out and gives the segment back. A segment is used
again and again, because the first touch of fresh memory costs more than the copy. No array ever lives in a segment, so
none can change while it is used. Segments have no names: their descriptors travel through the Unix socket, and the
kernel frees them when both processes are gone, however they ended. The content of a segment carries no seal of the
connection: only who was given the descriptor can reach it.

**Invariant.** A segment that was mapped stays as large as it was.
**Unsafe sequence.** Its sender cuts it off while the receiver copies; the kernel ends the receiver by SIGBUS.
**Why this cannot happen.** Senders seal the size (fcntl(2), F_SEAL_SHRINK) before they pass the descriptor on, such a
seal is never taken back, and a segment whose size is not sealed is not mapped.
"""

import fcntl
import mmap
import os
import struct

from fray_agents.rpc.errors import BadMessage
from fray_agents.rpc.wire.buffers import Buffer, buffer_pool

MIN_SHARED_BYTES = 128 * 1024
"""Bytes from which a buffer goes through shared memory: those whose memory the receiver keeps, see `buffers`."""

MAX_SHARED_BYTES = 256 * 2**20
"""Bytes that one side of a connection may have in segments; beyond them the socket is used."""

MAX_DESCRIPTORS = 16
"""New segments in one message, whose descriptors travel together; the kernel takes at most 253 (unix(7))."""

REQUIRED_SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)

_SEGMENT_GRAIN = 2**20
"""Segments have multiples of so many bytes, so that buffers of similar sizes share them."""

_DATA_OFFSET = 64
"""The position of the buffer in its segment, whose first byte is 1 while the receiver has it."""

_REFERENCE = struct.Struct("<IQ")
"""Number of a segment, bytes of the buffer in it."""


class SegmentSender:
    """The segments that one side of a connection has made."""

    def __init__(self) -> None:
        self._segments: list[mmap.mmap] = []
        self._new: list[int] = []
        self._bytes = 0

    def send(self, buffer: Buffer) -> bytes | None:
        """Copy `buffer` into a segment; the reference by which the receiver takes it. None: use the socket."""
        size = len(buffer)
        number = self._free(size + _DATA_OFFSET)
        if number is None:
            number = self._make(size + _DATA_OFFSET)
        if number is None:
            return None
        segment = self._segments[number]
        segment[_DATA_OFFSET : _DATA_OFFSET + size] = buffer
        segment[0] = 1
        return _REFERENCE.pack(number, size)

    def new_descriptors(self) -> list[int]:
        """Descriptors of segments that the receiver does not know yet; the caller closes them once they are sent."""
        new, self._new = self._new, []
        return new

    def _free(self, size: int) -> int | None:
        """The smallest segment of at least `size` bytes that was given back."""
        fitting = [(len(one), number) for number, one in enumerate(self._segments) if len(one) >= size and not one[0]]
        return min(fitting)[1] if fitting else None

    def _make(self, size: int) -> int | None:
        size = -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        if len(self._new) >= MAX_DESCRIPTORS or self._bytes + size > MAX_SHARED_BYTES:
            return None
        descriptor = os.memfd_create("fray-rpc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, size)  # fails here rather than with a signal at the first touch
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REQUIRED_SEALS)
            self._segments.append(_map(descriptor, size))
        except OSError:  # no memory for it
            os.close(descriptor)
            return None
        self._new.append(descriptor)
        self._bytes += size
        return len(self._segments) - 1


class SegmentReceiver:
    """The segments that the other side of a connection has made."""

    def __init__(self) -> None:
        self._segments: list[mmap.mmap] = []
        self._bytes = 0

    def add(self, descriptors: list[int]) -> None:
        """Map the next segments, and close their descriptors.

        Raises BadMessage: a segment is not what `SegmentSender` makes, or there are more than `MAX_SHARED_BYTES`.
        """
        try:
            for descriptor in descriptors:
                self._segments.append(self._checked(descriptor))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _checked(self, descriptor: int) -> mmap.mmap:
        try:
            seals, size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
            if seals & REQUIRED_SEALS != REQUIRED_SEALS or not size or size % _SEGMENT_GRAIN:
                raise BadMessage("shared memory whose size is not sealed, or is none of ours")
            self._bytes += size
            if self._bytes > MAX_SHARED_BYTES:
                raise BadMessage(f"more than {MAX_SHARED_BYTES} bytes of shared memory")
            return _map(descriptor, size)
        except OSError as error:
            if isinstance(error, BadMessage):
                raise
            raise BadMessage(f"shared memory that cannot be used: {error}") from None

    def take(self, reference: Buffer) -> memoryview:
        """A copy of the buffer that `SegmentSender.send` gave this reference for; gives the segment back."""
        if len(reference) != _REFERENCE.size:
            raise BadMessage("a reference to shared memory of the wrong size")
        number, size = _REFERENCE.unpack(reference)
        if number >= len(self._segments) or size > len(self._segments[number]) - _DATA_OFFSET:
            raise BadMessage("a reference to shared memory that was not announced")
        segment = self._segments[number]
        copy = buffer_pool().copy(memoryview(segment)[_DATA_OFFSET : _DATA_OFFSET + size])
        segment[0] = 0
        return copy


def is_available() -> bool:
    """Whether this system has memory without a name whose size can be sealed; Linux has."""
    return hasattr(os, "memfd_create") and REQUIRED_SEALS != 0


def _map(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
