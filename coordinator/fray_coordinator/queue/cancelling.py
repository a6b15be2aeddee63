"""Cancels items that wait in a queue, so that nobody gets them.

To cancel an item is to consume it without handing it out. The canceller claims the segment as a consumer does, so that
nobody takes the item meanwhile. It has the end of the item noted where others wait for it, completes the item, and
releases the other items of the segment in the same write. If it dies in between, the item comes back when the lease
runs out.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.held_segment import ClaimLost, HeldSegment, claim, take_over
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.records import Stored
from fray_layouts.errors import FrayError
from fray_layouts.queue_keys import ItemPlace, SegmentName
from fray_layouts.queue_records import QueueLease

log = logging.getLogger("fray")

CANCEL_TIMEOUT = 30.0
"""Seconds of the lease under which items are cancelled: more than the three requests take, and others get the segment
back soon after a canceller that died."""

NoteCancelled = Callable[[Sequence[ItemPlace]], Awaitable[None]]
"""Stores that these items will never be handed out, where those read it who wait for what comes of them."""


class ItemCanceller:
    """The canceller of one participant of a queue.

    Args:
        on_complete: called with a segment of which nothing is left.
        on_release: called with a segment that others may take again.
    """

    def __init__(
        self,
        queue: OpenQueue,
        on_complete: Callable[[Sequence[HeldSegment], str], None],
        on_release: Callable[[HeldSegment], None],
    ) -> None:
        self._queue = queue
        self._on_complete = on_complete
        self._on_release = on_release

    async def cancel(self, places: Iterable[ItemPlace], note: NoteCancelled) -> set[ItemPlace]:
        """Cancel the items at these places that nobody has. Returns those that nobody will get.

        An item that is not returned is done, or somebody has its segment, or the storage did not answer; then it goes
        on, and the reason is logged.

        note: called with items before they are completed. If it raises, they are not cancelled.
        """
        segments: dict[str, list[ItemPlace]] = {}
        for place in dict.fromkeys(places):
            segments.setdefault(place.segment, []).append(place)
        cancelled = await map_concurrently(segments.values(), partial(self._cancel_in_one, note=note))
        return {place for group in cancelled for place in group}

    async def _cancel_in_one(self, places: Sequence[ItemPlace], note: NoteCancelled) -> Sequence[ItemPlace]:
        """`cancel` for places in one segment. An error with it does not keep the others from being cancelled."""
        try:
            held = await self._claimed(places)
            return await self._cancel_held(held, places, note) if held is not None else []
        except FrayError as error:
            log.warning("items of %s were not cancelled, and go on: %s", places[0].segment, error)
            return []

    async def _claimed(self, places: Sequence[ItemPlace]) -> HeldSegment | None:
        """Claim the segment of these places; None if somebody has it, or if nothing of it is left."""
        queue, segment = self._queue, places[0].segment
        found = await claim(queue, segment, CANCEL_TIMEOUT)
        if isinstance(found, ClaimLost):
            if found.lease is None or not self._is_waiting(found.lease, places):
                return None
            found = await take_over(queue, segment, found.lease, CANCEL_TIMEOUT)
        return found if isinstance(found, HeldSegment) else None

    def _is_waiting(self, lease: Stored[QueueLease], places: Sequence[ItemPlace]) -> bool:
        """Whether one of the items can be taken by anyone."""
        undone = rules.undone_items(lease.record, SegmentName.items_of(places[0].segment))
        free = rules.is_free(lease.record, lease.updated, self._queue.core.now())
        return free and any(place.item in undone for place in places)

    async def _cancel_held(
        self, held: HeldSegment, places: Sequence[ItemPlace], note: NoteCancelled
    ) -> Sequence[ItemPlace]:
        waiting = [place for place in places if place.item in held.ready]
        try:
            if waiting:
                await note(waiting)
        except BaseException:
            await held.lease.change(rules.released)
            raise
        await held.lease.change(partial(rules.cancelled, items=sum(1 << place.item for place in waiting)))
        if held.is_complete:
            self._on_complete([held], "")
        else:
            self._on_release(held)
        return waiting
