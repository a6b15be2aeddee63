"""Received buffers that use the memory of a shared segment without a copy.

**Invariant.** A segment changes only while no buffer of its receiver uses it. A process never sees what another process
writes to its own arrays.
**Unsafe sequences.** (1) The view of a segment is released, and the segment is returned to its sender. But an array
that was created from the view still uses the memory, and changes with the sender's next message. (2) A process that has
received an array forks. The parent frees the array, and the segment is returned: the child's array changes. Or the
child writes to its array, and the parent's array changes.
**Why this cannot happen.** (1) Whatever uses memory through the buffer protocol keeps the object that exports it, here
a `ctypes` array. The segment is returned when that object is freed. (2) Before a fork, all borrowed segments are
abandoned: the kernel replaces them with private memory of the same content at the same address (mmap(2), MAP_PRIVATE),
and their senders do not use them again. From then on the first write to a page copies it, in the parent and in the
child. No segment is borrowed between this and the fork. Children that `subprocess` starts have no memory of their
parent.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import NamedTuple

RETURNED, IN_USE, ABANDONED = 0, 1, 2
"""States of a segment, in its first byte; new memory is RETURNED. The sender sets IN_USE, the receiver the others."""

DATA_OFFSET = 64
"""Position of the data in a segment."""

MAX_BORROWED_BYTES = 128 * 2**20
"""Most bytes of segments that the buffers of this process use at once.

It is half of what a sender may have in segments (`MAX_SHARED_BYTES`). So a receiver that keeps its arrays leaves room
for further messages, which are then copied.
"""

_MAP_FIXED = 0x10
"""MAP_FIXED of mmap(2) on Linux, which Python's module lacks."""


class OwnedDescriptor:
    """A file descriptor that is closed when this object is freed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Segment(NamedTuple):
    """A mapped segment and its file, on the receiver's side."""

    memory: mmap.mmap
    file: OwnedDescriptor


_borrowed: dict[int, Segment] = {}
"""The segments that buffers use, by the identity of their memory.

Whoever removes an entry sets the state of its segment, so that only one thread does.
"""

_fork_lock = threading.RLock()
"""Held while a segment is borrowed, and from before a fork until after it."""


def borrow(segment: Segment, size: int) -> memoryview | None:
    """The first `size` bytes of a segment's data; returns the segment to its sender once nothing uses them.

    None: the buffers of this process use too many segments, copy the data.
    """
    import ctypes

    with _fork_lock:
        if sum(len(one.memory) for one in list(_borrowed.values())) + len(segment.memory) > MAX_BORROWED_BYTES:
            return None
        exporter = (ctypes.c_ubyte * (len(segment.memory) - DATA_OFFSET)).from_buffer(segment.memory, DATA_OFFSET)
        _borrowed[id(segment.memory)] = segment
        weakref.finalize(exporter, _return, segment).atexit = False
    return memoryview(exporter).cast("B")[:size]


def is_borrowed(segment: Segment) -> bool:
    """Whether buffers use the segment."""
    return id(segment.memory) in _borrowed


def _return(segment: Segment) -> None:
    if _borrowed.pop(id(segment.memory), None) is not None:
        segment.memory[0] = RETURNED


def _before_fork() -> None:
    _fork_lock.acquire()
    abandoned = [segment for key in list(_borrowed) if (segment := _borrowed.pop(key, None)) is not None]
    for segment in abandoned:
        segment.memory[0] = ABANDONED
    for segment in abandoned:
        _make_private(segment)


def _make_private(segment: Segment) -> None:
    """Replace the mapping of a segment with a private one, at once for all threads."""
    import ctypes

    map_memory = ctypes.PyDLL(None, use_errno=True).mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address, size = ctypes.addressof(ctypes.c_ubyte.from_buffer(segment.memory)), len(segment.memory)
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    if map_memory(address, size, access, flags, segment.file.number, 0) != address:
        raise OSError(ctypes.get_errno(), "received arrays stay shared with the process that is forked now")


os.register_at_fork(before=_before_fork, after_in_parent=_fork_lock.release, after_in_child=_fork_lock.release)
