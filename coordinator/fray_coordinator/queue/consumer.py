"""Taking items, and what becomes of them: done, released, extended; at the end everything is given back."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from fray_coordinator.backoff import backoff
from fray_coordinator.core import map_concurrently
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.cancellation import take_or_return
from fray_coordinator.queue.claiming import ClaimLost, take_over
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.dead_letters import DeadLetterWriter
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment, LeaseEdit
from fray_coordinator.queue.inflight import Delivery, InFlight
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.poison_isolation import PoisonIsolation
from fray_coordinator.queue.scanner import SegmentScanner
from fray_layouts.errors import FrayError
from fray_layouts.queue_records import QueueLease

log = logging.getLogger("fray")
MAINTENANCE_INTERVAL = 1.0
"""Seconds between looks at what is held and finished."""
MIN_POLL, MAX_POLL = 0.2, 5.0
"""Seconds between looks at an empty queue on a bucket: they grow."""
MIN_LOCAL_POLL, MAX_LOCAL_POLL = 0.002, 0.05
"""The same where looking costs nothing."""


class Consumer:
    """One process's hold on one queue.

    Attributes:
        held: the segments that are claimed, by name.
    """

    def __init__(self, home: OpenQueue, bell: QueueDoorbell) -> None:
        self._inflight = InFlight()
        self.held = self._inflight.held
        self._home = home
        self._clock = home.core.clock
        self._bell = bell
        self._serials = itertools.count()
        self._collector = Collector(home)
        self._undertaker = DeadLetterWriter(home)
        self._finder = SegmentScanner(home, bell, self._collector, self.held.__contains__)
        self._tending: asyncio.Task[None] | None = None

    # --- taking

    async def take(self, count: int, timeout: float, gate: PoisonIsolation, wait: float = 0.0) -> list[Delivery]:
        """Up to `count` items, each leased for at least 0.4 of `timeout` seconds from now.

        Who is cancelled gives back what he gets.

        Args:
            gate: of the process that they are for.
            wait: seconds to wait for the first one.

        Raises:
            InvalidInput: no lease can last so long.
            StoreUnavailable: unresolved; call again.
        """
        timeout = rules.checked_timeout("lease_timeout", timeout)
        deadline = self._clock.boottime() + wait
        local = self._home.core.store.local
        pauses = backoff(MIN_LOCAL_POLL, MAX_LOCAL_POLL) if local else backoff(MIN_POLL, MAX_POLL)
        while True:
            patient = self._clock.boottime() < deadline
            taken = await take_or_return(self._take(count, timeout, gate, patient), self._return)
            left = deadline - self._clock.boottime()
            if taken or left <= 0:
                return taken
            rest = next(pauses) if local else max(next(pauses), self._finder.crowd.rest)
            await self._clock.sleep(min(left, self._home.core.jittered(rest)))

    async def _return(self, taken: list[Delivery]) -> None:
        await self.release([delivery.id for delivery in taken], failed=False)

    async def _take(self, count: int, timeout: float, gate: PoisonIsolation, patient: bool) -> list[Delivery]:
        self._tend()
        await self._take_back_expired(timeout)
        taken: list[Delivery] = []
        failure: Exception | None = None
        try:
            while len(taken) < count and gate.admits(False):
                held = min(self._inflight.stocked.values(), key=lambda held: held.segment, default=None)
                if held is None:
                    found = await self._finder.find(count - len(taken), timeout, patient)
                    for segment in found:
                        self._inflight.hold(segment)
                    if not found:
                        break
                elif not gate.admits(held.lease.suspect):
                    break
                else:
                    try:
                        delivery = await self._next_of(held, timeout, gate)
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

    async def _put_off(self, held: HeldSegment) -> None:
        """Leave a segment whose next item cannot be handed out for later: others have theirs to give."""
        self._inflight.stocked.pop(held.segment, None)
        if not held.out:
            await self._give_back(held, [])
        self._finder.finished(held.segment)

    async def _next_of(self, held: HeldSegment, timeout: float, gate: PoisonIsolation) -> Delivery | None:
        """Hand out the next item of the segment; None if there was none, or it was given up."""
        if not held.ready:
            self._inflight.stocked.pop(held.segment, None)
            return None
        item, suspect = held.ready.popleft(), held.lease.suspect
        held.out[item] = gate.enter(suspect, lambda: held.lost or held.expired)
        try:
            delivery = await self._hand_out(held, item, suspect, timeout)
        except LeaseLost:
            self._inflight.drop(held)
            delivery = None
        except BaseException:
            held.ready.appendleft(item)
            self._inflight.leave(held, item)
            raise
        if delivery is None:
            self._inflight.leave(held, item)
        else:
            self._inflight.out[delivery.id] = delivery
        return delivery

    async def _hand_out(self, held: HeldSegment, item: int, suspect: bool, timeout: float) -> Delivery | None:
        """Make sure that the lease is trusted, and the start marked where that is needed."""
        number = rules.delivery_number(held.lease, item)
        body = await self._body(held, item)
        if rules.is_exhausted(held.lease, item, self._home.settings.max_deliveries):
            await self._undertaker.bury(held, item, body or b"", number - 1, f"given up after {number - 1} deliveries")
        elif body is None:
            await self._undertaker.bury(held, item, b"", number - 1, "its content is missing")
        else:
            if suspect:
                await held.change(partial(rules.counted, item=item))
            while not (held.trusted and rules.leaves_enough(held.remaining, timeout)):
                await held.change(partial(rules.renewed, timeout=timeout))
            return Delivery(
                held, item, next(self._serials), number, self._home.core.now(), body, held.content.header.encoding
            )
        self._settle(held)
        return None

    async def _body(self, held: HeldSegment, item: int) -> bytes | None:
        if item not in held.content.header.large:
            return held.content.bodies[item]
        found = await self._home.core.store.get(self._home.keys.large(held.segment, item))
        return found.data if found else None

    async def _take_back_expired(self, timeout: float) -> None:
        """What this process itself let expire is free for everybody, and so for this process."""
        for held in [held for held in self.held.values() if held.expired and not held.finished]:
            idle = not held.out
            self._inflight.drop(held)
            result = await take_over(self._home, held.segment, held.stored, timeout, with_word=idle)
            if isinstance(result, HeldSegment):
                self._inflight.hold(result)
            elif isinstance(result, ClaimLost) and result.lease is not None:
                self._finder.came_back(held.segment, result.lease)

    def news(self) -> None:
        """This process itself pushed something."""
        self._finder.news()

    # --- ending

    async def done(self, leases: Iterable[str]) -> None:
        """Complete the items that are out under these ids; returns when that has been written.

        Raises:
            UnknownLease: done or released before, or it ran out; LeaseLost: and another has the item. It names those
                of which this is so; the others are done.
            StoreUnavailable: unresolved; call again.
        """
        await self._each_held(leases, self._complete)

    async def release(self, leases: Iterable[str], failed: bool = True) -> None:
        """Give items back; they come first. failed: it counts towards the maximum. Raises as `done` does."""
        await self._each_held(leases, partial(self._release, failed=failed))

    async def extend(self, delivery: Delivery, timeout: float) -> None:
        """Hold the item for `timeout` seconds from now at least. Raises as `take` and `done` do."""
        timeout = rules.checked_timeout("seconds", timeout)
        self.delivery(delivery.id)
        await self._change(delivery.held, partial(rules.renewed, timeout=timeout))

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Make the item a dead letter. Raises as `done` does."""
        self.delivery(delivery.id)
        try:
            await self._undertaker.bury(delivery.held, delivery.item, delivery.body, delivery.number, reason)
        except LeaseLost:
            self._inflight.drop(delivery.held)
            raise
        self._inflight.take_out(delivery)
        self._settle(delivery.held)

    async def close(self) -> None:
        """Give everything back; what was started but not done does not count."""
        if self._tending is not None:
            self._tending.cancel()
        out: dict[HeldSegment, list[Delivery]] = {held: [] for held in self.held.values()}
        for delivery in self._inflight.out.values():
            out.setdefault(delivery.held, []).append(delivery)
        await map_concurrently(out, lambda held: self._give_back(held, out[held]))
        with suppress(FrayError):
            await self._collector.clear()
        await self._undertaker.close()
        await self._bell.close()

    def forget(self, segments: Iterable[str]) -> None:
        """What was purged is nobody's."""
        for held in [self.held[segment] for segment in segments if segment in self.held]:
            self._inflight.drop(held)

    def delivery(self, lease: str) -> Delivery:
        """What is out under this id. Raises UnknownLease."""
        return self._inflight.delivery(lease)

    # --- inside

    async def _each_held(
        self, leases: Iterable[str], act: Callable[[HeldSegment, list[Delivery]], Awaitable[None]]
    ) -> None:
        """`act` on what is out under these ids, by segment; one that is lost keeps it from no other."""
        asked = dict.fromkeys(leases)
        unknown = [lease for lease in asked if lease not in self._inflight.out]
        lost: list[str] = []
        groups: dict[HeldSegment, list[Delivery]] = {}
        for delivery in [self._inflight.out[lease] for lease in asked if lease in self._inflight.out]:
            groups.setdefault(delivery.held, []).append(delivery)

        async def act_on(held: HeldSegment, deliveries: list[Delivery]) -> None:
            out = [delivery for delivery in deliveries if delivery.id in self._inflight.out]
            unknown.extend(delivery.id for delivery in deliveries if delivery not in out)
            try:
                if out:
                    await act(held, out)
            except LeaseLost:
                lost.extend(delivery.id for delivery in out)

        # to the end, even if the caller is cancelled: what was sent may land, and then it must not count as out
        await map_concurrently(groups.items(), lambda group: asyncio.shield(asyncio.ensure_future(act_on(*group))))
        if unknown or lost:
            raise (UnknownLease if unknown else LeaseLost)(*unknown, *lost)

    async def _complete(self, held: HeldSegment, deliveries: list[Delivery]) -> None:
        items = sum(1 << delivery.item for delivery in deliveries)
        await self._end(held, deliveries, partial(rules.completed, items=items))
        self._settle(held)

    async def _release(self, held: HeldSegment, deliveries: list[Delivery], failed: bool) -> None:
        counts = {d.item: int(failed) - int(held.out[d.item].suspect) for d in deliveries}

        def count(lease: QueueLease) -> QueueLease:
            for item, by in counts.items():
                lease = rules.counted(lease, item, by) if by else lease
            return lease

        if len(held.out) == len(deliveries):
            self._inflight.forget(held)
            await self._end(held, deliveries, lambda lease: rules.released(count(lease)))
            self._came_back(held)
        else:
            await self._end(held, deliveries, count)
            held.ready.extendleft(sorted(counts, reverse=True))
            self._inflight.stocked[held.segment] = held

    async def _end(self, held: HeldSegment, deliveries: list[Delivery], edit: LeaseEdit) -> None:
        outs = [(delivery, out) for delivery in deliveries if (out := self._inflight.take_out(delivery))]
        try:
            await self._change(held, edit)
        except LeaseLost:
            raise
        except Exception:
            if held.lost:
                raise LeaseLost() from None
            self.held[held.segment] = held
            for delivery, out in outs:
                self._inflight.put_out(delivery, out)
            raise

    async def _change(self, held: HeldSegment, edit: LeaseEdit) -> None:
        try:
            await held.change(edit)
        except LeaseLost:
            self._inflight.drop(held)
            raise

    def _settle(self, held: HeldSegment) -> None:
        """After an item is done: is the segment?"""
        if held.finished and self.held.get(held.segment) is held:
            self._inflight.forget(held)
            self._finder.finished(held.segment)
            self._collector.finished(held)

    async def _give_back(self, held: HeldSegment, out: list[Delivery]) -> None:
        """Give up what may be given up; what cannot be comes back when its lease runs out."""
        try:
            await self._release(held, out, failed=False)
        except FrayError:
            return
        except Exception:
            log.exception("%s was not given back", held.segment)

    def _came_back(self, held: HeldSegment) -> None:
        self._finder.came_back(held.segment, held.stored)
        self._bell.ring(came_back=True)

    def _tend(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.ensure_future(self._tend_for_ever())

    async def _tend_for_ever(self) -> None:
        while True:
            await self._clock.sleep(MAINTENANCE_INTERVAL)
            for held in list(self.held.values()):
                if held.ready and held.idle and not held.trusted:
                    await self._give_back(held, [])
            try:
                await self._collector.turn()
            except FrayError:
                continue  # the next turn does it
            except Exception:
                log.exception("what is finished was not cleared away")
