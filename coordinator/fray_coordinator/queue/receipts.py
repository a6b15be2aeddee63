"""Receipts of a queue: one object says that all items of many segments are done.

The participant that wrote a receipt deletes it when the leases of its segments are gone. If the participant ends before
that, a sweep copies what the receipt says into the leases. `protocol.queue_lease` says when a receipt counts.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from fray_coordinator.clock import RandomSource
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import all_creates_landed
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Records, Stored
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import QueueLease, Receipt

MAX_RECEIPT_SEGMENTS = 1000
"""Segments in one receipt. With so many its request costs next to nothing per segment, and reading it is quick."""


class ReceiptLog:
    """One participant's view of the receipts. It remembers those that it has read, as long as they exist."""

    def __init__(self, store: Store, records: Records, rng: RandomSource, keys: QueueKeys) -> None:
        self._store = store
        self._records = records
        self._rng = rng
        self._keys = keys
        self._read: dict[str, dict[str, frozenset[str]]] = {}

    async def write(self, done: Mapping[str, Sequence[str]]) -> str:
        """Write a receipt of these segments, by claim; returns its key.

        Raises StoreError; the receipt may still be written then.
        """
        key = self._keys.receipt_at(self._store.now(), self._rng.unique_id())
        receipt = Receipt(done={owner: list(segments) for owner, segments in done.items()})
        await self._store.put(key, codec.encode(receipt), ABSENT)
        return key

    async def names(self, segment: str, owner: str) -> bool:
        """Whether a receipt says that this claim has done the segment. Raises StoreError if that cannot be known now.

        Ask only when the lease has expired: a receipt that is written later does not count.
        """
        rows = await self._store.list(self._keys.receipts)
        keys = [row.key for row in rows if self._keys.receipt_time(row.key) is not None]
        self._read = {key: self._read[key] for key in keys if key in self._read}
        await map_concurrently([key for key in keys if key not in self._read], self._load)
        return any(segment in done.get(owner, ()) for done in self._read.values())

    async def remove(self, key: str) -> None:
        """Delete a receipt that nobody needs any more."""
        self._read.pop(key, None)
        await self._store.delete(key)

    async def sweep(self, quarantine: float) -> None:
        """Copy what old receipts say into the leases, and delete them, since their writers have ended."""
        rows = await self._store.list(self._keys.receipts)
        now = self._store.now()
        for key in [row.key for row in rows]:
            time = self._keys.receipt_time(key)
            if time is not None and all_creates_landed(time, now, quarantine):
                await self._load(key)
                for owner, segments in self._read[key].items():
                    await map_concurrently(segments, partial(self._carry_over, owner))
                await self.remove(key)

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

    async def _load(self, key: str) -> None:
        try:
            found = await self._store.get(key)
            done = codec.decode(found.data, Receipt).record.done if found else {}
        except (Malformed, BadRecord):
            done = {}  # without it items may be delivered twice, but none is lost
        self._read[key] = {owner: frozenset(segments) for owner, segments in done.items()}
