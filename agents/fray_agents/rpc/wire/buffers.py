"""Memory for received buffers, used again once no array lives in it.

Touching fresh memory costs several times as much as copying into memory that was touched before. Invariant: memory is
given out only while nothing else can see it. Unsafe: to believe that releasing a view ends all use; an array made
from the view holds the memory on its own. Why not here: a `bytearray` refuses to be resized while anything holds its
memory, and that is asked before it is given out again; only views are given out, so no reference to the `bytearray`
itself is.
"""

from __future__ import annotations

import os
import threading

Buffer = bytes | bytearray | memoryview

MIN_POOLED_BYTES = 128 * 1024
"""Bytes from which memory is worth keeping."""

MAX_POOLED_BYTES = 64 * 2**20
"""Bytes that are kept, whether arrays live in them or not."""


class BufferPool:
    """The memory of one process."""

    def __init__(self, kept: int = MAX_POOLED_BYTES) -> None:
        self._lock = threading.Lock()
        self._kept = kept
        self._blocks: list[bytearray] = []  # the one given out last at the end

    def take(self, size: int) -> memoryview:
        """Memory of that size, with anything in it."""
        if size < MIN_POOLED_BYTES:
            return memoryview(bytearray(size))
        with self._lock:
            block = self._unused(size) or bytearray(size)
            if len(block) <= self._kept:
                self._blocks.append(block)
            while sum(map(len, self._blocks)) > self._kept:
                del self._blocks[0]  # whoever still uses it keeps it alive
            return memoryview(block)[:size]

    def copy(self, buffer: Buffer) -> memoryview:
        """A copy of `buffer` that nobody else sees."""
        space = self.take(len(buffer))
        space[:] = buffer
        return space

    def _unused(self, size: int) -> bytearray | None:
        """Take a block out that fits and that nobody sees."""
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
    """That of this process."""
    return _pool


def _after_fork() -> None:
    global _pool
    _pool = BufferPool()


os.register_at_fork(after_in_child=_after_fork)
