"""Dead letters: an item that is given up moves to an ordinary queue beside its own.

One CAS writes into the lease when the item is buried; the letter's name is made of that time, so that whoever goes on
after a crash makes the same one. Then the letter, then the acknowledgement. One whose time is long past takes a
new one.
"""

from __future__ import annotations

from functools import partial

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import dead_letter_name, is_create_too_slow
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import HeldSegment
from fray_coordinator.queue.open_queue import OpenQueue, open_queue
from fray_coordinator.queue.producer import Producer
from fray_layouts.queue_records import DeadLetterOrigin, QueueRecord

UNLIMITED_DELIVERIES = 0
"""Dead letters may be delivered as often as it takes."""


async def open_dead_letters(queue: OpenQueue) -> OpenQueue:
    """The queue of dead letters."""
    wanted = QueueRecord(quarantine=queue.settings.quarantine, max_deliveries=UNLIMITED_DELIVERIES)
    return await open_queue(queue.core, queue.keys.dead_letters, wanted)


class DeadLetterWriter:
    """Buries the dead letters of one consumer."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue
        self._dead: tuple[OpenQueue, Producer, QueueDoorbell] | None = None

    async def write(self, held: HeldSegment, item: int, body: bytes, deliveries: int, reason: str) -> None:
        """Make the item a dead letter and complete it. Raises LeaseLost, StoreUnavailable."""
        dead, producer, bell = await self._open()
        letter = DeadLetterOrigin(reason=reason, segment=held.name, item=item, deliveries=deliveries)
        content = [EncodedItem(body, held.content.header.encoding)]
        while True:
            time = await self._time(dead, held, item)
            if await producer.create(dead_letter_name(time, held.name, item), content, letter):
                break
            if await self._lies_there(dead, time, held.name, item):
                break
            await held.lease.change(partial(rules.dead_lettered, item=item, time=self._queue.core.now()))
        bell.ring()
        await held.lease.change(partial(rules.completed, items=1 << item))

    async def close(self) -> None:
        if self._dead is not None:
            await self._dead[2].close()

    async def _open(self) -> tuple[OpenQueue, Producer, QueueDoorbell]:
        if self._dead is None:
            dead = await open_dead_letters(self._queue)
            bell = QueueDoorbell(dead)
            self._dead = (dead, Producer(dead, bell), bell)
        return self._dead

    async def _time(self, dead: OpenQueue, held: HeldSegment, item: int) -> float:
        """The time in the letter's name; written into the lease before the letter is."""
        noted = held.lease.record.dead_lettered_at.get(str(item))
        if noted is None or is_create_too_slow(noted, dead.core.now(), dead.settings.quarantine):
            await held.lease.change(partial(rules.dead_lettered, item=item, time=round(self._queue.core.now(), 3)))
        return held.lease.record.dead_lettered_at[str(item)]

    async def _lies_there(self, dead: OpenQueue, time: float, segment: str, item: int) -> bool:
        """Whether a letter of this item has that name already."""
        return await dead.core.store.get(dead.keys.segment(str(dead_letter_name(time, segment, item)))) is not None
