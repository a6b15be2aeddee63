"""The doorbells of pools, and the bell of placements: hints that an index changed. A ring that is lost costs latency.

Buckets take one write of a name a second, and many may ring at once. Whoever is refused looks at the bell: if somebody
else has rung since, that ring is as good as one's own, for whoever hears it lists the index afterwards.
"""

from contextlib import suppress

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell

RING_RETRY_SECONDS = 1.0
"""Seconds until a name that was written too often may be written again."""


async def ring(core: Core, pool: str) -> None:
    """Ring the doorbell of a pool, as `ring_bell` does."""
    await ring_bell(core, PoolKeys.doorbell(pool))


async def ring_bell(core: Core, key: str) -> None:
    """Change a bell's version, or see that somebody else did; without a read unless the ring comes too soon.

    Who has no right to ring, or finds something that is no doorbell, leaves it at that: the index is listed anyway.
    Raises StoreUnavailable: neither came about for as long as the store is given.
    """
    with suppress(StoreRefused, BadRecord):
        await _ring_until_seen(core, key)


async def _ring_until_seen(core: Core, key: str) -> None:
    begun, seen = core.clock.boottime(), ""
    while True:
        try:
            return await _ring_once(core, key)
        except StoreUnavailable:
            if core.clock.boottime() - begun > core.store.patience:
                raise
        bell = await core.store.get(key)
        if bell is not None and bell.version != seen != "":
            return None
        seen = bell.version if bell is not None else ""
        await core.clock.sleep(core.jittered(RING_RETRY_SECONDS))


async def _ring_once(core: Core, key: str) -> None:
    await core.records.put(key, Doorbell(rung_at=core.now()), ANY, patience=0.0)
