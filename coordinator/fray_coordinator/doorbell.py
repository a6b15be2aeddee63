"""The doorbell of a pool: a hint that its pending index changed. A ring that is lost costs latency only."""

from __future__ import annotations

from fray_coordinator.core import Core
from fray_coordinator.store.api import ANY
from fray_layouts import codec, names
from fray_layouts.records import Doorbell


async def ring(core: Core, pool: str) -> None:
    """Change the doorbell's version, without reading it; two rings at once are as good as one."""
    op = core.chance.token(16)
    body = Doorbell(op=op, created_op=op, rung_at=core.now())
    await core.store.put(names.Pools.doorbell(pool), codec.encode(body), ANY, op)
