"""The log of a queue's finished segments.

It keeps their names for longer than a create can be on its way, so that a create that lands late is recognized and its
items are not delivered again.
"""

from collections.abc import Collection

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.protocol.queue_segments import all_creates_landed
from fray_coordinator.queue.object_memory import Names, ObjectMemory
from fray_coordinator.store.interface import ABSENT
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.key_encoding import encode_time
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import FinishedSegments


class FinishedLog:
    """One participant's view of the log."""

    def __init__(self, core: Core, keys: QueueKeys, quarantine: float) -> None:
        self._core = core
        self._keys = keys
        self._quarantine = quarantine
        self._memory = ObjectMemory(self._load)

    async def note(self, segments: Collection[str]) -> None:
        """Write down that these segments are finished. This is done before their leases are deleted."""
        key = self._keys.finished_at(self._core.now(), self._core.rng.unique_id())
        await self._core.store.put(key, codec.encode(FinishedSegments(segments=list(segments))), ABSENT)

    async def holds(self, segment: str) -> bool:
        """Whether the segment was finished before. Raises StoreError if that cannot be known now."""
        since = self._keys.finished + encode_time(SegmentName.time_of(segment))
        rows = await self._core.store.list(self._keys.finished, since)
        keys = [row.key for row in rows if self._keys.finished_time(row.key) is not None]
        return await self._memory.holds(segment, keys)

    async def sweep(self) -> None:
        """Delete the objects that are so old that nobody needs them."""
        rows = await self._core.store.list(self._keys.finished)
        times = [(row.key, self._keys.finished_time(row.key)) for row in rows]
        now, quarantine = self._core.now(), self._quarantine
        old = [key for key, time in times if time is not None and all_creates_landed(time, now, quarantine)]
        self._memory.forget(old)
        await map_concurrently(old, self._core.store.delete)

    async def _load(self, key: str) -> Names:
        try:
            found = await self._core.store.get(key)
            names = codec.decode(found.data, FinishedSegments).record.segments if found else []
        except Malformed:
            names = []  # without it an item may be delivered twice, but none is lost
        return frozenset(names)
