"""Memory for received buffers, which is reused once no array uses it.

The first touch of fresh memory costs several times as much as a copy into memory that was touched before.

**Invariant.** Memory is given out only while nothing else can see it.
**Unsafe sequence.** The view of a block is released, which looks like the end of its use. But an array that was created
from the view still holds the block, and its values change when the block is filled again.
**Why this cannot happen.** A `bytearray` refuses to be resized while anything holds its memory, and `_is_unreferenced`
tests that before a block is given out again. Only views are given out, so nothing else refers to the `bytearray`.

A block that nothing has used for `IDLE_SECONDS` is given back to the system.
"""

import functools
import os
import threading
import time
from dataclasses import dataclass

from fray_agents.rpc.wire.idle_watch import IDLE_SECONDS, IdleWatch
from fray_coordinator.variables import read_variable

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
