"""Finding a segment to claim: what came back first, then the oldest that is free.

A listing is used up before the next one is asked for, and the next begins where the last ended: that position is a
cache for one repair interval, after which the look begins at the oldest segment again. Leases of others are remembered
with their version, and read again on condition of it: when the bell tells that something came back, or when they may
have expired. What has been finished meanwhile is seen in a listing, so that nobody reads its lease. A claim that was
lost tells that the listing is old; where little is left for many, who can wait leaves it to the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from fray_coordinator.core import is_outage, map_concurrently
from fray_coordinator.errors import BadRecord, StoreUnavailable
from fray_coordinator.protocol import queue_lease as rules, queue_scan as look
from fray_coordinator.queue import doorbell
from fray_coordinator.queue.claiming import ClaimLost, claim, take_over
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.contention import Contention
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import HeldSegment
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.records import Stored
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease

LISTING_PAGE = 1000
LOCAL_LISTING_PAGE = 5000
MAX_LEASE_READS = 32
"""Leases of others read in one look."""
FIRST_READ_DELAY = 10.0
"""Seconds until a lease that was seen on a bucket is read for the first time; a consumer that is new reads at once."""


@dataclass(slots=True)
class WatchedLease:
    """A lease of somebody else. since: when this version was first seen; due: when to read it (again)."""

    since: float
    due: float
    lease: Stored[QueueLease] | None = None


class SegmentScanner:
    """One consumer's view of the queue.

    Attributes:
        contention: the other consumers.

    Args:
        mine: whether this consumer holds that segment.
    """

    def __init__(
        self, queue: OpenQueue, bell: QueueDoorbell, collector: Collector, mine: Callable[[str], bool]
    ) -> None:
        self.contention = Contention(queue)
        self._queue = queue
        self._bell = bell
        self._collector = collector
        self._mine = mine
        self._looking = asyncio.Lock()
        self._free: deque[str] = deque()
        self._claiming: set[str] = set()
        self._watched: dict[str, WatchedLease] = {}
        self._finished: set[str] = set()
        self._failure: Exception | None = None
        self._reached = ""
        self._ended = False
        self._picked = 0
        self._is_new = True
        self._alarmed = self._left_to_others = False
        self._listed_at = self._heard_at = self._repair_at = float("-inf")

    async def find(self, wanted: int, timeout: float, patient: bool) -> list[HeldSegment]:
        """Segments, now claimed, with about so many items; none when there is nothing to be had now.

        Args:
            patient: none either when there is little, and others are taking it.

        Raises:
            StoreUnavailable: and nothing was claimed.
            Exception: there is nothing else to be had, and what a segment failed with is told, once.
        """
        self.contention.begin_look()
        while True:
            await self._begin_anew_if_due()
            if held := await self._what_came_back(timeout):
                return self._found([held])
            if chosen := self._choose(wanted):
                if won := await self._claim(chosen, timeout):
                    return self._found(won)
                if patient and self._left_to_others:
                    return []
            elif not await self._look() and not self._read_all():
                self._tell_failure()
                if self._alarmed:
                    self._alarmed = False
                    self.contention.was_faster()
                return []

    def _found(self, held: list[HeldSegment]) -> list[HeldSegment]:
        self._alarmed = False
        self.contention.left_some()
        return held

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def finished(self, segment: str) -> None:
        """The segment needs no further look for one repair interval."""
        self._finished.add(segment)
        self._watched.pop(segment, None)

    def news(self) -> None:
        """This process itself pushed something."""
        self._ended = False

    def came_back(self, segment: str, lease: Stored[QueueLease]) -> None:
        """This consumer released the segment."""
        now = self._queue.core.clock.boottime()
        self._watched[segment] = WatchedLease(now, now, lease)

    # --- claiming

    def _choose(self, wanted: int) -> list[str]:
        """Up to 16 of the free ones; nobody else in this process gets them."""
        chosen: list[str] = []
        if self._free and self._is_old() and self.contention.takes(len(self._free)):
            self._list_again()
        while self._free and wanted > 0 and len(chosen) < 16:
            at = self.contention.pick(self._free, self._picked)
            self._picked += 1
            segment = self._free[at]
            del self._free[at]
            if not self._mine(segment) and segment not in self._claiming:
                chosen.append(segment)
                wanted -= SegmentName.items_of(segment)
        return chosen

    async def _claim(self, chosen: list[str], timeout: float) -> list[HeldSegment]:
        self._left_to_others = False
        self._claiming.update(chosen)
        try:
            results = await map_concurrently(
                chosen, lambda segment: self._tried(segment, claim(self._queue, segment, timeout))
            )
        finally:
            self._claiming.difference_update(chosen)
        beaten = [(s, r.lease) for s, r in zip(chosen, results, strict=True) if isinstance(r, ClaimLost)]
        if beaten:
            self._was_beaten(beaten)
        else:
            self.contention.won()
        won = [result for result in results if isinstance(result, HeldSegment)]
        if not won and (failed := [result for result in results if isinstance(result, StoreUnavailable)]):
            raise failed[0]
        return won

    async def _tried(
        self, segment: str, claiming: Awaitable[HeldSegment | ClaimLost | None]
    ) -> HeldSegment | ClaimLost | StoreUnavailable | None:
        """What becomes of a claim. What is wrong with one segment keeps nobody from the others."""
        try:
            return await claiming
        except BadRecord:
            self.finished(segment)  # fsck tells of it
        except Exception as error:
            if isinstance(error, StoreUnavailable) and is_outage(error):
                self._watched[segment] = WatchedLease(self._queue.core.clock.boottime(), 0.0)
                return error
            self.finished(segment)
            self._failure = error
        return None

    def _was_beaten(self, beaten: list[tuple[str, Stored[QueueLease] | None]]) -> None:
        """Remember whose it is."""
        now = self._queue.core.clock.boottime()
        for segment, lease in beaten:
            self._watched[segment] = WatchedLease(now, _first_read_at(now), lease)
        self.contention.lost([lease.record.holder for _, lease in beaten if lease is not None])
        self._left_to_others = self.contention.takes(len(self._free))
        if self._left_to_others:
            self.contention.was_faster()
        self._list_again()

    def _is_old(self) -> bool:
        return self._queue.core.clock.boottime() > self._listed_at + look.MAX_LISTING_AGE

    def _list_again(self) -> None:
        """What is left of the listing is old."""
        if self._free:
            self._reached = min(self._reached, self._queue.keys.segment(self._free[0])[:-1])
            self._free.clear()
        self._ended = False

    # --- what others hold

    async def _what_came_back(self, timeout: float) -> HeldSegment | None:
        """The oldest segment that was released or whose lease expired, now claimed."""
        now = self._queue.core.clock.boottime()
        due = sorted(segment for segment, watched in self._watched.items() if watched.due <= now)
        if len(due) > 1 and not self._queue.core.store.local:
            due = await self._still_leased(due)
        for segment in due[:MAX_LEASE_READS]:
            if held := await self._look_at(segment, timeout):
                return held
        return None

    async def _still_leased(self, due: list[str]) -> list[str]:
        """Those that are not finished, by one listing instead of a read of each."""
        keys = self._queue.keys
        rows = [
            row.key for row in await self._queue.core.store.list(keys.segments, keys.segment(due[0])[:-1], LISTING_PAGE)
        ]
        leased, last = (
            set(look.parse_listing(keys, rows).leased),
            rows[-1] if len(rows) == LISTING_PAGE else "\U0010ffff",
        )
        for segment in due:
            if segment not in leased and keys.segment(segment) < last:
                self._watched.pop(segment, None)
        return [segment for segment in due if segment in leased]

    async def _look_at(self, segment: str, timeout: float) -> HeldSegment | None:
        watched = self._watched.pop(segment, None)
        if watched is None or segment in self._claiming or self._mine(segment):
            return None
        self._claiming.add(segment)
        try:
            result = await self._tried(segment, self._judge(segment, watched, timeout))
        finally:
            self._claiming.discard(segment)
        if isinstance(result, StoreUnavailable):
            raise result
        assert not isinstance(result, ClaimLost), "it was judged"
        return result

    async def _judge(self, segment: str, watched: WatchedLease, timeout: float) -> HeldSegment | None:
        """Take it if it may be taken; else remember it, or forget it if it is finished."""
        core = self._queue.core
        if watched.lease is None:
            lease = await core.records.read(self._queue.keys.lease(segment), QueueLease)
        else:
            lease = await core.records.reread(watched.lease)
        now = core.clock.boottime()
        if lease is None:
            return None
        if lease.record.problem:
            self._finished.add(segment)
            return None
        if rules.is_complete(lease.record, SegmentName.items_of(segment)):
            self._finished.add(segment)
            with suppress(StoreUnavailable):  # clearing away can wait, what is to be had cannot
                await self._collector.others(segment, lease)
            return None
        known = watched.lease is not None and watched.lease.version == lease.version
        since = watched.since if known else now
        if lease.record.owner and not rules.has_expired(lease.record, now - since, lease.updated, core.now()):
            left = rules.expires_in(lease.record, now - since, lease.updated, core.now())
            due = now + (min(left, 0.05) if core.store.local else left)
            self._watched[segment] = WatchedLease(since, max(due, now) + 0.01, lease)
            return None
        result = await take_over(self._queue, segment, lease, timeout)
        if isinstance(result, ClaimLost):
            now = core.clock.boottime()  # the answer may have taken long, and nobody looked meanwhile
            self._watched[segment] = WatchedLease(now, now + FIRST_READ_DELAY, result.lease)
            return None
        return result

    # --- listing

    async def _begin_anew_if_due(self) -> None:
        now = self._queue.core.clock.boottime()
        if now >= self._repair_at:
            self._repair_at = now + self._queue.core.jittered(self._queue.core.settings.repair_interval)
            self._reached, self._ended = "", False
            self._free.clear()
            self._finished = set()

    async def _look(self) -> bool:
        """List on; whether there is anything new to try."""
        async with self._looking:
            if self._free:
                return True
            if self._may_have_rung() and await self._bell.changed():
                self._ended = False
                self._alarmed = not self._is_new
                if self._bell.came_back:
                    self._came_back()
            if self._ended and not self._queue.core.store.local:
                return self._any_due()
            return await self._page()

    def _may_have_rung(self) -> bool:
        """Whether to ask the bell: before resting, and as often as somebody may ring it."""
        now = self._queue.core.clock.boottime()
        if self._queue.core.store.local or not (self._ended or now >= self._heard_at + doorbell.RING_INTERVAL):
            return False
        self._heard_at = now
        return True

    def _came_back(self) -> None:
        """Something that others held is there again."""
        for segment in sorted(self._watched)[:MAX_LEASE_READS]:
            self._watched[segment].due = 0.0

    async def _page(self) -> bool:
        core, keys = self._queue.core, self._queue.keys
        limit = LOCAL_LISTING_PAGE if core.store.local else LISTING_PAGE
        after = look.rescan_from(keys, self._reached, core.now()) if self._ended else self._reached
        rows = [row.key for row in await core.store.list(keys.segments, after or None, limit)]
        sight = look.parse_listing(keys, rows, _segment_in(after))
        known = self._finished | self._claiming
        self._free.extend(segment for segment in sight.free if segment not in known and not self._mine(segment))
        self._watch(sight.leased, urgent=MAX_LEASE_READS if self._is_new and not after else 0)
        for segment in sight.orphans:
            self._watched.pop(segment, None)
        self._reached = max(self._reached, rows[-1]) if rows else self._reached
        self._ended, self._listed_at, self._picked = len(rows) < limit, core.clock.boottime(), 0
        await self._collector.orphans(sight.orphans, all_of_them=not after and self._ended)
        return bool(self._free) or self._any_due() or not self._ended

    def _watch(self, leased: list[str], urgent: int) -> None:
        """Remember whose lease is to be read: the first `urgent` at once."""
        now = self._queue.core.clock.boottime()
        new = [s for s in leased if s not in self._watched and s not in self._finished and not self._mine(s)]
        for number, segment in enumerate(new):
            due = now if number < urgent or self._queue.core.store.local else _first_read_at(now)
            self._watched[segment] = WatchedLease(now, due)

    def _read_all(self) -> bool:
        """Who is new and finds nothing else to do reads every lease; whether there is one."""
        if not self._is_new:
            return False
        self._is_new = False
        unread = [watched for watched in self._watched.values() if watched.lease is None]
        for watched in unread:
            watched.due = 0.0
        return bool(unread)

    def _any_due(self) -> bool:
        now = self._queue.core.clock.boottime()
        return any(watched.due <= now for watched in self._watched.values())


def _first_read_at(now: float) -> float:
    """When leases that were seen now are read first, so that one listing tells of many."""
    return (now // FIRST_READ_DELAY + 2) * FIRST_READ_DELAY


def _segment_in(after: str) -> str:
    return after.rpartition("/")[2].removesuffix("~lease")
