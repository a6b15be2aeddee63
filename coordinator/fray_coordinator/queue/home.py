"""One queue, opened: where it lies and what its participants agreed on."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache

from fray_coordinator.clock import Chance, Clock, SystemClock, system_chance
from fray_coordinator.core import LOCAL_SETTINGS, Core, core_on
from fray_coordinator.errors import BadRecord, RootMismatch
from fray_coordinator.queue.finished import FinishedLog
from fray_coordinator.records import Records
from fray_coordinator.store.open import open_store
from fray_coordinator.store.store import Store
from fray_layouts import names
from fray_layouts.queue_names import Queues
from fray_layouts.queues import QUEUE_LAYOUT, QueueRecord
from fray_layouts.records import Settings


@dataclass(frozen=True, slots=True)
class Home:
    """A queue and a participant's way to it.

    Attributes:
        holder: what the participant calls itself in leases.
    """

    core: Core
    names: Queues
    settings: QueueRecord
    holder: str
    finished: FinishedLog


async def open_home(core: Core, queue: Queues, wanted: QueueRecord | None = None) -> Home:
    """Open the queue, and make it if it is not there.

    Args:
        wanted: its settings, if it is made.

    Raises:
        RootMismatch: it has another layout version, or what lies there is no queue.
    """
    fresh = wanted or QueueRecord()

    def decide(found: QueueRecord | None) -> QueueRecord | None:
        return QueueRecord(
            quarantine=fresh.quarantine, max_deliveries=fresh.max_deliveries, created_at=core.now()
        ) if found is None else None  # fmt: skip

    try:
        update = await core.records.update(queue.settings, QueueRecord, decide)
    except BadRecord as error:
        raise RootMismatch(f"{core.root}/{queue.prefix} is not a queue: {error}") from None
    assert update.stored is not None, "it was found or created"
    return _checked(core, queue, update.stored.record)


async def find_home(core: Core, queue: Queues) -> Home | None:
    """Open the queue if it is there. Raises as `open_home` does."""
    try:
        found = await core.records.read(queue.settings, QueueRecord)
    except BadRecord as error:
        raise RootMismatch(f"{core.root}/{queue.prefix} is not a queue: {error}") from None
    return None if found is None else _checked(core, queue, found.record)


def _checked(core: Core, queue: Queues, found: QueueRecord) -> Home:
    if found.layout != QUEUE_LAYOUT:
        raise RootMismatch(
            f"the queue at {core.root}/{queue.prefix} has layout version {found.layout}, this Fray uses "
            f"{QUEUE_LAYOUT}; use a Fray of that version, or another queue"
        )
    holder = f"{_host()}, pid {os.getpid()}, {core.chance.token(4)}"
    return Home(core, queue, found, holder, FinishedLog(core, queue, found.quarantine))


@cache
def _host() -> str:
    return socket.gethostname()


async def open_root(root: str, named: bool) -> Core:
    """A core on the root of a cluster, for a queue that is named in it; else on one that holds nothing but one queue.

    Raises:
        RootMismatch: the root is of the other kind.
        InvalidInput, StoreRefused, StoreUnavailable: as `open_store` says.
    """
    clock, chance = SystemClock(), system_chance()
    store = await open_store(root, clock, chance)
    try:
        is_cluster = await store.get(names.CLUSTER) is not None
        if is_cluster and not named:
            raise RootMismatch(f"{store.root} is a cluster's root; give the queue a name in it, or a folder of its own")
        if named and not is_cluster and await store.get(Queues().settings) is not None:
            raise RootMismatch(f"{store.root} holds a queue without a name; leave the name out, or use another root")
        return await core_on(store, None, clock, chance) if named else core_of(store, clock, chance)
    except BaseException:
        await store.close()
        raise


def core_of(store: Store, clock: Clock, chance: Chance) -> Core:
    """A core without a cluster: intervals as a new cluster has them."""
    settings = LOCAL_SETTINGS if store.local else Settings()
    return Core(store, Records(store, clock, chance), clock, chance, settings)
