"""The producer of a queue: packs items into segments and creates them."""

import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.protocol.queue_segments import LARGE_ITEM_BYTES, batch_size, is_create_too_slow
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import ABSENT, Applied
from fray_layouts.queue_keys import MAX_ORDERS, SegmentName
from fray_layouts.queue_records import DeadLetterOrigin, SegmentHeader, encode_segment

MAX_SEGMENT_BYTES = 8 * 1024 * 1024
"""Bytes of items after which a segment is full, however many items were wanted, so that one request reads it."""


class Producer:
    """Names segments and creates them, in order."""

    def __init__(self, queue: OpenQueue, doorbell: QueueDoorbell) -> None:
        self._queue = queue
        self._doorbell = doorbell
        self._token = queue.core.rng.token(6)
        self._naming = threading.Lock()
        self._last = (0.0, 0)

    async def push(self, items: Sequence[EncodedItem], batch: int | None = None) -> list[SegmentName]:
        """Put the items at the end, in this order; when it returns they are stored. Returns their segments in order.

        Args:
            batch: items of each segment; one consumer gets so many at a time.

        Raises:
            StoreUnavailable: some items may be in the queue, some may not, and some may still be added.
        """
        names = await map_concurrently(_segments(items, batch_size(len(items), batch)), self._push_segment)
        self._doorbell.ring()
        return names

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None] | None:
        """Put one item at the end, in the caller's thread if the storage can do that.

        Returns None if the item is stored; else the rest of the work, which raises as `push` does. That work begins
        with the same name, so an item that was stored without a reply is not pushed twice.
        """
        name = self._name(1)
        if len(item.body) < LARGE_ITEM_BYTES:
            key, data = self._queue.keys.segment(str(name)), _encoded([item], [], None)
            if self._queue.core.store.create_batch([key], data):
                return None
        return self._push_as(name, item)

    async def _push_as(self, name: SegmentName, item: EncodedItem) -> None:
        if not await self.create(name, [item]):
            await self._push_segment([item])
        self._doorbell.ring()

    async def _push_segment(self, items: Sequence[EncodedItem]) -> SegmentName:
        while not await self.create(name := self._name(len(items)), items):
            continue
        return name

    async def create(
        self, segment: SegmentName, items: Sequence[EncodedItem], origin: DeadLetterOrigin | None = None
    ) -> bool:
        """Create a segment under this name; False if it must be created under another one.

        That is so if the name is taken, or if the create took so long that a sweep may have deleted the large items.

        origin: where a dead letter comes from.
        """
        core, keys = self._queue.core, self._queue.keys
        large = [number for number, item in enumerate(items) if len(item.body) >= LARGE_ITEM_BYTES]
        for number in large:
            await core.store.put(keys.large(str(segment), number), items[number].body, ABSENT)
        outcome = await core.store.put(keys.segment(str(segment)), _encoded(items, large, origin), ABSENT)
        swept = bool(large) and is_create_too_slow(segment.time, core.now(), self._queue.settings.quarantine)
        return isinstance(outcome, Applied) and not swept

    def _name(self, items: int) -> SegmentName:
        """A name that sorts behind all names that this producer gave before; it may be called in any thread."""
        with self._naming:
            time, order = self._last
            now = round(self._queue.core.now(), 3)
            self._last = (now, 0) if now > time else (time, order + 1)
            if self._last[1] == MAX_ORDERS:
                self._last = (time + 0.001, 0)
            return SegmentName(self._last[0], self._last[1], self._token, items)


def _encoded(items: Sequence[EncodedItem], large: list[int], origin: DeadLetterOrigin | None) -> bytes:
    """The bytes of a segment. large: the numbers of the items that are objects of their own."""
    inline = [b"" if number in large else item.body for number, item in enumerate(items)]
    sizes = [len(body) for body in inline]
    header = SegmentHeader(encoding=items[0].encoding, sizes=sizes, large=large, dead_letter=origin)
    return encode_segment(header, inline)


def _segments(items: Sequence[EncodedItem], batch: int) -> Iterator[Sequence[EncodedItem]]:
    """Cut the items into segments of `batch`, or fewer where a segment would become too large or mix encodings."""
    begin, size = 0, 0
    for number, item in enumerate(items):
        full = number - begin == batch or (number > begin and size + len(item.body) > MAX_SEGMENT_BYTES)
        if full or item.encoding != items[begin].encoding:
            yield items[begin:number]
            begin, size = number, 0
        size += len(item.body) if len(item.body) < LARGE_ITEM_BYTES else 0
    if begin < len(items):
        yield items[begin:]
