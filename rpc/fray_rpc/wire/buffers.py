"""Memory for received buffers: pooled blocks that are used again, and shared segments that are used without a copy.

**Pooled blocks.** The first touch of fresh memory costs several times as much as a copy into memory that was touched
before.

**Invariant.** Memory is given out only while nothing else can see it. **Unsafe sequence.** The view of a block is
released, which looks like the end of its use. But an array that was created from the view still holds the block, and
its values change when the block is filled again. **Why this cannot happen.** A `bytearray` refuses to be resized while
anything holds its memory, and `_is_unreferenced` tests that before a block is given out again. Only views are given
out, so nothing else refers to the `bytearray`.

A block that nothing has used for `IDLE_SECONDS` is given back to the system.

**Shared segments.** They are used without a copy.

**Invariant.** A segment changes only while no buffer of its receiver uses it. A process never sees what another process
writes to its own arrays. **Unsafe sequences.** (1) The view of a segment is released, and the segment is returned to
its sender. But an array that was created from the view still uses the memory, and changes with the sender's next
message. (2) A process that has received an array forks. The parent frees the array, and the segment is returned: the
child's array changes. Or the child writes to its array, and the parent's array changes. **Why this cannot happen.** (1)
A segment is returned only when its `mmap` can be resized, which `mmap` refuses while anything uses its memory. A
finalizer would be no such test: the garbage collector calls it for a cycle of objects before their last methods run.
(2) Before a fork, all borrowed segments are abandoned: the kernel replaces each with private memory of the same content
at the same address (mmap(2), MAP_PRIVATE), and their senders do not use them again. From then on the first write to a
page copies it, in the parent and in the child. Other threads borrow no segment between this and the fork. Children that
`subprocess` starts have no memory of their parent.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import time
from dataclasses import dataclass

from fray_rpc.wire.idle_watch import IDLE_SECONDS, IdleWatch
from fray_runtime.variables import read_variable

Buffer = bytes | bytearray | memoryview

MIN_POOLED_BYTES = 128 * 1024
"""Smaller blocks are not pooled: only from this size on does glibc return memory to the system (M_MMAP_THRESHOLD)."""

MAX_POOLED_BYTES = 64 * 2**20
"""Most bytes in the pool, whether arrays use them or not: a few messages of the sizes that users send (10 MB)."""


LIMIT_VAR = "FRAY_MEMORY_LIMIT"
"""Variable of a task with its memory limit in bytes."""

LIMIT_SHARE = 8
"""A process whose task has a memory limit may use one part in so many of it for each of these: the segments that it has
created, the outcomes that it keeps, and pooled memory."""


def within_limit(most: int) -> int:
    """Most bytes of one of these uses: `most`, or the share of the memory limit that this process's task has."""
    limit = read_variable(LIMIT_VAR) or ""
    return min(int(limit) // LIMIT_SHARE, most) if limit.isdecimal() else most


@dataclass(slots=True)
class _PooledBlock:
    """Memory in the pool. used_at: when something was last known to use it."""

    memory: bytearray
    used_at: float


class BufferPool:
    """The memory of one process for received buffers. max_bytes: beyond it the oldest blocks leave the pool."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._lock = threading.Lock()
        self._max_bytes = within_limit(MAX_POOLED_BYTES) if max_bytes is None else max_bytes
        self._blocks: list[_PooledBlock] = []  # ordered by the last time they were given out
        self._watch = IdleWatch("fray-buffers", self._lock, lambda: IDLE_SECONDS / 2, self._free_idle)

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes with arbitrary content."""
        if size < MIN_POOLED_BYTES:
            return memoryview(bytearray(size))
        with self._lock:
            block = self._unused(size) or bytearray(size)
            if len(block) <= self._max_bytes:
                self._blocks.append(_PooledBlock(block, time.monotonic()))
                self._watch.begin()
            while sum(len(one.memory) for one in self._blocks) > self._max_bytes:
                del self._blocks[0]  # its users keep it alive
            return memoryview(block)[:size]

    def copy(self, buffer: Buffer) -> memoryview:
        """A copy of `buffer` that nothing else can see."""
        space = self.take(len(buffer))
        space[:] = buffer
        return space

    def _unused(self, size: int) -> bytearray | None:
        """Remove and return a block that fits and that nothing uses."""
        for number, block in enumerate(self._blocks):
            if size <= len(block.memory) <= 2 * size and _is_unreferenced(block.memory):
                return self._blocks.pop(number).memory
        return None

    def _free_idle(self) -> bool:
        """Give blocks back to the system that nothing has used for a while; whether there are others."""
        now, before = time.monotonic(), len(self._blocks)
        for block in self._blocks:
            if not _is_unreferenced(block.memory):
                block.used_at = now
        self._blocks = [block for block in self._blocks if now - block.used_at < IDLE_SECONDS]
        if len(self._blocks) < before:
            _trim()
        return bool(self._blocks)


def _trim() -> None:
    """Have glibc give back the memory that is free in its heaps: it does so by itself only at their ends."""
    import ctypes

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _is_unreferenced(block: bytearray) -> bool:
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True


@functools.cache
def buffer_pool() -> BufferPool:
    """The pool of this process."""
    return BufferPool()


os.register_at_fork(after_in_child=buffer_pool.cache_clear)


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
