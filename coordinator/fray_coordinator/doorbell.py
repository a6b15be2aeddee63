"""The doorbell of a pool: a hint that its pending index changed. A ring that is lost costs latency only.

Buckets take one write of a name a second, and many may ring at once. So whoever finds that the bell was rung just now
waits a moment: if somebody else has rung meanwhile, that ring is as good as one's own.
"""

from __future__ import annotations

from fray_coordinator.core import Core
from fray_coordinator.store.api import ANY
from fray_layouts import codec, names
from fray_layouts.records import Doorbell

SPACING = 1.0
"""Seconds between two rings, where the store limits writes to one name."""


async def ring(core: Core, pool: str) -> None:
    """Change the doorbell's version, or see it changed by somebody else."""
    asked = core.now()
    while not core.store.local and (last := await _rung_at(core, pool)) is not None:
        if last > asked:
            return
        if core.now() - last >= SPACING:
            break
        await core.clock.sleep(core.jittered(SPACING))
    op = core.chance.token(16)
    body = Doorbell(op=op, created_op=op, rung_at=core.now())
    await core.store.put(names.Pools.doorbell(pool), codec.encode(body), ANY, op)


async def _rung_at(core: Core, pool: str) -> float | None:
    """When the bell was rung last, by the store's clock; None if it never was."""
    bell = await core.store.get(names.Pools.doorbell(pool))
    return bell.updated if bell is not None else None
