"""The scanner of a queue: finds segments and claims them, released ones first, then the oldest free one.

A listing is used up before the next one is requested, and the next one begins where the last one ended. That position
is kept for one repair interval; after that the scan begins at the oldest segment again. The scanner remembers the
leases of others with their versions, and reads them again, on condition of the version, when the doorbell says that
items were released or when the leases may have expired. A listing shows which segments were finished meanwhile, so that
nobody reads their leases. A lost claim means that the listing is old. If little is left for many consumers, a consumer
that can wait leaves it to the others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import BadRecord, StoreUnavailable, is_outage
from fray_coordinator.protocol import queue_lease as rules, queue_segments as scan
from fray_coordinator.protocol.queue_segments import CLOCK_MARGIN
from fray_coordinator.queue.collector import Collector
from fray_coordinator.queue.contention import (
    BEHIND_ALL,
    FIRST_READ_DELAY,
    MAX_LEASE_READS,
    Contention,
    WatchedLease,
    WatchedLeases,
    first_read_at,
)
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import ClaimLost, HeldSegment, claim, claim_batch, take_over
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import NAME_WRITE_INTERVAL, ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease

LOCAL_LISTING_ROWS = 5000
"""Names that one listing returns on local files, where it reads whole folders anyway."""
MAX_LISTING_SECONDS = 10.0
"""Seconds after which a listing is requested again: after that even the leases of finished segments may be gone."""
MAX_CLAIMS = 64
"""Segments claimed at a time: as many as a consumer that takes items ahead finishes in a moment."""
LOCAL_LEASE_READS = 0.05
"""Seconds between two reads of a lease on local files, where nobody rings when it is released."""
EXPIRY_MARGIN = 0.01
"""Seconds after the end of a lease at which it is read again, so that it has certainly expired in spite of rounding."""


class SegmentScanner:
    """One consumer's view of the queue.

    Attributes:
        contention: what the consumer knows of the others.

    Args:
        mine: says whether this consumer holds a segment.
    """

    def __init__(
        self, queue: OpenQueue, doorbell: QueueDoorbell, collector: Collector, mine: Callable[[str], bool]
    ) -> None:
        self.contention = Contention(queue)
        self._queue = queue
        self._doorbell = doorbell
        self._collector = collector
        self._mine = mine
        self._scanning = asyncio.Lock()
        self._free: deque[str] = deque()
        self._claiming: set[str] = set()
        self._leases = WatchedLeases()
        self._failure: Exception | None = None
        self._reached = ""
        self._ended = False
        self._picked = 0
        self._is_new = True
        self._first_scan_at = float("inf")  # on the storage's clock
        self._rung = self._left_to_others = False
        self._listed_at = self._heard_at = self._repair_at = float("-inf")

    async def find(self, wanted: int, timeout: float, patient: bool) -> list[HeldSegment]:
        """Claim segments with about `wanted` items; [] if nothing can be claimed now.

        Args:
            timeout: of the leases, seconds.
            patient: if little is left and others are taking it, claim nothing.

        Raises:
            StoreUnavailable: nothing was claimed.
            Exception: nothing else can be claimed, and one segment failed with this error; it is raised once.
        """
        self.contention.begin_scan()
        self._first_scan_at = min(self._first_scan_at, self._queue.core.now())
        while True:
            await self._begin_again_if_due()
            if held := await self._claim_released(timeout):
                return self._found([held])
            if chosen := self._choose(wanted):
                if won := await self._claim(chosen, timeout):
                    return self._found(won)
                if patient and self._left_to_others:
                    return []
            elif not await self._scan() and not self._read_all():
                self._raise_failure()
                if self._rung:
                    self._rung = False
                    self.contention.scanned_in_vain()
                return []

    def _found(self, held: list[HeldSegment]) -> list[HeldSegment]:
        self._rung = False
        self.contention.found_work()
        return held

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def finished(self, *segments: str) -> None:
        """Ignore these segments for one repair interval."""
        self._leases.finished(*segments)

    def pushed(self) -> None:
        """Note that this process itself pushed items."""
        self._ended = False

    def released(self, segment: str, lease: Stored[QueueLease]) -> None:
        """Note that a segment with this lease can be claimed again."""
        self._leases.released(segment, lease, self._queue.core.clock.boottime())

    @property
    def first_released(self) -> str:
        """The oldest segment that this process released and `find` has not looked at; if none, a name behind all."""
        return self._leases.first_released

    @property
    def has_listed(self) -> bool:
        """Whether a listing showed segments that may be claimed."""
        return bool(self._free)

    # --- claiming

    def _choose(self, wanted: int) -> list[str]:
        """Take some of the free segments, so that only this call claims them."""
        chosen: list[str] = []
        age = self._queue.core.clock.boottime() - self._listed_at
        is_old = age > MAX_LISTING_SECONDS or (
            age > scan.MAX_LISTING_AGE and self.contention.others_take(len(self._free))
        )
        if self._free and is_old:
            self._drop_listing()
        while self._free and wanted > 0 and len(chosen) < MAX_CLAIMS:
            at = self.contention.pick(self._free, self._picked)
            if not self.contention.own([self._free[at]]):
                if not self._ended:
                    self._free = deque(self.contention.own(self._free))
                    continue
                if age > scan.MAX_LISTING_AGE:
                    self._drop_listing()
                    break
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
        begun = claim_batch(self._queue, chosen, timeout)

        async def ended(segment: str) -> HeldSegment | ClaimLost | StoreUnavailable | None:
            claimed = begun.get(segment)
            if isinstance(claimed, HeldSegment):
                return claimed
            return await self._outcome_of(segment, claimed or claim(self._queue, segment, timeout))

        try:
            if len(held := [one for one in begun.values() if isinstance(one, HeldSegment)]) == len(chosen):
                self.contention.won_claims()
                return held
            results = await map_concurrently(chosen, ended)
        finally:
            self._claiming.difference_update(chosen)
        lost = [(s, r.lease) for s, r in zip(chosen, results, strict=True) if isinstance(r, ClaimLost)]
        if lost:
            self._note_lost(lost, is_old=2 * len(lost) >= len(chosen))
        else:
            self.contention.won_claims()
        won = [result for result in results if isinstance(result, HeldSegment)]
        if not won and (failed := [result for result in results if isinstance(result, StoreUnavailable)]):
            raise failed[0]
        return won

    async def _outcome_of(
        self, segment: str, claiming: Awaitable[HeldSegment | ClaimLost | None]
    ) -> HeldSegment | ClaimLost | StoreUnavailable | None:
        """The outcome of a claim. An error with one segment does not keep the consumer from the others."""
        try:
            return await claiming
        except BadRecord:
            self.finished(segment)  # fsck reports it
        except Exception as error:
            if isinstance(error, StoreUnavailable) and is_outage(error):
                self._leases.watch(segment, WatchedLease(self._queue.core.clock.boottime(), 0.0))
                return error
            self.finished(segment)
            self._failure = error
        return None

    def _note_lost(self, lost: list[tuple[str, Stored[QueueLease] | None]], is_old: bool) -> None:
        """Remember who won. is_old: so many claims were lost that the listing is too old to use."""
        now = self._queue.core.clock.boottime()
        for segment, lease in lost:
            self._leases.watch(segment, WatchedLease(now, first_read_at(now), lease))
        self.contention.lost_claims([lease.record.holder for _, lease in lost if lease is not None])
        self._left_to_others = self.contention.others_take(len(self._free))
        if self._left_to_others:
            self.contention.scanned_in_vain()
        if is_old or self._left_to_others:
            self._drop_listing()

    def _drop_listing(self) -> None:
        """Forget the rest of an old listing."""
        if self._free:
            self._reached = min(self._reached, self._queue.keys.segment(self._free[0])[:-1])
            self._free.clear()
        self._ended = False

    # --- what others hold

    async def _claim_released(self, timeout: float) -> HeldSegment | None:
        """Claim the oldest segment that was released or whose lease has expired."""
        due = self._leases.take_due(self._queue.core.clock.boottime())
        if len(due) > 1 and not self._queue.core.store.local:
            due = await self._still_leased(due)
        for segment in due[:MAX_LEASE_READS]:
            if held := await self._try_lease(segment, timeout):
                return held
        return None

    async def _still_leased(self, due: list[str]) -> list[str]:
        """The segments that still have both segment and lease; one listing tells, instead of a read of each lease."""
        keys = self._queue.keys
        before = keys.segment(due[0])[:-1]
        rows = [row.key for row in await self._queue.core.store.list(keys.segments, before, ROWS_PER_REQUEST)]
        leased = set(scan.parse_listing(keys, rows).leased)
        last = rows[-1] if len(rows) == ROWS_PER_REQUEST else BEHIND_ALL
        self._leases.forget(s for s in due if s not in leased and keys.segment(s) < last)
        return [segment for segment in due if segment in leased]

    async def _try_lease(self, segment: str, timeout: float) -> HeldSegment | None:
        watched = self._leases.take(segment)
        if watched is None or segment in self._claiming or self._mine(segment):
            return None
        self._claiming.add(segment)
        try:
            result = await self._outcome_of(segment, self._judge(segment, watched, timeout))
        finally:
            self._claiming.discard(segment)
        if isinstance(result, StoreUnavailable):
            raise result
        assert not isinstance(result, ClaimLost), "_judge returns None for a lost claim"
        return result

    async def _judge(self, segment: str, watched: WatchedLease, timeout: float) -> HeldSegment | None:
        """Take the segment over if its lease allows it; else watch the lease, unless the segment is finished."""
        core = self._queue.core
        if watched.lease is None:
            lease = await core.records.read(self._queue.keys.lease(segment), QueueLease)
        else:
            lease = await core.records.reread(watched.lease)
        now = core.clock.boottime()
        if lease is None:
            return None
        if lease.record.problem:
            self._leases.finished(segment)
            return None
        if rules.is_complete(lease.record, SegmentName.items_of(segment)):
            self._leases.finished(segment)
            with suppress(StoreUnavailable):  # collecting can wait, but the caller's next item cannot
                await self._collector.collect_overdue(segment, lease)
            return None
        known = watched.lease is not None and watched.lease.version == lease.version
        since = watched.since if known else now
        if lease.record.owner and not rules.has_expired(lease.record, now - since, lease.updated, core.now()):
            left = rules.expires_in(lease.record, now - since, lease.updated, core.now())
            due = now + (min(left, LOCAL_LEASE_READS) if core.store.local else left)
            due = max(due, now) + EXPIRY_MARGIN
            self._leases.watch(segment, WatchedLease(since, due, lease))
            return None
        result = await take_over(self._queue, segment, lease, timeout)
        if isinstance(result, ClaimLost):
            now = core.clock.boottime()  # read again: the reply may have taken long
            self._leases.watch(segment, WatchedLease(now, now + FIRST_READ_DELAY, result.lease))
            return None
        return result

    async def take_back(self, held: HeldSegment, timeout: float, idle: bool) -> HeldSegment | None:
        """Claim a segment again whose lease this process let expire; None if that fails, and then it is watched.

        idle: none of its items was out.
        """
        segment = held.name
        self._claiming.add(segment)
        try:
            result = await self._outcome_of(
                segment, take_over(self._queue, segment, held.lease.stored, timeout, own_idle_claim=idle)
            )
        finally:
            self._claiming.discard(segment)
        if isinstance(result, StoreUnavailable):
            raise result
        if isinstance(result, ClaimLost):
            if result.lease is not None:
                self.released(segment, result.lease)
            return None
        return result

    # --- listing

    async def _begin_again_if_due(self) -> None:
        now = self._queue.core.clock.boottime()
        if now >= self._repair_at:
            self._repair_at = now + self._queue.core.jittered(self._queue.core.settings.repair_interval)
            self._reached, self._ended = "", False
            self._free.clear()
            self._leases.forget_finished()

    async def _scan(self) -> bool:
        """List further; returns whether there is anything new to claim."""
        async with self._scanning:
            if self._free:
                return True
            if self._may_ask_doorbell() and await self._doorbell.changed():
                self._ended = False
                self._rung = not self._is_new
                if self._doorbell.released:
                    self._leases.make_due()
            if self._ended and not self._queue.core.store.local:
                return self._any_due()
            return await self._page()

    def _may_ask_doorbell(self) -> bool:
        """Whether to read the doorbell: before a rest, and otherwise as often as one process may ring it."""
        now = self._queue.core.clock.boottime()
        if self._queue.core.store.local or not (self._ended or now >= self._heard_at + NAME_WRITE_INTERVAL):
            return False
        self._heard_at = now
        return True

    async def _page(self) -> bool:
        core, keys = self._queue.core, self._queue.keys
        limit = LOCAL_LISTING_ROWS if core.store.local else ROWS_PER_REQUEST
        after = scan.rescan_from(keys, self._reached, core.now()) if self._ended else self._reached
        listed = await core.store.list(keys.segments, after or None, limit, self._is_new and not core.store.local)
        rows = [row.key for row in listed]
        listing = scan.parse_listing(keys, rows, _segment_in(after))
        mine, is_finished, claiming = self._mine, self._leases.is_finished, self._claiming
        self._free.extend(s for s in listing.free if not is_finished(s) and s not in claiming and not mine(s))
        later = {row.key for row in listed if row.updated and row.updated > self._first_scan_at + CLOCK_MARGIN}
        self._watch(listing.leased, later, urgent=MAX_LEASE_READS if self._is_new and not after else 0)
        self._leases.forget(listing.orphans)
        self._reached = max(self._reached, rows[-1]) if rows else self._reached
        self._ended, self._listed_at, self._picked = len(rows) < limit, core.clock.boottime(), 0
        await self._collector.collect_orphans(listing.orphans, all_of_them=not after and self._ended)
        return bool(self._free) or self._any_due() or not self._ended

    def _watch(self, leased: list[str], later: Set[str], urgent: int) -> None:
        """Watch leases of others. The first `urgent` are read at once. later: keys written since this consumer came."""
        now, keys = self._queue.core.clock.boottime(), self._queue.keys
        new = [s for s in leased if s not in self._leases and not self._mine(s)]
        for number, segment in enumerate(new):
            due = now if number < urgent or self._queue.core.store.local else first_read_at(now)
            is_left = self._is_new and keys.lease(segment) not in later
            self._leases.watch(segment, WatchedLease(now, due, is_left=is_left))

    def _read_all(self) -> bool:
        """Read the leases that others left, if this consumer is new and finds nothing else; whether there are any.

        Leases that were written since it began belong to live consumers, and are finished by the time they would be
        read.
        """
        if not self._is_new:
            return False
        self._is_new = False
        return self._leases.make_left_due()

    def _any_due(self) -> bool:
        return self._leases.any_due(self._queue.core.clock.boottime())


def _segment_in(after: str) -> str:
    return after.rpartition("/")[2].removesuffix("~lease")
