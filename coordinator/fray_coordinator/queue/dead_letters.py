"""Dead letters: an item that is given up moves to an ordinary queue beside its own.

First, a compare-and-swap writes a time into the lease. The dead letter's name is made from that time, so a process that
goes on after a crash creates the same dead letter. Then the dead letter is created, and last the item is completed. If
the time in the lease is too old, it is replaced by a new one.
"""

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
"""The maximum of deliveries of a queue of dead letters: there is nowhere else to move its items."""


async def open_dead_letters(queue: OpenQueue) -> OpenQueue:
    """Open the dead letters of a queue, which are a queue of their own."""
    wanted = QueueRecord(quarantine=queue.settings.quarantine, max_deliveries=UNLIMITED_DELIVERIES)
    return await open_queue(queue.core, queue.keys.dead_letters, wanted)


class DeadLetterWriter:
    """The writer that moves items of one consumer to the dead letters."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue
        self._dead: tuple[OpenQueue, Producer, QueueDoorbell] | None = None

    async def write(self, held: HeldSegment, item: int, body: bytes, deliveries: int, reason: str) -> None:
        """Create the item's dead letter, then complete the item. Raises LeaseLost, StoreUnavailable."""
        dead, producer, doorbell = await self._open()
        letter = DeadLetterOrigin(reason=reason, segment=held.name, item=item, deliveries=deliveries)
        content = [EncodedItem(body, held.content.header.encoding)]
        while True:
            time = await self._time(dead, held, item)
            if await producer.create(dead_letter_name(time, held.name, item), content, letter):
                break
            if await self._exists(dead, time, held.name, item):
                break
            await held.lease.change(partial(rules.dead_lettered, item=item, time=self._queue.core.now()))
        doorbell.ring()
        await held.lease.change(partial(rules.completed, items=1 << item))

    async def close(self) -> None:
        """Wait for the ring of the doorbell that is due."""
        if self._dead is not None:
            await self._dead[2].close()

    async def _open(self) -> tuple[OpenQueue, Producer, QueueDoorbell]:
        if self._dead is None:
            dead = await open_dead_letters(self._queue)
            doorbell = QueueDoorbell(dead)
            self._dead = (dead, Producer(dead, doorbell), doorbell)
        return self._dead

    async def _time(self, dead: OpenQueue, held: HeldSegment, item: int) -> float:
        """The time in the dead letter's name. It is written into the lease before the dead letter is created."""
        noted = held.lease.record.dead_lettered_at.get(str(item))
        if noted is None or is_create_too_slow(noted, dead.core.now(), dead.settings.quarantine):
            await held.lease.change(partial(rules.dead_lettered, item=item, time=round(self._queue.core.now(), 3)))
        return held.lease.record.dead_lettered_at[str(item)]

    async def _exists(self, dead: OpenQueue, time: float, segment: str, item: int) -> bool:
        return await dead.core.store.get(dead.keys.segment(str(dead_letter_name(time, segment, item)))) is not None
