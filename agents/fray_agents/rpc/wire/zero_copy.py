"""Received buffers that use the memory of a shared segment without a copy.

**Invariant.** A segment changes only while no buffer of its receiver uses it. A process never sees what another process
writes to its own arrays.
**Unsafe sequences.** (1) The view of a segment is released, and the segment is returned to its sender. But an array
that was created from the view still uses the memory, and changes with the sender's next message. (2) A process that has
received an array forks. The parent frees the array, and the segment is returned: the child's array changes. Or the
child writes to its array, and the parent's array changes.
**Why this cannot happen.** (1) A segment is returned only when its `mmap` can be resized, which `mmap` refuses while
anything uses its memory. A finalizer would be no such test: the garbage collector calls it for a cycle of objects
before their last methods run. (2) Before a fork, all borrowed segments are abandoned: the kernel replaces each with
private memory of the same content at the same address (mmap(2), MAP_PRIVATE), and their senders do not use them again.
From then on the first write to a page copies it, in the parent and in the child. Other threads borrow no segment
between this and the fork. Children that `subprocess` starts have no memory of their parent.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass

from fray_agents.rpc.wire.idle_watch import IdleWatch

RETURNED, IN_USE, ABANDONED = 0, 1, 2
"""States of a segment, in its first byte; new memory is RETURNED.

The sender sets IN_USE, the receiver RETURNED. Either may set ABANDONED, the sender if the segment is RETURNED: both
then forget the segment.
"""

DATA_OFFSET = 64
"""Position of the data in a segment."""

MIN_BORROWED_BYTES = 512 * 1024
"""Smaller buffers are copied: a segment has at least 1 MiB, which an array that is kept would keep too."""

MAX_BORROWED_BYTES = 128 * 2**20
"""Most bytes of segments that the buffers of this process use at once.

It is half of what a sender may have in segments (`MAX_SHARED_BYTES`). So a receiver that keeps its arrays leaves room
for further messages, which are then copied.
"""

MAX_BORROWED_SEGMENTS = 32
"""Most segments that they use. Each has three file descriptors, and a process often has no more than 1,024."""

RETURN_INTERVAL = 5.0
"""Seconds between two looks for segments to return while no message arrives: a look takes some microseconds."""

_MAP_FIXED = 0x10
"""MAP_FIXED of mmap(2) on Linux, which Python's module lacks."""


class OwnedDescriptor:
    """A file descriptor that is closed when this object is freed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(slots=True, eq=False)
class Segment:
    """A mapped segment on the receiver's side. file: None once the segment is abandoned."""

    memory: mmap.mmap
    file: OwnedDescriptor | None


_borrowed: list[Segment] = []
"""The segments that buffers used when this was last tested, abandoned ones included."""

_lock = threading.RLock()
"""Held while this list changes, and from before a fork until after it."""


def borrow(segment: Segment, size: int) -> memoryview | None:
    """The first `size` bytes of a segment's data; the segment is returned by a later call, once nothing uses them.

    None: copy the data, because it is small, or because the buffers of this process use many segments.
    """
    with _lock:
        _return_unused()
        used = sum(len(one.memory) for one in _borrowed) + len(segment.memory)
        if size < MIN_BORROWED_BYTES or used > MAX_BORROWED_BYTES or len(_borrowed) == MAX_BORROWED_SEGMENTS:
            return None
        _borrowed.append(segment)
        _watch.begin()
        return memoryview(segment.memory)[DATA_OFFSET : DATA_OFFSET + size]


def is_borrowed(segment: Segment) -> bool:
    """Whether buffers may use the segment."""
    return segment in _borrowed


def _return_unused() -> bool:
    """Return the segments that no buffer uses any more; whether any are left. `_lock` must be held."""
    for segment in [one for one in _borrowed if _is_unused(one)]:
        _borrowed.remove(segment)
        if segment.file is not None:
            segment.memory[0] = RETURNED
    return bool(_borrowed)


_watch = IdleWatch("fray-returns", _lock, lambda: RETURN_INTERVAL, _return_unused)


def _is_unused(segment: Segment) -> bool:
    try:
        segment.memory.resize(len(segment.memory))
    except BufferError:
        return False
    return True


def _before_fork() -> None:
    _lock.acquire()
    _return_unused()
    shared = [(segment.memory, segment.file) for segment in _borrowed if segment.file is not None]
    for segment in _borrowed:
        if segment.file is not None:
            segment.memory[0], segment.file = ABANDONED, None
    failures: list[OSError] = []
    for memory, file in shared:
        try:
            _make_private(memory, file)
        except OSError as error:
            failures.append(error)
    if failures:  # Python prints it, and forks
        raise failures[0]


def _make_private(memory: mmap.mmap, file: OwnedDescriptor) -> None:
    """Replace the mapping of a file with a private one, at once for all threads. Raises OSError: it stays shared."""
    import ctypes

    map_memory = ctypes.PyDLL(None, use_errno=True).mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address, size = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)), len(memory)
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    if map_memory(address, size, access, flags, file.number, 0) != address:
        raise OSError(ctypes.get_errno(), "received arrays stay shared with the process that is forked now")


def _after_fork_in_child() -> None:
    _watch.forked()
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)
