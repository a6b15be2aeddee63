"""Rings the doorbells of pools and of placements, which are hints that an index changed. A lost ring costs latency.

A bucket accepts one write of a key per second, and many processes may ring at once. A process whose ring is rejected
reads the bell. If somebody else has rung since, that ring is as good as its own, because every listener lists the index
afterwards.
"""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import ANY, NAME_WRITE_INTERVAL
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell


async def ring(core: Core, pool: str) -> None:
    """Ring the doorbell of a pool, as `ring_bell` does."""
    await ring_bell(core, PoolKeys.doorbell(pool))


async def ring_bell(core: Core, key: str) -> None:
    """Change a bell's version, or see that somebody else has changed it. Reads the bell only if the ring is rejected.

    A process without the right to ring, or that finds something that is no doorbell, returns without a ring: others
    list the index anyway. Raises StoreUnavailable: neither happened within the store's patience.
    """
    with suppress(StoreRefused, BadRecord):
        await _ring_until_seen(core, key)


async def _ring_until_seen(core: Core, key: str) -> None:
    started, seen = core.clock.boottime(), ""
    while True:
        try:
            return await _ring_once(core, key)
        except StoreUnavailable:
            if core.clock.boottime() - started > core.store.patience:
                raise
        bell = await core.store.get(key)
        if bell is not None and bell.version != seen != "":
            return None
        seen = bell.version if bell is not None else ""
        await core.clock.sleep(core.jittered(NAME_WRITE_INTERVAL))


def new_bell(core: Core) -> Doorbell:
    """The bell as it is rung now."""
    return Doorbell(rung_at=core.now(), cluster=core.settings.cluster_id)


async def _ring_once(core: Core, key: str) -> None:
    await core.records.put(key, new_bell(core), ANY, patience=0.0)
