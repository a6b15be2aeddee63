"""A consumer of one queue: takes items, and ends their leases.

The scanner claims segments, `HeldSegments` knows the held ones, and `HeldSegment` has the state of their items. A
complete segment goes to the collector. When the consumer is closed it gives everything back.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from fray_coordinator.backoff import backoff
from fray_coordinator.concurrency import map_concurrently, start_task
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol import queue_lease as rules, queue_segments as scan
from fray_coordinator.queue.cancelling import ItemCanceller, NoteCancelled
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.dead_letters import DeadLetterWriter
from fray_coordinator.queue.delivery import Delivery, LeaseLost, UnknownLease, take_or_return
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import HeldSegment, OutItem, PoisonIsolation
from fray_coordinator.queue.held_segments import HeldSegments
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.scanner import SegmentScanner
from fray_layouts.errors import FrayError
from fray_layouts.queue_keys import ItemPlace

log = logging.getLogger("fray")
MAINTENANCE_INTERVAL = 1.0
"""Seconds between two runs of the maintenance: idle segments are given back, finished ones deleted."""
MIN_LOCAL_POLL, MAX_LOCAL_POLL = 0.002, 0.05
"""Seconds between polls of an empty queue on local files, where they are free, at first and at most; they double."""


class Consumer:
    """The part that one process takes in consuming one queue.

    Attributes:
        held: the claimed segments, by name.
    """

    def __init__(self, queue: OpenQueue, doorbell: QueueDoorbell) -> None:
        self._segments = HeldSegments(queue, self._completed, self._released)
        self.held = self._segments.by_name
        self._queue = queue
        self._clock = queue.core.clock
        self._doorbell = doorbell
        self._collector = Collector(queue)
        self._dead_letters = DeadLetterWriter(queue)
        self._scanner = SegmentScanner(queue, doorbell, self._collector, self.held.__contains__)
        self._canceller = ItemCanceller(queue, self._completed, self._released)
        self._maintenance: asyncio.Task[None] | None = None

    # --- taking

    async def take(
        self, count: int, timeout: float, isolation: PoisonIsolation, wait: float = 0.0, ahead: int = 0
    ) -> list[Delivery]:
        """Up to `count` items, each leased for at least 0.4 of `timeout` seconds from now.

        If the caller is cancelled, the items that it would have got are given back.

        Args:
            isolation: that of the process for which they are.
            wait: seconds to wait for the first one.
            ahead: up to so many more items, unless the storage would have to be listed for them.

        Raises:
            InvalidInput: no lease can last so long.
            StoreUnavailable: the outcome is unknown; call again.
        """
        timeout = rules.checked_timeout("lease_timeout", timeout)
        deadline = self._clock.boottime() + wait
        local = self._queue.core.store.local
        pauses = backoff(MIN_LOCAL_POLL, MAX_LOCAL_POLL) if local else backoff(scan.MIN_REST, scan.MAX_REST)
        while True:
            patient = self._clock.boottime() < deadline
            taken = await take_or_return(self._take(count, timeout, isolation, patient, ahead), self._return)
            left = deadline - self._clock.boottime()
            if taken or left <= 0:
                return taken
            rest = next(pauses) if local else max(next(pauses), self._scanner.contention.rest)
            await self._clock.sleep(min(left, self._queue.core.jittered(rest)))

    async def _return(self, taken: list[Delivery]) -> None:
        await self.release([delivery.id for delivery in taken], failed=False)

    async def _take(
        self, count: int, timeout: float, isolation: PoisonIsolation, patient: bool, ahead: int
    ) -> list[Delivery]:
        """Up to `count` + `ahead` items, without a wait for more. Raises an error only if it has no item to return."""
        self._maintain()
        await self._take_back_expired(timeout)
        taken: list[Delivery] = []
        failure: Exception | None = None
        most = count + ahead
        try:
            while len(taken) < most and isolation.admits(False):
                held = self._segments.next()
                if held is None and len(taken) >= count and not self._scanner.has_listed:
                    break
                first = self._scanner.first_released
                if held is None or held.name > first:
                    if not await self._claim_more(most - len(taken), timeout, patient) and held is None:
                        break
                elif not isolation.admits(held.lease.record.suspect):
                    break
                elif plain := self._segments.hand_out(most - len(taken), timeout, isolation, first):
                    taken += plain
                else:
                    delivery, fault = await self._next_or_put_off(held, timeout, isolation)
                    taken += [delivery] if delivery else []
                    failure = fault or failure
        except Exception as error:
            failure = error
        if failure is not None and not taken:
            raise failure
        return taken

    async def _claim_more(self, wanted: int, timeout: float, patient: bool) -> bool:
        """Claim segments with about `wanted` items, and return whether any was claimed; see `SegmentScanner.find`."""
        found = await self._scanner.find(wanted, timeout, patient)
        for segment in found:
            self._segments.add(segment)
        return bool(found)

    async def _next_or_put_off(
        self, held: HeldSegment, timeout: float, isolation: PoisonIsolation
    ) -> tuple[Delivery | None, Exception | None]:
        """Hand out the next item of the segment. If that fails, put the segment off and return the error too.

        Raises StoreUnavailable, which concerns all segments.
        """
        try:
            return await self._next_of(held, timeout, isolation), None
        except StoreUnavailable:
            raise
        except Exception as error:
            await self._put_off(held)
            return None, error

    async def _next_of(self, held: HeldSegment, timeout: float, isolation: PoisonIsolation) -> Delivery | None:
        """Hand out the next item of the segment; None if there was none, or if it became a dead letter."""
        item = held.take(isolation)
        if item is None:
            self._segments.skip(held)
            return None
        delivery = None
        try:
            delivery = await self._hand_out(item, timeout)
        except LeaseLost:
            self._segments.lose(held)
        except BaseException:
            held.put_back(item)
            raise
        if delivery is None:
            held.leave(item)
        if not held.ready:
            self._segments.skip(held)
        return delivery

    async def _hand_out(self, item: OutItem, timeout: float) -> Delivery | None:
        held, number = item.segment, rules.delivery_number(item.segment.lease.record, item.index)
        body = await held.body(item.index)
        if rules.is_exhausted(held.lease.record, item.index, self._queue.settings.max_deliveries):
            reason = f"given up after {number - 1} deliveries"
        elif body is None:
            reason = "its content is missing"
        else:
            return await held.deliver(item, body, number, timeout)
        await self._dead_letters.write(held, item.index, body or b"", number - 1, reason)
        self._segments.settle(held)
        return None

    async def _put_off(self, held: HeldSegment) -> None:
        """Go on with other segments, and leave one whose next item cannot be handed out for later."""
        self._segments.skip(held)
        if not held.out:
            await self._segments.give_back(held)
        self._scanner.finished(held.name)

    async def _take_back_expired(self, timeout: float) -> None:
        """Claim again the segments whose leases this process itself let expire, since anybody may take them now.

        One whose lease is being written is left to that write, which renews the lease.
        """
        for held in list(self.held.values()):
            if self.held.get(held.name) is not held or not held.lease.expired or held.lease.is_being_written:
                continue  # also if another call has taken it back meanwhile
            idle = not held.out
            self._segments.lose(held)
            if (taken := await self._scanner.take_back(held, timeout, idle)) is not None:
                self._segments.add(taken)

    def put_back(self, leases: Sequence[str]) -> None:
        """Make items that nobody has seen the next ones to hand out, in their former order."""
        for lease in reversed(leases):
            if self.has_out(lease):
                self._segments.put_back(self._segments.delivered(lease)[0])

    def has_out(self, lease: str) -> bool:
        """Whether the item of this lease is handed out."""
        with suppress(UnknownLease):
            return bool(self._segments.delivered(lease))
        return False

    async def give_back_unused(self) -> None:
        """Give back segments of one item for which nobody asked."""

        async def give_back(held: HeldSegment) -> None:
            if held.is_idle and list(held.ready) == [0] and not held.lease.lost:
                await self._segments.give_back(held)

        await map_concurrently(list(self.held.values()), give_back)

    def pushed(self) -> None:
        """Note that this process itself pushed items."""
        self._scanner.pushed()

    # --- ending

    async def done(self, leases: Iterable[str]) -> None:
        """Complete the items of these leases; returns when that is written.

        Raises:
            UnknownLease: some leases were ended before, or ran out (LeaseLost: and another consumer has the item). The
                error names them; the items of the other leases are done.
            StoreUnavailable: the outcome is unknown; call again.
        """
        await self._segments.complete(leases)

    async def release(self, leases: Iterable[str], failed: bool = True) -> None:
        """Give items back; they come first. Raises as `done` does.

        failed: it counts towards the maximum of deliveries.
        """
        await self._segments.release(leases, failed)

    async def extend(self, lease: str, timeout: float) -> float:
        """Hold the item for at least `timeout` seconds from now; its new deadline. Raises as `take` and `done` do."""
        timeout = rules.checked_timeout("seconds", timeout)
        held = self._segments.delivered(lease)[0].segment
        try:
            await held.lease.change(partial(rules.renewed, timeout=timeout))
        except LeaseLost:
            self._segments.lose(held)
            raise
        return self._queue.core.now() + held.lease.remaining

    async def give_up(self, lease: str, reason: str) -> None:
        """Make the item a dead letter. Raises as `done` does."""
        item, delivery = self._segments.delivered(lease)
        try:
            await self._dead_letters.write(item.segment, item.index, delivery.item.body, delivery.number, reason)
        except LeaseLost:
            self._segments.lose(item.segment)
            raise
        item.segment.leave(item)
        self._segments.settle(item.segment)

    async def cancel(self, places: Iterable[ItemPlace], note: NoteCancelled) -> set[ItemPlace]:
        """Cancel the items that nobody has; see `ItemCanceller.cancel`."""
        self._maintain()  # which deletes the segments of which nothing is left
        return await self._canceller.cancel(places, note)

    async def clear(self) -> None:
        """Delete the segments that this process finished, so that nobody counts them any more."""
        with suppress(FrayError):  # other consumers delete finished segments that are overdue
            await self._collector.clear()

    async def close(self) -> None:
        """Give everything back. A delivery that was started and is not done does not count as a failure."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        await map_concurrently(list(self.held.values()), self._segments.give_back)
        await self.clear()
        await self._dead_letters.close()
        await self._doorbell.close()

    def forget(self, segments: Iterable[str]) -> None:
        """Note that these segments were purged."""
        for held in [self.held[segment] for segment in segments if segment in self.held]:
            self._segments.lose(held)

    # --- inside

    def _completed(self, segments: Sequence[HeldSegment], receipt: str) -> None:
        self._scanner.finished(*(held.name for held in segments))
        self._collector.finished(segments, receipt)

    def _released(self, held: HeldSegment) -> None:
        self._scanner.released(held.name, held.lease.stored)
        self._doorbell.ring(released=True)

    def _maintain(self) -> None:
        if self._maintenance is None or self._maintenance.done():
            self._maintenance = start_task(self._maintain_for_ever())

    async def _maintain_for_ever(self) -> None:
        while True:
            await self._clock.sleep(MAINTENANCE_INTERVAL)
            for held in list(self.held.values()):
                if held.ready and held.is_idle and not held.lease.trusted:
                    await self._segments.give_back(held)
            try:
                await self._collector.turn()
            except FrayError:
                continue  # the next turn tries again
            except Exception:
                log.exception("finished segments were not deleted; the next run tries again")
