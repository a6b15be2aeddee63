"""The segments that a consumer holds. The oldest is handed out first, and one receipt completes many."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.queue.delivery import Delivery, LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import HeldSegment, Instant, OutItem, PoisonIsolation
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.receipts import MAX_RECEIPT_SEGMENTS
from fray_layouts.errors import FrayError

log = logging.getLogger("fray")
MIN_RECEIPT_SEGMENTS = 2
"""Segments from which one receipt costs less than a write of each lease."""


class HeldSegments:
    """The segments of one consumer.

    Attributes:
        by_name: all of them.

    Args:
        on_complete: called with segments all of whose items are done, and with the receipt that says so; "" if their
            leases say so.
        on_release: called with a segment that was released.
    """

    def __init__(
        self,
        queue: OpenQueue,
        on_complete: Callable[[Sequence[HeldSegment], str], None],
        on_release: Callable[[HeldSegment], None],
    ) -> None:
        self.by_name: dict[str, HeldSegment] = {}
        self._queue = queue
        self._stocked: dict[str, HeldSegment] = {}  # those that may have items to hand out
        self._order: list[str] = []  # a heap of their names, and of some that have left
        self._on_complete = on_complete
        self._on_release = on_release

    def add(self, held: HeldSegment) -> None:
        self.by_name[held.name] = held
        self._stock(held)

    def next(self) -> HeldSegment | None:
        """The oldest segment that may have items to hand out; None if there is none."""
        while self._order:
            if (held := self._stocked.get(self._order[0])) is not None:
                return held
            heappop(self._order)
        return None

    def hand_out(self, count: int, timeout: float, isolation: PoisonIsolation, before: str) -> list[Delivery]:
        """Up to `count` of the next items, as long as they need no request.

        before: the name of a segment whose items come first, once they are there.
        """
        instant, given = Instant.of(self._queue), list[Delivery]()
        while len(given) < count and (held := self.next()) is not None:
            if held.name >= before or not held.is_plain(timeout, instant):
                break
            if (delivery := held.hand_out_plain(isolation, instant)) is not None:
                given.append(delivery)
            if not held.ready:
                self.skip(held)
        return given

    def skip(self, held: HeldSegment) -> None:
        """Hand out no more items of this segment until one of its items is released."""
        if self._stocked.get(held.name) is held:
            del self._stocked[held.name]

    def put_back(self, item: OutItem) -> None:
        """Make an item that was handed out the next one to hand out."""
        item.segment.put_back(item)
        self._stock(item.segment)

    def lose(self, held: HeldSegment) -> None:
        """Drop a segment whose claim has ended."""
        self._forget(held)
        held.lose()

    def delivered(self, lease: str) -> tuple[OutItem, Delivery]:
        """The item that was handed out under this lease, and its delivery. Raises UnknownLease if there is none."""
        item = self._find(lease)
        if item is None or item.delivery is None:
            raise UnknownLease(lease)
        return item, item.delivery

    def _find(self, lease: str) -> OutItem | None:
        """The item of this lease; None if it is not out. The id of a lease begins with its segment's name."""
        held = self.by_name.get(lease.partition("/")[0])
        return held.out.get(lease) if held is not None else None

    async def complete(self, leases: Iterable[str]) -> None:
        """Complete the items of these leases. Raises as `Consumer.done` does."""
        groups, unknown = self._grouped(leases)
        while len(whole := self._allowing_receipt(groups)) >= MIN_RECEIPT_SEGMENTS:
            for held in await asyncio.shield(asyncio.ensure_future(self._write_receipt(whole))):
                del groups[held]
        await self._act_on(groups, unknown, self._complete)

    async def release(self, leases: Iterable[str], failed: bool) -> None:
        """Give the items of these leases back. Raises as `Consumer.done` does."""
        await self._act_on(*self._grouped(leases), partial(self._release, failed=failed))

    async def give_back(self, held: HeldSegment) -> None:
        """Release as much of a segment as possible. The rest comes back when its lease runs out."""
        try:
            await self._release(held, held.delivered, failed=False)
        except LeaseLost:
            self.lose(held)
        except FrayError:
            return  # an outage or a refusal: the lease still runs out
        except Exception:
            log.exception("%s was not given back; others get it when its lease runs out", held.name)

    def settle(self, held: HeldSegment) -> None:
        """Drop a segment if all its items are done."""
        if held.is_complete and self.by_name.get(held.name) is held:
            self._forget(held)
            self._on_complete([held], "")

    def _allowing_receipt(self, groups: Mapping[HeldSegment, list[OutItem]]) -> dict[HeldSegment, list[OutItem]]:
        """Those of the segments that one receipt can complete now."""
        now = self._queue.core.clock.boottime()
        out = ((held, [item for item in items if item.id in held.out]) for held, items in groups.items())
        whole = ((held, items) for held, items in out if held.allows_receipt(len(items), now))
        return dict(itertools.islice(whole, MAX_RECEIPT_SEGMENTS))

    async def _write_receipt(self, groups: Mapping[HeldSegment, list[OutItem]]) -> list[HeldSegment]:
        """Complete whole segments by one receipt; returns those for which it counts. The items of others are out again.

        Meanwhile the claims of some may be lost, and the segments claimed anew, so only the object says which claim it
        is.
        """
        done: dict[str, list[str]] = {}
        written = asyncio.get_running_loop().create_future()
        for held, items in groups.items():
            done.setdefault(held.lease.owner, []).append(held.name)
            held.lease.hold_back(written)
            for item in items:
                held.leave(item)
        receipt, finished = "", list[HeldSegment]()
        try:
            receipt = await self._queue.receipts.write(done)
        finally:
            now = self._queue.core.clock.boottime()
            for held, items in groups.items():
                held.lease.hold_back(None)
                if receipt and held.ended_in_time(now):
                    self._forget(held)
                    finished.append(held)
                elif not held.lease.lost:
                    held.return_to_out(items)
            written.set_result(None)
            self._on_complete(finished, receipt)
        return finished

    def _grouped(self, leases: Iterable[str]) -> tuple[dict[HeldSegment, list[OutItem]], list[str]]:
        """The items of these leases by segment, and the leases that have no item."""
        unknown: list[str] = []
        groups: dict[HeldSegment, list[OutItem]] = {}
        for lease in dict.fromkeys(leases):
            item = self._find(lease)
            if item is None or item.delivery is None:
                unknown.append(lease)
            else:
                groups.setdefault(item.segment, []).append(item)
        return groups, unknown

    async def _act_on(
        self,
        groups: Mapping[HeldSegment, list[OutItem]],
        unknown: list[str],
        act: Callable[[HeldSegment, Sequence[OutItem]], Awaitable[None]],
    ) -> None:
        """Call `act` on the items of each segment. Afterwards raises UnknownLease, for `unknown` too."""
        lost: list[str] = []

        async def act_on(held: HeldSegment, items: list[OutItem]) -> None:
            out = [item for item in items if item.id in held.out]
            unknown.extend(item.id for item in items if item not in out)
            try:
                if out:
                    await act(held, out)
            except LeaseLost:
                self.lose(held)
                lost.extend(item.id for item in out)

        # Shielded: a write may be applied although the caller is cancelled, and then the item must not count as out.
        await map_concurrently(groups.items(), lambda group: asyncio.shield(asyncio.ensure_future(act_on(*group))))
        if unknown or lost:
            raise (UnknownLease if unknown else LeaseLost)(*unknown, *lost)

    async def _complete(self, held: HeldSegment, items: Sequence[OutItem]) -> None:
        await held.complete(items)
        self.settle(held)

    async def _release(self, held: HeldSegment, items: Sequence[OutItem], failed: bool) -> None:
        """Release items. A segment that is released as a whole is held until that is written, so nothing claims it."""
        whole = len(items) == len(held.out)
        if whole:
            self.skip(held)
        try:
            await held.release(items, failed)
        except Exception:
            self._stock(held)
            raise
        if whole:
            self.lose(held)
            self._on_release(held)
        else:
            self._stock(held)

    def _stock(self, held: HeldSegment) -> None:
        """Have the items of a segment handed out, if its claim is still held."""
        if self.by_name.get(held.name) is not held:
            return
        if held.name not in self._stocked:
            heappush(self._order, held.name)
        self._stocked[held.name] = held

    def _forget(self, held: HeldSegment) -> None:
        self.skip(held)
        if self.by_name.get(held.name) is held:
            del self.by_name[held.name]
