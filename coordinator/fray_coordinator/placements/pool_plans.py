"""The plans of pools: by which agents learn which owners they are members of. A plan that is lost costs latency only.

A plan is made of records that were read, never of what is about to be written, and ringing the pool's doorbell follows
it. The ring says which version of the bell it replaced, so that who knew that one need not list the pool's jobs.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell, PoolPlan

OwnerKeys = Mapping[str, list[str]]
"""By agent, the keys of the owners' records that it should read."""


@dataclass(slots=True)
class PoolPlans:
    """Writes the plans of all pools."""

    core: Core
    _known: dict[str, Stored[PoolPlan] | None] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    _anew: set[str] = field(default_factory=set)
    _unrung: set[str] = field(default_factory=set)

    def renew(self, pools: Iterable[str]) -> None:
        """Have these pools' plans written in any case when they are told next: an agent was assigned bundles.

        If it had some of that owner before, the plan names it, and the agent looks at it no longer.
        """
        self._anew.update(pools)

    async def tell(self, wanted: Mapping[str, OwnerKeys]) -> None:
        """See that each pool's plan names these owners, and ring the doorbells of those that were written.

        wanted: by pool.
        """
        self._anew &= wanted.keys()
        for pool, owners in wanted.items():
            if await self._write(pool, owners, pool in self._anew):
                self._unrung.add(pool)
            self._anew.discard(pool)
        for pool in sorted(self._unrung):
            with suppress(StoreUnavailable):  # rung too often: again in the next step
                await self._ring(pool)
                self._unrung.discard(pool)

    async def _write(self, pool: str, owners: OwnerKeys, anew: bool) -> bool:
        """Write a pool's plan, unless it is not to be `anew` and names all of them; whether it was written.

        What is no plan is replaced.
        """
        key, now = PoolKeys.plan(pool), self.core.clock.boottime()
        if now - self._read_at.get(pool, float("-inf")) >= self.core.settings.repair_interval:
            self._known.pop(pool, None)  # others may have written it, or written over it
            self._read_at[pool] = now
        wanted = PoolPlan(owners={agent: list(keys) for agent, keys in owners.items()})
        try:
            if pool not in self._known:
                self._known[pool] = await self.core.records.read(key, PoolPlan)
            update = await self.core.records.update(
                key,
                PoolPlan,
                lambda now: None if now is not None and not anew and _names(now, owners) else wanted,
                self._known[pool],
            )
        except BadRecord:
            self._known.pop(pool, None)
            await self.core.records.put(key, wanted, ANY)
            return True
        self._known[pool] = update.stored
        return update.wrote

    async def _ring(self, pool: str) -> None:
        """Ring on condition of the bell that is there; if another ring came before, that one is heard as well."""
        key = PoolKeys.doorbell(pool)
        with suppress(StoreRefused):
            try:
                before = await self.core.records.read(key, Doorbell)
            except BadRecord:
                await self.core.records.put(key, Doorbell(rung_at=self.core.now()), ANY, patience=0.0)
                return
            bell = Doorbell(rung_at=self.core.now(), replaces=before.version if before is not None else "")
            await self.core.records.write(key, Doorbell, bell, before, patience=0.0)


def _names(plan: PoolPlan, owners: OwnerKeys) -> bool:
    return all(set(keys) <= set(plan.owners.get(agent, ())) for agent, keys in owners.items())
