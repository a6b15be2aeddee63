"""The doorbell of a queue: a hint that items were pushed or released, written at most once a second.

On local files, where requests are free, nobody rings: a listing is the better hint. If a ring is lost, its items are
found at most one repair interval later.
"""

import asyncio
import logging

from fray_coordinator.concurrency import start_task
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import ANY, NAME_WRITE_INTERVAL, NotModified
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.records import Doorbell

log = logging.getLogger("fray")


class QueueDoorbell:
    """One participant's access to the doorbell, to ring it and to hear it.

    Attributes:
        released: whether the last ring that was heard said that items were released.
    """

    def __init__(self, queue: OpenQueue) -> None:
        self.released = True
        self._queue = queue
        self._heard: str | None = ""
        self._rung_at = float("-inf")
        self._due = False
        self._released_at = self._known_release = 0.0
        self._ringing: asyncio.Task[None] | None = None

    def ring(self, released: bool = False) -> None:
        """Ring at once, or when a second has passed since this process last rang. It returns without waiting for that.

        released: items were released; otherwise they were pushed.
        """
        if self._queue.core.store.local:
            return
        self._due = True
        if released:
            self._released_at = self._queue.core.now()
        if self._ringing is None or self._ringing.done():
            self._ringing = start_task(self._ring())

    async def changed(self) -> bool:
        """Whether somebody rang since the last call; True the first time."""
        key, store = self._queue.keys.doorbell, self._queue.core.store
        try:
            answer = await (store.get_if_changed(key, self._heard) if self._heard else store.get(key))
        except (StoreError, BadRecord):
            return True  # the listing that follows shows the truth
        if isinstance(answer, NotModified):
            return False
        before, self._heard = self._heard, answer.version if answer else None
        self.released = answer is not None and self._is_newer_release(answer.data)
        return before != self._heard

    def _is_newer_release(self, data: bytes) -> bool:
        """Whether items were released after the last release of which this participant has heard."""
        try:
            at = codec.decode(data, Doorbell).record.released_at
        except Malformed:
            return True
        before, self._known_release = self._known_release, max(at, self._known_release)
        return at > before

    async def close(self) -> None:
        """Wait for the ring that is due."""
        if self._ringing is not None:
            await self._ringing

    async def _ring(self) -> None:
        core = self._queue.core
        while self._due:
            await core.clock.sleep(max(0.0, self._rung_at + NAME_WRITE_INTERVAL - core.clock.boottime()))
            self._due, self._rung_at = False, core.clock.boottime()
            bell = Doorbell(rung_at=core.now(), released_at=self._released_at)
            try:
                await core.records.put(self._queue.keys.doorbell, bell, ANY)
            except StoreError:
                continue  # a lost hint only costs time
            except Exception:
                log.exception("the doorbell of a queue was not rung; consumers find the items some seconds later")
