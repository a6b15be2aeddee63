"""A segment that this process holds: its items, its lease, and the one writer of that lease.

What several callers change at the same time goes out as one write, and each of them waits until it has landed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.errors import LeaseLost
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.poison_isolation import HandedOut
from fray_coordinator.store.records import Stored
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease, SegmentHeader

LeaseEdit = Callable[[QueueLease], QueueLease]
COMMIT_INTERVAL = 1.0
"""Seconds between two writes of one lease on a bucket."""


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """A segment as it was read. updated: when the storage wrote it, as it says."""

    version: str
    updated: float
    header: SegmentHeader
    bodies: list[bytes]


class HeldSegment:
    """One claim of one segment.

    Attributes:
        ready: items to be handed out next, in order.
        out: items that somebody works on.
        lost: another has the lease; nothing that is done here counts any more.
    """

    def __init__(
        self, home: OpenQueue, segment: str, stored: Stored[QueueLease], sent: float, content: SegmentContent
    ) -> None:
        self.segment = segment
        self.content = content
        self.stored = stored
        self.owner = stored.record.owner
        self.ready = deque(rules.undone_items(stored.record, SegmentName.items_of(segment)))
        self.out: dict[int, HandedOut] = {}
        self.lost = False
        self._home = home
        self._clock = home.core.clock
        self._edits: list[LeaseEdit] = []
        self._gathering: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._committed_at = float("-inf")
        self._note_applied(stored, sent)

    @property
    def lease(self) -> QueueLease:
        return self.stored.record

    @property
    def finished(self) -> bool:
        return rules.is_complete(self.lease, SegmentName.items_of(self.segment))

    @property
    def trusted(self) -> bool:
        """Whether items may be handed out without writing the lease again."""
        return not self.lost and self._clock.boottime() < self.trusted_until

    @property
    def expired(self) -> bool:
        """Whether everybody else takes the claim for abandoned."""
        return self._clock.boottime() >= self.confirmed + self.lease.timeout

    @property
    def remaining(self) -> float:
        """Seconds until others may take the segment over, if the last write landed as soon as it was sent."""
        return self._sent + self.lease.timeout - self._clock.boottime()

    @property
    def idle(self) -> bool:
        """Whether nothing is out and nothing is being written."""
        return not self.out and self._gathering is None and self._writing is None

    async def change(self, edit: LeaseEdit) -> None:
        """Change the lease; returns when the write that holds the change has landed.

        Raises:
            LeaseLost: another has it.
            StoreUnavailable: the write landed, or did not, or will.
        """
        if self.lost:
            raise LeaseLost()
        self._edits.append(edit)
        if self._gathering is None:
            self._gathering = asyncio.ensure_future(self._commit(self._writing))
        await asyncio.shield(self._gathering)

    async def _commit(self, before: asyncio.Future[None] | None) -> None:
        """One write of all that has gathered until the write before it ended; what comes later is the next one's."""
        try:
            await self._gather(before)
        except BaseException:  # told to all who wait; who comes later begins anew
            self._edits, self._gathering = [], None
            raise
        edits, self._edits = self._edits, []
        self._writing, self._gathering = self._gathering, None
        self._committed_at = self._clock.boottime()
        try:
            await self._write(edits)
        finally:
            self._writing = None

    async def _gather(self, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        wait = 0.0 if self._home.core.store.local else self._committed_at + COMMIT_INTERVAL - self._clock.boottime()
        if wait > 0:
            await self._clock.sleep(wait)

    async def _write(self, edits: list[LeaseEdit]) -> None:
        def decide(found: QueueLease | None) -> QueueLease | None:
            if found is None or found.owner != self.owner:
                return None
            for edit in edits:
                found = edit(found)
            return found

        sent = self._clock.boottime()
        update = await self._home.core.records.update(self.stored.key, QueueLease, decide, self.stored)
        if not update.wrote or update.stored is None:
            self.lost = True
            raise LeaseLost()
        self._note_applied(update.stored, sent)

    def _note_applied(self, stored: Stored[QueueLease], sent: float) -> None:
        self.stored = stored
        self._sent = sent
        self.confirmed = self._clock.boottime()
        self.trusted_until = rules.trusted_until(sent, stored.record.timeout)
