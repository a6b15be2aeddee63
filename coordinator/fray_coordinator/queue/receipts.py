"""Receipts of a queue: one object says that all items of many segments are done.

The participant that wrote a receipt deletes it when the leases of its segments are gone. If the participant ends before
that, a sweep copies what the receipt says into the leases. `protocol.queue_lease` says when a receipt counts.

Each consumer's receipts lie in a folder of their own. So whoever takes over a segment reads only the receipts of the
consumer that had it: those of about a minute, whatever the other consumers do.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from fray_coordinator.clock import RandomSource
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import all_creates_landed
from fray_coordinator.queue.object_memory import Names, ObjectMemory
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Records, Stored
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.queue_keys import CONSUMER_DIGITS, QueueKeys, SegmentName
from fray_layouts.queue_records import QueueLease, Receipt

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
