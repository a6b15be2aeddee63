"""Queues in this process's memory, which behave like those in storage."""

import heapq
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from fray.queue.api import Queue
from fray.queue.async_queue import T
from fray.queue.engine import Counts, Delivery, EncodedItem, Peeked
from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.per_process import PerLoop
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.delivery import UnknownLease
from fray_coordinator.queue.held_segment import PoisonIsolation, isolation_of
from fray_layouts.queue_records import DeadLetterOrigin, QueueRecord

POLL_INTERVAL = 0.005
"""Seconds between two polls of an empty queue: too short to notice, and still cheap for hundreds of waiting threads."""


class MemoryQueue(Queue[T]):
    """A queue for the threads of one process. It ends with the process.

    Args:
        max_deliveries: failures after which an item becomes a dead letter; 0 for never.

    Raises:
        InvalidInput: `max_deliveries` is negative or not a whole number.
    """

    def __init__(self, max_deliveries: int = QueueRecord().max_deliveries) -> None:
        engine = MemoryEngine(SystemClock(), system_random(), rules.checked_maximum(max_deliveries))

        async def opened() -> MemoryEngine:
            return engine

        super().__init__(PerLoop(opened))

    def __repr__(self) -> str:
        return f"<MemoryQueue at {id(self):#x}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MemoryQueue cannot leave its process; use a FileQueue")


@dataclass(eq=False, slots=True)
class _MemoryItem:
    """An item and its state.

    Attributes:
        number: the item's position in the order.
        suspect: whether a lease of it ran out, so that it may have killed its process.
        lease, expires: its current or last lease.
        isolation: the poison isolation of the process that has it; None if no process has it.
    """

    clock: Clock
    number: int
    item: EncodedItem
    pushed_at: float
    deliveries: int = 0
    failures: int = 0
    suspect: bool = False
    lease: str = ""
    expires: float = 0.0
    isolation: PoisonIsolation | None = None

    def is_over(self) -> bool:
        """Whether its lease has run out."""
        return self.expires <= self.clock.boottime()

    def end_claim(self) -> None:
        """Do nothing: a lease that ran out is never renewed here, since each call first takes such items back."""


class MemoryEngine:
    """A `QueueEngine` in memory."""

    def __init__(self, clock: Clock, rng: RandomSource, max_deliveries: int) -> None:
        self._clock = clock
        self._max = max_deliveries
        self._token = rng.unique_id()
        self._numbers, self._leases = itertools.count(), itertools.count()
        self._first_expiry = float("inf")
        self._free: list[int] = []
        self._entries: dict[int, _MemoryItem] = {}
        self._leased: dict[str, _MemoryItem] = {}
        self._letters: list[Peeked] = []

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        for item in items:
            entry = _MemoryItem(self._clock, next(self._numbers), item, self._clock.wall())
            self._entries[entry.number] = entry
            heapq.heappush(self._free, entry.number)

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None]:
        return self.push([item], None)

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        rules.checked_timeout("lease_timeout", timeout)
        deadline, isolation = self._clock.boottime() + wait, isolation_of(process)
        while not (taken := self._take(count, timeout, isolation)) and self._clock.boottime() < deadline:
            await self._clock.sleep(min(POLL_INTERVAL, wait))
        return taken

    def take_now(self, timeout: float) -> None:
        return None

    def done_now(self, lease: str) -> bool:
        return False

    async def done(self, leases: Sequence[str]) -> None:
        self._each_held(leases, self._complete)

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        self._each_held(leases, partial(self._release, failed=failed))

    async def extend(self, lease: str, timeout: float) -> float:
        rules.checked_timeout("seconds", timeout)
        entry = self._entry(lease)
        entry.expires = max(entry.expires, self._clock.boottime() + timeout)
        return self._clock.wall() + entry.expires - self._clock.boottime()

    async def give_up(self, lease: str, reason: str) -> None:
        entry = self._entry(lease)
        self._end(entry)
        self._move_to_dead_letters(entry, reason)

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
        for entry in list(self._leased.values()):
            self._end(entry)
        self._free, self._entries = [], {}
        return count

    async def close(self) -> None:
        for entry in list(self._leased.values()):
            self._free_again(entry)

    def _take(self, count: int, timeout: float, isolation: PoisonIsolation) -> list[Delivery]:
        self._expire()
        taken: list[Delivery] = []
        while self._free and len(taken) < count:
            entry = self._entries[self._free[0]]
            spent = 0 < self._max <= entry.failures
            if not spent and not isolation.admits(entry.suspect):
                break
            heapq.heappop(self._free)
            if spent:
                self._move_to_dead_letters(entry, f"given up after {entry.deliveries} deliveries")
            else:
                taken.append(self._lease(entry, timeout, isolation))
        return taken

    def _lease(self, entry: _MemoryItem, timeout: float, isolation: PoisonIsolation) -> Delivery:
        now = self._clock.wall()
        entry.deliveries += 1
        entry.lease = f"{self._token}/{next(self._leases)}"
        entry.expires = self._clock.boottime() + timeout
        entry.isolation = isolation
        isolation.enter(entry)
        self._leased[entry.lease] = entry
        self._first_expiry = min(self._first_expiry, entry.expires)
        return Delivery(entry.lease, entry.item, entry.deliveries, now, now + timeout)

    def _each_held(self, leases: Sequence[str], act: Callable[[_MemoryItem], None]) -> None:
        """Call `act` for each item that has one of these leases, and then raise UnknownLease for unknown leases."""
        self._expire()
        asked = dict.fromkeys(leases)
        unknown = [lease for lease in asked if lease not in self._leased]
        for entry in [self._leased[lease] for lease in asked if lease in self._leased]:
            act(entry)
        if unknown:
            raise UnknownLease(*unknown)

    def _complete(self, entry: _MemoryItem) -> None:
        self._end(entry)
        del self._entries[entry.number]

    def _release(self, entry: _MemoryItem, failed: bool) -> None:
        entry.failures += failed
        self._free_again(entry)

    def _entry(self, lease: str) -> _MemoryItem:
        self._expire()
        if lease not in self._leased:
            raise UnknownLease(lease)
        return self._leased[lease]

    def _expire(self) -> None:
        """Take back items whose leases ran out. From the second time on, that counts as a failure of the item.

        The first time makes it a suspect, which is delivered alone, so that from then on the item itself is to blame.
        """
        now = self._clock.boottime()
        if now < self._first_expiry:
            return
        for entry in [entry for entry in self._leased.values() if entry.expires <= now]:
            entry.failures += entry.suspect
            entry.suspect = True
            self._free_again(entry)
        self._first_expiry = min((entry.expires for entry in self._leased.values()), default=float("inf"))

    def _end(self, entry: _MemoryItem) -> None:
        assert entry.isolation is not None, "it is leased"
        entry.isolation.leave(entry)
        entry.isolation = None
        del self._leased[entry.lease]

    def _free_again(self, entry: _MemoryItem) -> None:
        self._end(entry)
        heapq.heappush(self._free, entry.number)

    def _move_to_dead_letters(self, entry: _MemoryItem, reason: str) -> None:
        del self._entries[entry.number]
        letter = DeadLetterOrigin(reason=reason, segment="", item=entry.number, deliveries=entry.deliveries)
        self._letters.append(Peeked(entry.item, str(entry.number), 0, letter))
