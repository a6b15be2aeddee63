"""The handout of a consumer: items taken ahead, and acknowledgements that are written together.

A process that works through items one by one would otherwise wait for the storage three times for each. So a quick
process takes as many items as it will finish in a moment, and hands them out without a request, in any thread. Its
acknowledgements are noted, and written together within `ACKNOWLEDGE_WITHIN`. If the process dies before that, these
items are delivered again. Every operation but the next `pop` and `done` first writes the noted acknowledgements and
puts back the items taken ahead, so nobody sees a difference except in speed.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fray_coordinator.backoff import STORE_PAUSES, backoff
from fray_coordinator.clock import Clock
from fray_coordinator.concurrency import start_task
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import Delivery, UnknownLease
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_coordinator.queue.open_queue import OpenQueue
from fray_layouts.errors import FrayError

ACKNOWLEDGE_WITHIN, LOCAL_ACKNOWLEDGE_WITHIN = 1.0, 0.02
"""Seconds after which noted acknowledgements are written, on a bucket and on local files. On a bucket, one write of
many costs as much as that of one, and a name accepts one write in a second."""
WRITE_MARGIN = 5.0
"""Seconds that a lease must have left for its acknowledgement to be noted. A slow write may take as long."""
AHEAD_SECONDS = 0.2
"""Seconds of work that are taken ahead. Other consumers wait for these items no longer than that."""
MAX_AHEAD = 256
"""Items taken ahead at most. With so many, the work that is done once for all of them costs nothing per item."""
AHEAD_GROWTH = 4
"""The factor by which the number of items taken ahead grows at most, since the next items may be slow."""
RETURN_AFTER = 1.0
"""Seconds after which items that were taken ahead are given back if nobody asks for them."""

log = logging.getLogger("fray")


class _Ahead(NamedTuple):
    """An item taken ahead. timeout: that for which it was taken. until: when it may be handed out at the latest."""

    delivery: Delivery
    timeout: float
    until: float


class Handout:
    """The next items of one queue for one process.

    `pop` and `done` may be called in any thread, the other methods in the event loop.

    durable: nothing is taken ahead or noted, so the consumer serves each item and each acknowledgement.
    """

    def __init__(self, queue: OpenQueue, consumer: Consumer, isolation: PoisonIsolation, durable: bool = False) -> None:
        self._clock: Clock = queue.core.clock
        self._now = queue.core.now
        self._jittered = queue.core.jittered
        self._consumer = consumer
        self._isolation = isolation
        self._durable = durable
        self._window = LOCAL_ACKNOWLEDGE_WITHIN if queue.core.store.local else ACKNOWLEDGE_WITHIN
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._flushing = asyncio.Lock()
        self._ready: deque[_Ahead] = deque()
        self._out: dict[str, float] = {}  # by lease, until when its acknowledgement may be noted
        self._done: list[str] = []
        self._popped = 0
        self._ahead = 1
        self._filled_at = self._popped_at_fill = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None

    # --- in any thread

    def pop(self, timeout: float) -> Delivery | None:
        """The next item that was taken ahead for this time-out; None if there is none, then call `refill`."""
        with self._lock:
            if not self._ready or timeout != self._ready[0].timeout or self._clock.boottime() > self._ready[0].until:
                return None
            self._popped += 1
            return self._ready.popleft().delivery

    def done(self, lease: str) -> bool:
        """Note that this item is done; False if it cannot be noted, and then the consumer must be asked."""
        with self._lock:
            if self._durable or self._clock.boottime() >= self._out.get(lease, 0.0):
                return False
            del self._out[lease]
            self._done.append(lease)
            is_first = len(self._done) == 1
        if is_first:
            self._schedule_write()
        return True

    # --- in the loop

    async def refill(self, count: int, timeout: float, wait: float) -> list[Delivery]:
        """Up to `count` items, as `Consumer.take` gives them; more may be taken ahead.

        If there is no item, the noted acknowledgements are written.
        """
        if count == 1 and (delivery := self.pop(timeout)) is not None:
            return [delivery]  # another thread has refilled it meanwhile
        self._put_back()
        ahead = max(0, self._wanted(count) - count)
        take = partial(self._consumer.take, count, timeout, self._isolation, ahead=ahead)
        has_noted = bool(self._done)  # another task may write them during the first take, and the wait must go on then
        taken = await take(wait=0.0 if has_noted else wait)
        if not taken and has_noted:
            await self.flush()
            if wait > 0 or self._consumer.held:  # unwritten acknowledgements may have held back further items
                taken = await take(wait=wait)
        if not taken:
            return []
        shortest = rules.shortest_remaining(timeout)
        with self._lock:
            given, more = taken[:count], taken[count:]
            self._popped += len(given)
            self._filled_at, self._popped_at_fill = self._clock.boottime(), self._popped
            shift = self._filled_at - self._now()  # from the storage's clock to this process's
            self._out.update((delivery.id, delivery.deadline + shift - WRITE_MARGIN) for delivery in taken)
            self._ready.extend(_Ahead(delivery, timeout, delivery.deadline + shift - shortest) for delivery in more)
        if more and (self._returning is None or self._returning.done()):
            self._returning = start_task(self._return_unused())
        return given

    async def settle(self) -> None:
        """Write the noted acknowledgements and put back the items taken ahead, before any other use of the consumer."""
        self._put_back()
        await self.flush()

    async def flush(self) -> None:
        """Write the noted acknowledgements. Raises StoreError; then they stay noted."""
        async with self._flushing:
            with self._lock:
                noted, self._done = self._done, []
            try:
                if noted:
                    await self._consumer.done(noted)
            except UnknownLease as error:
                log.warning("%d finished items will be delivered again: their leases were lost", len(error.leases))
            except BaseException:
                with self._lock:
                    self._done = [lease for lease in noted if self._consumer.has_out(lease)] + self._done
                raise

    def forget(self, leases: Sequence[str]) -> None:
        """Note that these leases have ended in another way."""
        with self._lock:
            for lease in leases:
                self._out.pop(lease, None)

    def purged(self) -> None:
        """Note that all items may have been purged: hand out none of those taken ahead, and note no acknowledgement."""
        self._put_back()
        with self._lock:
            self._out.clear()

    async def close(self) -> None:
        """Settle. Items whose acknowledgements cannot be written now are delivered again when their leases run out."""
        for task in (self._writing, self._returning):
            if task is not None:
                task.cancel()
        try:
            await self.settle()
        except FrayError as error:
            log.warning("%d finished items will be delivered again: %s", len(self._done), error)

    # --- inside

    def _wanted(self, count: int) -> int:
        """The number of items to take: as many as were finished in `AHEAD_SECONDS`, grown by `AHEAD_GROWTH` at most.

        count: how many the caller wants.
        """
        worked = self._clock.boottime() - self._filled_at
        handed_out = self._popped - self._popped_at_fill + count
        pace = AHEAD_SECONDS * handed_out / worked if worked > 0 else MAX_AHEAD
        most = 1 if self._durable or not self._popped else MAX_AHEAD
        self._ahead = max(1, min(AHEAD_GROWTH * self._ahead, int(pace), most))
        return self._ahead

    def _put_back(self) -> None:
        with self._lock:
            ready, self._ready = self._ready, deque()
            leases = [each.delivery.id for each in ready]
            for lease in leases:
                self._out.pop(lease, None)
        self._consumer.put_back(leases)

    def _schedule_write(self) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._begin_writing()
        else:
            self._loop.call_soon_threadsafe(self._begin_writing)

    def _begin_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = start_task(self._write_acknowledgements())

    async def _write_acknowledgements(self) -> None:
        pauses = backoff(*STORE_PAUSES)
        pause = self._window
        while True:
            await self._clock.sleep(pause)
            try:
                await self.flush()
            except FrayError as error:
                log.warning("acknowledgements of items are not written yet, and are tried again: %s", error)
            except Exception:
                log.exception("acknowledgements were not written, and are tried again")
            else:
                pauses, pause = backoff(*STORE_PAUSES), self._window
                if not self._done:
                    return
                continue
            pause = self._jittered(next(pauses))

    async def _return_unused(self) -> None:
        """Give back the items taken ahead when nobody has asked for a while."""
        while self._ready:
            before = self._popped
            await self._clock.sleep(RETURN_AFTER)
            if self._popped == before:
                self._put_back()
                await self._consumer.give_back_unused()
