"""An opened queue: its place in storage, its settings and its logs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache

from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.core import LOCAL_SETTINGS, Core, core_on
from fray_coordinator.errors import BadRecord, RootMismatch
from fray_coordinator.queue.receipts import FinishedLog, ReceiptLog
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.records import Records
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.queue_keys import CONSUMER_DIGITS, QueueKeys
from fray_layouts.queue_records import QUEUE_LAYOUT, QueueRecord
from fray_layouts.records import ClusterSettings


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A queue as one participant has opened it.

    Attributes:
        holder: the participant's name in leases, for people.
        consumer: digits with which the owners of all its claims begin.
    """

    core: Core
    keys: QueueKeys
    settings: QueueRecord
    holder: str
    consumer: str
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
    consumer = core.rng.token(CONSUMER_DIGITS)
    return OpenQueue(core, keys, found, holder, consumer, FinishedLog(core, keys, found.quarantine), receipts)


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
