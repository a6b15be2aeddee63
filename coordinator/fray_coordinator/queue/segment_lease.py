"""The lease of a segment that this process holds, and its only writer.

Changes that several callers make at the same time are written together (a group commit). Each caller waits until that
write is applied.
"""

import asyncio
from collections.abc import Callable

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.delivery import LeaseLost
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import NAME_WRITE_INTERVAL
from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease

LeaseEdit = Callable[[QueueLease], QueueLease]


class SegmentLease:
    """The lease of one claim.

    Attributes:
        stored: the lease as it was last written.
        owner: the nonce of the claim.
        lost: another claim has the lease, and nothing that is done under this one counts any more.
        unresolved: the outcome of the last write is unknown; it may still be applied.
        trusted_until: the time, on this process's clock, until which items may be handed out without another write.

    Args:
        sent: when the write that claimed the segment was sent, on the same clock.
    """

    __slots__ = (
        "_clock",
        "_committed_at",
        "_confirmed",
        "_edits",
        "_gathering",
        "_queue",
        "_sent",
        "_writing",
        "lost",
        "owner",
        "stored",
        "trusted_until",
        "unresolved",
    )

    def __init__(self, queue: OpenQueue, stored: Stored[QueueLease], sent: float) -> None:
        self.owner = stored.record.owner
        self.lost = False
        self.unresolved = False
        self._queue = queue
        self._clock = queue.core.clock
        self._edits: list[LeaseEdit] = []
        self._gathering: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._committed_at = float("-inf")
        self._note_applied(stored, sent)

    @property
    def record(self) -> QueueLease:
        return self.stored.record

    @property
    def trusted(self) -> bool:
        """Whether items may be handed out without another write of the lease."""
        return self.trusted_at(self._clock.boottime())

    def trusted_at(self, boottime: float) -> bool:
        """`trusted` at a time that the caller has just read."""
        return not self.lost and boottime < self.trusted_until

    @property
    def expired(self) -> bool:
        """Whether every other consumer considers the claim abandoned."""
        return self._clock.boottime() >= self._confirmed + self.record.timeout

    @property
    def remaining(self) -> float:
        """Seconds until others may take the segment over, if the last write was applied as soon as it was sent."""
        return self.remaining_at(self._clock.boottime())

    def remaining_at(self, boottime: float) -> float:
        """`remaining` at a time that the caller has just read."""
        return self._sent + self.stored.record.timeout - boottime

    @property
    def is_being_written(self) -> bool:
        return self._gathering is not None or self._writing is not None

    def hold_back(self, until: asyncio.Future[None] | None) -> None:
        """Make every write of the lease wait for `until`; None ends that. Called only while no write is under way."""
        self._writing = until

    async def change(self, edit: LeaseEdit) -> None:
        """Change the lease; returns when the write with the change is applied.

        Raises:
            LeaseLost: another claim has it.
            StoreUnavailable: the outcome is unknown; the write may still be applied.
        """
        if self.lost:
            raise LeaseLost()
        self._edits.append(edit)
        if self._gathering is None:
            self._gathering = asyncio.ensure_future(self._commit(self._writing))
        await asyncio.shield(self._gathering)

    async def _commit(self, before: asyncio.Future[None] | None) -> None:
        """Write all changes that gathered until the previous write ended. Later changes are for the next write."""
        try:
            await self._gather(before)
        except BaseException:  # all callers that wait get it; later changes begin with a new write
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
        due = self._committed_at + NAME_WRITE_INTERVAL
        wait = 0.0 if self._queue.core.store.local else due - self._clock.boottime()
        if wait > 0:
            await self._clock.sleep(wait)

    async def _write(self, edits: list[LeaseEdit]) -> None:
        if self.lost:
            raise LeaseLost()

        def decide(found: QueueLease | None) -> QueueLease | None:
            if found is None or found.owner != self.owner:
                return None
            for edit in edits:
                found = edit(found)
            return found

        sent, self.unresolved = self._clock.boottime(), True
        update = await self._queue.core.records.update(self.stored.key, QueueLease, decide, self.stored)
        self.unresolved = False
        if not update.wrote or update.stored is None:
            self.lost = True
            raise LeaseLost()
        self._note_applied(update.stored, sent)

    def _note_applied(self, stored: Stored[QueueLease], sent: float) -> None:
        self.stored = stored
        self._sent = sent
        self._confirmed = self._clock.boottime()
        self.trusted_until = rules.trusted_until(sent, stored.record.timeout)
