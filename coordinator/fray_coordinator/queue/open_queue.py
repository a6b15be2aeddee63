"""An opened queue: its place in storage, its settings, and the log of its finished segments.

The log keeps the names of finished segments for longer than a create can be on its way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import LOCAL_SETTINGS, Core, core_on
from fray_coordinator.errors import BadRecord, RootMismatch
from fray_coordinator.protocol.queue_segments import all_creates_landed
from fray_coordinator.queue.receipts import ReceiptLog
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.records import Records
from fray_coordinator.store.store import Store
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.key_encoding import encode_time
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import QUEUE_LAYOUT, FinishedSegments, QueueRecord
from fray_layouts.records import ClusterSettings


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A queue as one participant has opened it.

    Attributes:
        holder: the participant's name in leases, for people.
    """

    core: Core
    keys: QueueKeys
    settings: QueueRecord
    holder: str
    finished: FinishedLog
    receipts: ReceiptLog


async def open_queue(core: Core, keys: QueueKeys, wanted: QueueRecord | None = None) -> OpenQueue:
    """Open the queue; create it if there is none.

    Args:
        wanted: the settings if the queue is created.

    Raises:
        RootMismatch: the queue has another layout version, or the object there is not a queue.
    """
    fresh = wanted or QueueRecord()

    def decide(found: QueueRecord | None) -> QueueRecord | None:
        return QueueRecord(
            quarantine=fresh.quarantine, max_deliveries=fresh.max_deliveries, created_at=core.now()
        ) if found is None else None  # fmt: skip

    try:
        update = await core.records.update(keys.settings, QueueRecord, decide)
    except BadRecord as error:
        raise RootMismatch(f"{core.root}/{keys.prefix} is not a queue: {error}") from None
    assert update.stored is not None, "it was found or created"
    return _checked(core, keys, update.stored.record)


async def find_queue(core: Core, keys: QueueKeys) -> OpenQueue | None:
    """Open the queue; None if there is none. Raises as `open_queue` does."""
    try:
        found = await core.records.read(keys.settings, QueueRecord)
    except BadRecord as error:
        raise RootMismatch(f"{core.root}/{keys.prefix} is not a queue: {error}") from None
    return None if found is None else _checked(core, keys, found.record)


def _checked(core: Core, keys: QueueKeys, found: QueueRecord) -> OpenQueue:
    if found.layout != QUEUE_LAYOUT:
        raise RootMismatch(
            f"the queue at {core.root}/{keys.prefix} has layout version {found.layout}, this Fray uses "
            f"{QUEUE_LAYOUT}; use a Fray of that version, or another queue"
        )
    holder = f"{_host()}, pid {os.getpid()}, {core.rng.token(4)}"
    receipts = ReceiptLog(core.store, core.records, core.rng, keys)
    return OpenQueue(core, keys, found, holder, FinishedLog(core, keys, found.quarantine), receipts)


@cache
def _host() -> str:
    return socket.gethostname()


async def open_root(root: str, named: bool) -> Core:
    """Open the root of a cluster, for a queue with a name in it, or a root that holds nothing but one queue.

    Raises:
        RootMismatch: the root is of the other kind.
        InvalidInput, StoreRefused, StoreUnavailable: as `open_store` says.
    """
    clock, rng = SystemClock(), system_random()
    store = await open_store(root, clock, rng)
    try:
        is_cluster = await store.get(CLUSTER_KEY) is not None
        if is_cluster and not named:
            raise RootMismatch(f"{store.root} is a cluster's root; give the queue a name in it, or a folder of its own")
        if named and not is_cluster and await store.get(QueueKeys().settings) is not None:
            raise RootMismatch(f"{store.root} holds a queue without a name; leave the name out, or use another root")
        return await core_on(store, None, clock, rng) if named else standalone_core(store, clock, rng)
    except BaseException:
        await store.close()
        raise


def standalone_core(store: Store, clock: Clock, rng: RandomSource) -> Core:
    """A core without a cluster, with the intervals of a new cluster."""
    settings = LOCAL_SETTINGS if store.local else ClusterSettings()
    return Core(store, Records(store, clock, rng), clock, rng, settings)


class FinishedLog:
    """One participant's view of the log. It remembers the objects that it has read, as long as they exist."""

    def __init__(self, core: Core, keys: QueueKeys, quarantine: float) -> None:
        self._core = core
        self._keys = keys
        self._quarantine = quarantine
        self._read: dict[str, frozenset[str]] = {}

    async def note(self, segments: Collection[str]) -> None:
        """Write down that these segments are finished. This is done before their leases are deleted."""
        key = self._keys.finished_at(self._core.now(), self._core.rng.unique_id())
        await self._core.store.put(key, codec.encode(FinishedSegments(segments=list(segments))), ABSENT)

    async def holds(self, segment: str) -> bool:
        """Whether the segment was finished before. Raises StoreError if that cannot be known now."""
        since = self._keys.finished + encode_time(SegmentName.time_of(segment))
        rows = await self._core.store.list(self._keys.finished, since)
        keys = [row.key for row in rows if self._keys.finished_time(row.key) is not None]
        await map_concurrently([key for key in keys if key not in self._read], self._load)
        return any(segment in self._read[key] for key in keys)

    async def sweep(self) -> None:
        """Delete the objects that are so old that nobody needs them."""
        rows = await self._core.store.list(self._keys.finished)
        self._read = {row.key: self._read[row.key] for row in rows if row.key in self._read}
        times = [(row.key, self._keys.finished_time(row.key)) for row in rows]
        now, quarantine = self._core.now(), self._quarantine
        old = [key for key, time in times if time is not None and all_creates_landed(time, now, quarantine)]
        await map_concurrently(old, self._core.store.delete)

    async def _load(self, key: str) -> None:
        try:
            found = await self._core.store.get(key)
            names = codec.decode(found.data, FinishedSegments).record.segments if found else []
        except Malformed:
            names = []  # without it an item may be delivered twice, but none is lost
        self._read[key] = frozenset(names)
