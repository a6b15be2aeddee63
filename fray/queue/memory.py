"""A queue in this process's memory, with the same behaviour as one in storage."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from fray.queue.api import Queue
from fray.queue.engine import Counts, Item, Peeked, Taken
from fray_coordinator import sync
from fray_coordinator.clock import Clock, SystemClock
from fray_coordinator.queue.errors import UnknownLease
from fray_layouts.queues import Letter, QueueRecord

T = TypeVar("T")
POLL = 0.005
"""Seconds between looks at an empty queue."""


class MemoryQueue(Queue[T]):
    """A queue for the threads of one process; it ends with it.

    Args:
        max_deliveries: failures after which an item is a dead letter, 0 for never.
    """

    def __init__(self, max_deliveries: int = QueueRecord().max_deliveries) -> None:
        engine = MemoryEngine(SystemClock(), max_deliveries)

        async def opened() -> MemoryEngine:
            return engine

        super().__init__(sync.PerProcess(opened))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MemoryQueue cannot leave its process; use a FileQueue")


@dataclass(slots=True)
class _Entry:
    """An item. number: its place in the order; the rest is about its present lease and what came before."""

    number: int
    item: Item
    pushed_at: float
    deliveries: int = 0
    failures: int = 0
    lease: str = ""
    expires: float = 0.0


class MemoryEngine:
    """See `Engine`."""

    def __init__(self, clock: Clock, max_deliveries: int) -> None:
        self._clock = clock
        self._max = max_deliveries
        self._numbers = itertools.count()
        self._free: list[int] = []
        self._entries: dict[int, _Entry] = {}
        self._leased: dict[str, _Entry] = {}
        self._letters: list[Peeked] = []

    async def push(self, items: Sequence[Item], batch: int | None) -> None:
        for item in items:
            entry = _Entry(next(self._numbers), item, self._clock.wall())
            self._entries[entry.number] = entry
            heapq.heappush(self._free, entry.number)

    async def take(self, count: int, timeout: float, wait: float) -> list[Taken]:
        deadline = self._clock.boottime() + wait
        while not (taken := self._take(count, timeout)) and self._clock.boottime() < deadline:
            await self._clock.sleep(min(POLL, wait))
        return taken

    async def done(self, leases: Sequence[str]) -> None:
        self._each_held(leases, self._complete)

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        self._each_held(leases, partial(self._release, failed=failed))

    async def extend(self, lease: str, timeout: float) -> float:
        entry = self._entry(lease)
        entry.expires = max(entry.expires, self._clock.boottime() + timeout)
        return self._clock.wall() + entry.expires - self._clock.boottime()

    async def bury(self, lease: str, reason: str) -> None:
        entry = self._entry(lease)
        del self._leased[entry.lease]
        self._bury(entry, reason)

    async def counts(self) -> Counts:
        self._expire()
        oldest = min((entry.pushed_at for entry in self._entries.values()), default=None)
        return Counts(len(self._free), len(self._leased), len(self._entries), oldest)

    async def peek(self, limit: int) -> list[Peeked]:
        self._expire()
        return [Peeked(self._entries[n].item, str(n), 0, None) for n in heapq.nsmallest(limit, self._free)]

    async def letters(self, limit: int) -> list[Peeked]:
        return self._letters[:limit]

    async def redrive(self, limit: int | None) -> int:
        moved = self._letters[:limit]
        del self._letters[: len(moved)]
        await self.push([letter.item for letter in moved], None)
        return len(moved)

    async def purge(self) -> int:
        count = len(self._entries)
        self._free, self._entries, self._leased = [], {}, {}
        return count

    async def close(self) -> None:
        for entry in list(self._leased.values()):
            self._free_again(entry)

    def _take(self, count: int, timeout: float) -> list[Taken]:
        self._expire()
        taken: list[Taken] = []
        while self._free and len(taken) < count:
            entry = self._entries[heapq.heappop(self._free)]
            if 0 < self._max <= entry.failures:
                self._bury(entry, f"given up after {entry.deliveries} deliveries")
            else:
                taken.append(self._lease(entry, timeout))
        return taken

    def _lease(self, entry: _Entry, timeout: float) -> Taken:
        now = self._clock.wall()
        entry.deliveries += 1
        entry.lease = f"{entry.number}/{entry.deliveries}"
        entry.expires = self._clock.boottime() + timeout
        self._leased[entry.lease] = entry
        return Taken(entry.lease, entry.item, entry.deliveries, now, now + timeout)

    def _each_held(self, leases: Sequence[str], act: Callable[[_Entry], None]) -> None:
        """`act` on what is leased under these ids; one that is lost keeps it from no other."""
        self._expire()
        asked = dict.fromkeys(leases)
        unknown = [lease for lease in asked if lease not in self._leased]
        for entry in [self._leased[lease] for lease in asked if lease in self._leased]:
            act(entry)
        if unknown:
            raise UnknownLease(*unknown)

    def _complete(self, entry: _Entry) -> None:
        del self._leased[entry.lease], self._entries[entry.number]

    def _release(self, entry: _Entry, failed: bool) -> None:
        entry.failures += failed
        self._free_again(entry)

    def _entry(self, lease: str) -> _Entry:
        self._expire()
        if lease not in self._leased:
            raise UnknownLease(lease)
        return self._leased[lease]

    def _expire(self) -> None:
        now = self._clock.boottime()
        for entry in [entry for entry in self._leased.values() if entry.expires <= now]:
            self._free_again(entry)

    def _free_again(self, entry: _Entry) -> None:
        del self._leased[entry.lease]
        heapq.heappush(self._free, entry.number)

    def _bury(self, entry: _Entry, reason: str) -> None:
        del self._entries[entry.number]
        letter = Letter(reason=reason, segment="", item=entry.number, deliveries=entry.deliveries)
        self._letters.append(Peeked(entry.item, str(entry.number), 0, letter))
