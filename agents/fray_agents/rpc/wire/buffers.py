"""Memory for received buffers, which is used again once no array lives in it.

The first touch of fresh memory costs several times as much as a copy into memory that was touched before.

**Invariant.** Memory is given out only while nothing else can see it.
**Unsafe sequence.** The view of a block is released, which looks like the end of its use; but an array that was made
from the view holds the block on its own, and changes when the block is filled again.
**Why this cannot happen.** A `bytearray` refuses to be resized while anything holds its memory, and `_is_unreferenced`
asks that before a block is given out again. Only views are given out, so nobody else refers to the `bytearray` itself.
"""

import os
import threading

Buffer = bytes | bytearray | memoryview

MIN_POOLED_BYTES = 128 * 1024
"""Smaller blocks are not kept: from this size on, glibc returns memory to the system (M_MMAP_THRESHOLD)."""

MAX_POOLED_BYTES = 64 * 2**20
"""Bounds what is kept, whether arrays live in it or not: a few messages of the sizes that users send (10 MB)."""


class BufferPool:
    """The memory of one process for received buffers. max_bytes: the oldest blocks are let go beyond it."""

    def __init__(self, max_bytes: int = MAX_POOLED_BYTES) -> None:
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._blocks: list[bytearray] = []  # the one given out last at the end

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, with anything in it."""
        if size < MIN_POOLED_BYTES:
            return memoryview(bytearray(size))
        with self._lock:
            block = self._unused(size) or bytearray(size)
            if len(block) <= self._max_bytes:
                self._blocks.append(block)
            while sum(map(len, self._blocks)) > self._max_bytes:
                del self._blocks[0]  # whoever still uses it keeps it alive
            return memoryview(block)[:size]

    def copy(self, buffer: Buffer) -> memoryview:
        """A copy of `buffer` that nobody else sees."""
        space = self.take(len(buffer))
        space[:] = buffer
        return space

    def _unused(self, size: int) -> bytearray | None:
        """Take out a block that fits and that nobody sees."""
        for number, block in enumerate(self._blocks):
            if size <= len(block) <= 2 * size and _is_unreferenced(block):
                return self._blocks.pop(number)
        return None


def _is_unreferenced(block: bytearray) -> bool:
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True


_pool = BufferPool()


def buffer_pool() -> BufferPool:
    return _pool


def _after_fork() -> None:
    global _pool
    _pool = BufferPool()


os.register_at_fork(after_in_child=_after_fork)
