"""What participants of a queue remember of segments that are done: the log of finished segments, and receipts.

Both consist of immutable objects, which each participant reads once. The log keeps the names of finished segments for
longer than a create can be on its way, so that a create that lands late is recognized and its items are not delivered
again.

A receipt is one object that says that all items of many segments are done.

The participant that wrote a receipt deletes it when the leases of its segments are gone. If the participant ends before
that, a sweep copies what the receipt says into the leases. `protocol.queue_lease` says when a receipt counts.

Each consumer's receipts lie in a folder of their own. So whoever takes over a segment reads only the receipts of the
consumer that had it: those of about a minute, whatever the other consumers do.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from fray_coordinator.clock import RandomSource
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import all_creates_landed
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Records, Stored
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.key_encoding import encode_time
from fray_layouts.queue_keys import CONSUMER_DIGITS, QueueKeys, SegmentName
from fray_layouts.queue_records import FinishedSegments, QueueLease, Receipt

MAX_REMEMBERED_NAMES = 100_000
"""Names and objects that are remembered. They take some 15 MB; a consumer that needs more reads some objects again."""

Names = frozenset[str]


class ObjectMemory:
    """Objects that hold names, such as receipts.

    Answers come from what the caller itself has read, since concurrent calls may have listed earlier or later ones.

    load: reads one object.
    """

    def __init__(self, load: Callable[[str], Awaitable[Names]]) -> None:
        self._load = load
        self._known: OrderedDict[str, Names] = OrderedDict()
        self._size = 0

    async def holds(self, name: str, keys: Sequence[str]) -> bool:
        """Whether one of these objects has the name. Raises as `load` does."""

        async def has(key: str) -> bool:
            return name in await self._read(key)

        return any(await map_concurrently(keys, has))

    def forget(self, keys: Collection[str]) -> None:
        """Forget objects that are deleted."""
        for key in keys:
            if (known := self._known.pop(key, None)) is not None:
                self._size -= 1 + len(known)

    async def _read(self, key: str) -> Names:
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        found = await self._load(key)
        self.forget([key])
        self._known[key] = found
        self._size += 1 + len(found)
        while self._size > MAX_REMEMBERED_NAMES:
            self.forget([next(iter(self._known))])
        return found


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


MAX_RECEIPT_SEGMENTS = 1000
"""Segments in one receipt. With so many its request costs next to nothing per segment, and reading it is quick."""
SWEEP_PAGE = 1000
"""Receipts listed in one sweep, so that no sweep takes long."""


class ReceiptLog:
    """One participant's view of the receipts."""

    def __init__(self, store: Store, records: Records, rng: RandomSource, keys: QueueKeys) -> None:
        self._store = store
        self._records = records
        self._rng = rng
        self._keys = keys
        self._memory = ObjectMemory(self._load)
        self._swept = ""

    async def write(self, done: Mapping[str, Sequence[str]]) -> str:
        """Write a receipt of these segments, by claim; all claims are one consumer's. Returns its key.

        Raises StoreError; the receipt may still be written then.
        """
        consumer = next(iter(done))[:CONSUMER_DIGITS]
        key = self._keys.receipt_at(consumer, self._store.now(), self._rng.unique_id())
        receipt = Receipt(done={owner: list(segments) for owner, segments in done.items()})
        await self._store.put(key, codec.encode(receipt), ABSENT)
        return key

    async def names(self, segment: str, owner: str) -> bool:
        """Whether a receipt says that this claim has done the segment. Raises StoreError if that cannot be known now.

        Ask only when the lease has expired: a receipt that is written later does not count.
        """
        if (folder := self._keys.receipts_of(owner)) is None:
            return False
        rows = await self._store.list(folder)
        keys = [row.key for row in rows if self._keys.receipt_time(row.key) is not None]
        return await self._memory.holds(_claim(owner, segment), keys)

    async def remove(self, key: str) -> None:
        """Delete a receipt that nobody needs any more."""
        self._memory.forget([key])
        await self._store.delete(key)

    async def sweep(self, quarantine: float) -> None:
        """Copy what old receipts say into the leases, and delete them, since their writers have ended.

        Each sweep goes on where the last one ended.
        """
        rows = await self._store.list(self._keys.receipts, self._swept or None, SWEEP_PAGE)
        now = self._store.now()
        for key in [row.key for row in rows]:
            time = self._keys.receipt_time(key)
            if time is not None and all_creates_landed(time, now, quarantine):
                for owner, segments in (await self._receipt(key)).done.items():
                    await map_concurrently(segments, partial(self._carry_over, owner))
                await self.remove(key)
        self._swept = rows[-1].key if len(rows) == SWEEP_PAGE else ""

    async def close_lease(self, lease: Stored[QueueLease], segment: str) -> None:
        """Write into a lease what a receipt says of its claim, unless somebody else is faster."""
        wanted = rules.receipted(lease.record, SegmentName.items_of(segment), self._rng.unique_id())
        await self._records.write(lease.key, QueueLease, wanted, lease)

    async def _carry_over(self, owner: str, segment: str) -> None:
        try:
            lease = await self._records.read(self._keys.lease(segment), QueueLease)
        except BadRecord:
            return  # fsck reports it
        if lease is not None and lease.record.owner == owner:
            await self.close_lease(lease, segment)

    async def _load(self, key: str) -> Names:
        done = (await self._receipt(key)).done
        return frozenset(_claim(owner, segment) for owner, segments in done.items() for segment in segments)

    async def _receipt(self, key: str) -> Receipt:
        try:
            found = await self._store.get(key)
            return codec.decode(found.data, Receipt).record if found else Receipt(done={})
        except (Malformed, BadRecord):
            return Receipt(done={})  # without it items may be delivered twice, but none is lost


def _claim(owner: str, segment: str) -> str:
    return f"{owner}/{segment}"
