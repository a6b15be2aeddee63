"""Writes the plans of pools, which tell agents the owners that they are members of. A lost plan only costs latency.

A plan is made from records that were read, never from ones that are about to be written. After a plan, the pool's
doorbell is rung. The ring names the version of the bell that it replaced, so a listener that knew that version need not
list the jobs.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.jobs.notifications import new_bell
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell, PoolPlan

OwnerKeys = Mapping[str, list[str]]
"""By agent id, the keys of the owners' records that the agent should read."""


@dataclass(slots=True)
class PoolPlans:
    """Writes the plans of all pools."""

    core: Core
    _known: dict[str, Stored[PoolPlan] | None] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _to_ring: set[str] = field(default_factory=set)

    def note_change(self, pools: Iterable[str]) -> None:
        """Have the plans of these pools written at the next `publish` in any case: an agent was assigned bundles.

        If the agent had bundles of that owner before, the plan names the owner already, and the agent no longer reads
        it.
        """
        self._changed.update(pools)

    async def publish(self, wanted: Mapping[str, OwnerKeys], problems: dict[str, str]) -> None:
        """Make each pool's plan name these owners, and ring the doorbells of the pools whose plans were written.

        Args:
            wanted: by pool.
            problems: receives, by key, the plans that cannot be written; the others are.
        """
        self._changed &= wanted.keys()

        async def write(pool: str) -> None:
            if await self._write(pool, wanted[pool], pool in self._changed):
                self._to_ring.add(pool)
            self._changed.discard(pool)

        await map_noting_problems(wanted, write, problems, PoolKeys.plan, at_once=1)
        for pool in sorted(self._to_ring):
            with suppress(StoreUnavailable):  # rung too often; the next step tries again
                await self._ring(pool)
                self._to_ring.discard(pool)

    async def _write(self, pool: str, owners: OwnerKeys, changed: bool) -> bool:
        """Write a pool's plan if `changed` is set or the plan lacks some owner; returns whether it was written.

        An object that is not a plan is replaced.
        """
        key, now = PoolKeys.plan(pool), self.core.clock.boottime()
        if now - self._read_at.get(pool, float("-inf")) >= self.core.settings.repair_interval:
            self._known.pop(pool, None)  # another process may have replaced the plan
            self._read_at[pool] = now
        wanted = PoolPlan(owners={agent: list(keys) for agent, keys in owners.items()})
        try:
            if pool not in self._known:
                self._known[pool] = await self.core.records.read(key, PoolPlan)
            update = await self.core.records.update(
                key,
                PoolPlan,
                lambda now: None if now is not None and not changed and _names(now, owners) else wanted,
                self._known[pool],
            )
        except BadRecord:
            self._known.pop(pool, None)
            await self.core.records.put(key, wanted, ANY)
            return True
        self._known[pool] = update.stored
        return update.wrote

    async def _ring(self, pool: str) -> None:
        """Ring on condition of the present bell; if somebody else rang before, agents hear that ring."""
        key = PoolKeys.doorbell(pool)
        with suppress(StoreRefused):
            try:
                before = await self.core.records.read(key, Doorbell)
            except BadRecord:
                await self.core.records.put(key, new_bell(self.core), ANY, patience=0.0)
                return
            bell = replace(new_bell(self.core), replaces=before.version if before is not None else "")
            await self.core.records.write(key, Doorbell, bell, before, patience=0.0)


def _names(plan: PoolPlan, owners: OwnerKeys) -> bool:
    return all(set(keys) <= set(plan.owners.get(agent, ())) for agent, keys in owners.items())
