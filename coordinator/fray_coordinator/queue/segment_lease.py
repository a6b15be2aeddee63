"""The lease of a segment that this process holds, and its one writer.

What several callers change at the same time goes out as one write (a group commit), and each of them waits until it has
landed.
"""

import asyncio
from collections.abc import Callable

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.errors import LeaseLost
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease

LeaseEdit = Callable[[QueueLease], QueueLease]
COMMIT_INTERVAL = 1.0
"""Seconds between two writes of one lease on a bucket: GCS lets a name be written once a second."""


class SegmentLease:
    """The lease of one claim.

    Attributes:
        stored: the lease as it was last written.
        owner: nonce of the claim.
        lost: another has the lease; nothing that is done under this claim counts any more.
        unresolved: what the last write became is not known: it landed, or did not, or will.
        trusted_until: until when items may be handed out without writing the lease again; this process's clock.

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
        """Whether items may be handed out without writing the lease again."""
        return self.trusted_at(self._clock.boottime())

    def trusted_at(self, boottime: float) -> bool:
        """`trusted`, at a time that the caller has just read."""
        return not self.lost and boottime < self.trusted_until

    @property
    def expired(self) -> bool:
        """Whether everybody else takes the claim for abandoned."""
        return self._clock.boottime() >= self._confirmed + self.record.timeout

    @property
    def remaining(self) -> float:
        """Seconds until others may take the segment over, if the last write landed as soon as it was sent."""
        return self.remaining_at(self._clock.boottime())

    def remaining_at(self, boottime: float) -> float:
        """`remaining`, at a time that the caller has just read."""
        return self._sent + self.stored.record.timeout - boottime

    @property
    def is_being_written(self) -> bool:
        return self._gathering is not None or self._writing is not None

    def hold_back(self, until: asyncio.Future[None] | None) -> None:
        """Keep every write of the lease waiting until then. Called while nothing is written; before then, with None."""
        self._writing = until

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
        """Write once all that has gathered until the write before it ended; what comes later is the next one's."""
        try:
            await self._gather(before)
        except BaseException:  # raised to all that wait; later changes begin anew
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
        wait = 0.0 if self._queue.core.store.local else self._committed_at + COMMIT_INTERVAL - self._clock.boottime()
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
