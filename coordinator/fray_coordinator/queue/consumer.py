"""A consumer of one queue: takes items, and ends their leases.

Segments are claimed by the scanner and held in `held`; `HeldSegment` knows the state of their items. What is complete
goes to the collector; at the end everything is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from fray_coordinator.backoff import backoff
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.cancellation import take_or_return
from fray_coordinator.queue.claiming import ClaimLost, take_over
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.dead_letters import DeadLetterWriter
from fray_coordinator.queue.delivery import Delivery
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment, OutItem
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.poison_isolation import PoisonIsolation
from fray_coordinator.queue.scanner import SegmentScanner
from fray_layouts.errors import FrayError

log = logging.getLogger("fray")
MAINTENANCE_INTERVAL = 1.0
"""Seconds between looks at what is held and finished."""
MIN_POLL, MAX_POLL = 0.2, 5.0
"""Seconds between looks at an empty queue on a bucket: they double."""
MIN_LOCAL_POLL, MAX_LOCAL_POLL = 0.002, 0.05
"""The same on local files, where looking costs nothing."""


class Consumer:
    """One process's hold on one queue.

    Attributes:
        held: the segments that are claimed, by name.
    """

    def __init__(self, queue: OpenQueue, doorbell: QueueDoorbell) -> None:
        self.held: dict[str, HeldSegment] = {}
        self._stocked: dict[str, HeldSegment] = {}  # those that may have items to hand out
        self._queue = queue
        self._clock = queue.core.clock
        self._doorbell = doorbell
        self._collector = Collector(queue)
        self._dead_letters = DeadLetterWriter(queue)
        self._scanner = SegmentScanner(queue, doorbell, self._collector, self.held.__contains__)
        self._maintenance: asyncio.Task[None] | None = None

    # --- taking

    async def take(self, count: int, timeout: float, isolation: PoisonIsolation, wait: float = 0.0) -> list[Delivery]:
        """Up to `count` items, each leased for at least 0.4 of `timeout` seconds from now.

        A caller that is cancelled gives back what it gets.

        Args:
            isolation: of the process that they are for.
            wait: seconds to wait for the first one.

        Raises:
            InvalidInput: no lease can last so long.
            StoreUnavailable: unresolved; call again.
        """
        timeout = rules.checked_timeout("lease_timeout", timeout)
        deadline = self._clock.boottime() + wait
        local = self._queue.core.store.local
        pauses = backoff(MIN_LOCAL_POLL, MAX_LOCAL_POLL) if local else backoff(MIN_POLL, MAX_POLL)
        while True:
            patient = self._clock.boottime() < deadline
            taken = await take_or_return(self._take(count, timeout, isolation, patient), self._return)
            left = deadline - self._clock.boottime()
            if taken or left <= 0:
                return taken
            rest = next(pauses) if local else max(next(pauses), self._scanner.contention.rest)
            await self._clock.sleep(min(left, self._queue.core.jittered(rest)))

    async def _return(self, taken: list[Delivery]) -> None:
        await self.release([delivery.id for delivery in taken], failed=False)

    async def _take(self, count: int, timeout: float, isolation: PoisonIsolation, patient: bool) -> list[Delivery]:
        self._maintain()
        await self._take_back_expired(timeout)
        taken: list[Delivery] = []
        failure: Exception | None = None
        try:
            while len(taken) < count and isolation.admits(False):
                held = min(self._stocked.values(), key=lambda held: held.name, default=None)
                if held is None:
                    found = await self._scanner.find(count - len(taken), timeout, patient)
                    for segment in found:
                        self._hold(segment)
                    if not found:
                        break
                elif not isolation.admits(held.lease.record.suspect):
                    break
                else:
                    try:
                        delivery = await self._next_of(held, timeout, isolation)
                    except StoreUnavailable:
                        raise
                    except Exception as error:
                        failure = error
                        await self._put_off(held)
                    else:
                        taken += [delivery] if delivery else []
        except Exception as error:
            failure = error
        if failure is not None and not taken:
            raise failure
        return taken

    async def _next_of(self, held: HeldSegment, timeout: float, isolation: PoisonIsolation) -> Delivery | None:
        """Hand out the next item of the segment; None if there was none, or it became a dead letter."""
        item = held.take(isolation)
        if item is None:
            self._stocked.pop(held.name, None)
            return None
        delivery = None
        try:
            delivery = await self._hand_out(item, timeout)
        except LeaseLost:
            self._lose(held)
        except BaseException:
            held.put_back(item)
            raise
        if delivery is None:
            held.leave(item)
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
        self._collect_if_complete(held)
        return None

    async def _put_off(self, held: HeldSegment) -> None:
        """Leave a segment whose next item cannot be handed out for later, and go on with others."""
        self._stocked.pop(held.name, None)
        if not held.out:
            await self._give_back(held, [])
        self._scanner.finished(held.name)

    async def _take_back_expired(self, timeout: float) -> None:
        """Claim anew what this process itself let expire: it is free for everybody."""
        for held in [held for held in self.held.values() if held.lease.expired and not held.is_complete]:
            idle = not held.out
            self._lose(held)
            result = await take_over(self._queue, held.name, held.lease.stored, timeout, with_word=idle)
            if isinstance(result, HeldSegment):
                self._hold(result)
            elif isinstance(result, ClaimLost) and result.lease is not None:
                self._scanner.released(held.name, result.lease)

    def pushed(self) -> None:
        """Note that this process itself pushed something."""
        self._scanner.pushed()

    # --- ending

    async def done(self, leases: Iterable[str]) -> None:
        """Complete the items of these leases; returns when that has been written.

        Raises:
            UnknownLease: a lease was ended before, or ran out (LeaseLost: and another has the item). It names these
                leases; the items of the others are done.
            StoreUnavailable: unresolved; call again.
        """
        await self._by_segment(leases, self._complete)

    async def release(self, leases: Iterable[str], failed: bool = True) -> None:
        """Give items back; they come first. failed: it counts towards the maximum. Raises as `done` does."""
        await self._by_segment(leases, partial(self._release, failed=failed))

    async def extend(self, lease: str, timeout: float) -> float:
        """Hold the item for `timeout` seconds from now at least; its new deadline. Raises as `take` and `done` do."""
        timeout = rules.checked_timeout("seconds", timeout)
        held = self._delivered(lease)[0].segment
        try:
            await held.lease.change(partial(rules.renewed, timeout=timeout))
        except LeaseLost:
            self._lose(held)
            raise
        return self._queue.core.now() + held.lease.remaining

    async def give_up(self, lease: str, reason: str) -> None:
        """Make the item a dead letter. Raises as `done` does."""
        item, delivery = self._delivered(lease)
        try:
            await self._dead_letters.write(item.segment, item.index, delivery.item.body, delivery.number, reason)
        except LeaseLost:
            self._lose(item.segment)
            raise
        item.segment.leave(item)
        self._collect_if_complete(item.segment)

    async def close(self) -> None:
        """Give everything back; what was started but not done does not count."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        await map_concurrently(list(self.held.values()), lambda held: self._give_back(held, held.delivered))
        with suppress(FrayError):
            await self._collector.clear()
        await self._dead_letters.close()
        await self._doorbell.close()

    def forget(self, segments: Iterable[str]) -> None:
        """Note that these segments were purged."""
        for held in [self.held[segment] for segment in segments if segment in self.held]:
            self._lose(held)

    # --- inside

    def _delivered(self, lease: str) -> tuple[OutItem, Delivery]:
        """The item that was handed out under this lease. Raises UnknownLease."""
        held = self.held.get(lease.partition("/")[0])
        item = held.out.get(lease) if held else None
        if item is None or item.delivery is None:
            raise UnknownLease(lease)
        return item, item.delivery

    async def _by_segment(
        self, leases: Iterable[str], act: Callable[[HeldSegment, Sequence[OutItem]], Awaitable[None]]
    ) -> None:
        """`act` on the items of these leases, by segment. Raises UnknownLease afterwards for leases without one."""
        unknown: list[str] = []
        lost: list[str] = []
        groups: dict[HeldSegment, list[OutItem]] = {}
        for lease in dict.fromkeys(leases):
            try:
                item, _ = self._delivered(lease)
                groups.setdefault(item.segment, []).append(item)
            except UnknownLease:
                unknown.append(lease)

        async def act_on(held: HeldSegment, items: list[OutItem]) -> None:
            out = [item for item in items if item.id in held.out]
            unknown.extend(item.id for item in items if item not in out)
            try:
                if out:
                    await act(held, out)
            except LeaseLost:
                self._lose(held)
                lost.extend(item.id for item in out)

        # shielded: what was sent may land though the caller is cancelled, and then the item must not count as out
        await map_concurrently(groups.items(), lambda group: asyncio.shield(asyncio.ensure_future(act_on(*group))))
        if unknown or lost:
            raise (UnknownLease if unknown else LeaseLost)(*unknown, *lost)

    async def _complete(self, held: HeldSegment, items: Sequence[OutItem]) -> None:
        await self._written(held, held.complete(items))
        self._collect_if_complete(held)

    async def _release(self, held: HeldSegment, items: Sequence[OutItem], failed: bool) -> None:
        whole = len(items) == len(held.out)
        if whole:
            self._forget(held)
        await self._written(held, held.release(items, failed))
        if whole:
            self._scanner.released(held.name, held.lease.stored)
            self._doorbell.ring(released=True)
        else:
            self._stocked[held.name] = held

    async def _written(self, held: HeldSegment, end: Awaitable[None]) -> None:
        """Wait until the end of items was written; a segment that may not have been given back is still held."""
        try:
            await end
        except Exception:
            if not held.lease.lost:
                self.held[held.name] = held
            raise

    async def _give_back(self, held: HeldSegment, items: Sequence[OutItem]) -> None:
        """Release what can be released; the rest comes back when its lease runs out."""
        try:
            await self._release(held, items, failed=False)
        except FrayError:
            return
        except Exception:
            log.exception("%s was not given back", held.name)

    def _hold(self, held: HeldSegment) -> None:
        self.held[held.name] = self._stocked[held.name] = held

    def _forget(self, held: HeldSegment) -> None:
        """Hold the segment no longer: it is complete, lost or released."""
        self._stocked.pop(held.name, None)
        if self.held.get(held.name) is held:
            del self.held[held.name]

    def _lose(self, held: HeldSegment) -> None:
        self._forget(held)
        held.lose()

    def _collect_if_complete(self, held: HeldSegment) -> None:
        if held.is_complete and self.held.get(held.name) is held:
            self._forget(held)
            self._scanner.finished(held.name)
            self._collector.finished(held)

    def _maintain(self) -> None:
        if self._maintenance is None or self._maintenance.done():
            self._maintenance = asyncio.ensure_future(self._maintain_for_ever())

    async def _maintain_for_ever(self) -> None:
        while True:
            await self._clock.sleep(MAINTENANCE_INTERVAL)
            for held in list(self.held.values()):
                if held.ready and held.is_idle and not held.lease.trusted:
                    await self._give_back(held, [])
            try:
                await self._collector.turn()
            except FrayError:
                continue  # the next turn does it
            except Exception:
                log.exception("what is finished was not cleared away")
