"""Claims jobs that wait in the private pools of held reservations, for the agent's bundles of them.

The first page of a pool is listed when its doorbell has rung, and on the repair interval. If none of the listed jobs
fits the free room, the listing goes on page by page, `PAGES_PER_POLL` at most in one poll, so that large jobs do not
hide a small one behind them. If the first page is listed again before the listing has come to the end, for urgent jobs,
the listing still goes on from where it was. At its end it begins again: a job that came behind the first page meanwhile
is found then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.index_search import PAGES_PER_POLL
from fray_agents.agent.leases import Leases
from fray_agents.agent.loops import is_set_within
from fray_agents.agent.membership import Membership
from fray_agents.agent.orphans import make_room_for_parents
from fray_agents.agent.reservation_rooms import is_open, jobs_bound, room_for_jobs
from fray_coordinator.core import Core
from fray_coordinator.protocol.scheduling import shortage
from fray_coordinator.store.interface import ROWS_PER_REQUEST, NotModified, Version
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import PoolKeys, ReservationKeys

PUT_OFF_POLLS = 5
"""Poll intervals until an entry that could not be claimed is tried again."""


@dataclass(slots=True)
class PrivatePool:
    """The jobs that wait in one reservation, as last listed.

    Attributes:
        bell: the version of the pool's doorbell just before the first page was listed.
        listed_at: when the first page was listed, in seconds of `Clock.boottime`.
        entries: the listed entries that this agent has not claimed; others may have, since they were listed.
        last: the key after which the listing goes on; None: it came to the end.
        has_missed: whether jobs may have come behind the first page since the listing began.
        not_before: for entries that could not be claimed, the time of the next try.
    """

    bell: Version | None = None
    listed_at: float | None = None
    entries: list[PendingKey] = field(default_factory=list)
    last: str | None = None
    has_missed: bool = False
    not_before: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class PrivatePools:
    """Looks for jobs in the reservations of which the agent holds bundles.

    Attributes:
        member: the agent's membership.
        claim: tries to claim an entry, to run it in the reservation's room; whether it was claimed.
        wake: set it to poll now.
    """

    member: Membership
    claim: Callable[[PendingKey, HeldPlacement], Awaitable[bool]]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pools: dict[str, PrivatePool] = field(default_factory=dict)

    @property
    def _core(self) -> Core:
        return self.member.core

    @property
    def _leases(self) -> Leases:
        return self.member.leases

    async def run(self) -> None:
        """Poll for ever; without a reservation only when woken, or on the repair interval."""
        while True:
            self.wake.clear()
            with self.member.problems.tolerated("look for work in its reservations"):
                await self.poll()
            settings = self._core.settings
            wait = settings.poll_interval if self._pools else settings.repair_interval
            await is_set_within(self.wake, self._core.jittered(max(wait, settings.poll_interval)))

    async def poll(self) -> None:
        """Claim the jobs that fit now."""
        rooms = {name: held for name, held in self._leases.placements.items() if is_open(held)}
        self._pools = {name: self._pools.get(name, PrivatePool()) for name in rooms}
        for name, held in rooms.items():
            await self._poll_pool(held, self._pools[name])

    async def _poll_pool(self, held: HeldPlacement, pool: PrivatePool) -> None:
        await self._list_if_due(ReservationKeys.pool(held.owner.id), pool)
        keys = [entry.key() for entry in pool.entries]
        await make_room_for_parents(self.member, keys, held)
        self.member.asks.note(keys, self.member.host_kind, self._core.now(), held)
        jobs, begin, pages = jobs_bound(held.owner, self.member.id), 0, 1
        while await self._claim_fitting(held, pool, pool.entries[begin:], jobs):
            if pool.last is None or pages == PAGES_PER_POLL:
                return
            begin, pages = len(pool.entries), pages + 1
            await self._list_more(ReservationKeys.pool(held.owner.id), pool)

    async def _claim_fitting(
        self, held: HeldPlacement, pool: PrivatePool, entries: list[PendingKey], jobs: set[str]
    ) -> bool:
        """Try the entries that fit; whether all were gone through, so that further ones may be listed."""
        for entry in entries:
            if not self.member.may_claim() or not is_open(held):
                return False
            if entry.job in self._leases.held or not (entry.job in jobs or "" in jobs):
                continue
            now = self._core.clock.boottime()
            room = room_for_jobs(held, self._leases, self.member.id, entry)
            if shortage(entry.shape, room, self.member.host_kind) or now < pool.not_before.get(entry.key(), 0.0):
                continue
            if await self.claim(entry, held):
                pool.entries.remove(entry)
            else:
                pool.not_before[entry.key()] = now + PUT_OFF_POLLS * self._core.settings.poll_interval
        return True

    async def _list_if_due(self, name: str, pool: PrivatePool) -> None:
        """List the first page if the pool's doorbell rang, if jobs were missed, and on the repair interval."""
        answer = await self._core.store.get_if_changed(PoolKeys.doorbell(name), pool.bell, patience=0.0)
        rang = answer is not None and not isinstance(answer, NotModified)
        now, missed = self._core.clock.boottime(), pool.has_missed and pool.last is None
        is_recent = pool.listed_at is not None and now - pool.listed_at < self._core.settings.repair_interval
        if is_recent and not rang and not missed:
            return
        entries, last = await self._page(name, None)
        if pool.last is None or last is None or last >= pool.last:
            pool.entries, pool.last, pool.has_missed = entries, last, False
        else:
            pool.entries = entries + [entry for entry in pool.entries if entry.key() > last]
            pool.has_missed = True
        pool.not_before = {key: at for key, at in pool.not_before.items() if at > now}
        pool.listed_at = now
        if answer is not None and not isinstance(answer, NotModified):
            pool.bell = answer.version

    async def _list_more(self, name: str, pool: PrivatePool) -> None:
        entries, pool.last = await self._page(name, pool.last)
        pool.entries += entries

    async def _page(self, name: str, after: str | None) -> tuple[list[PendingKey], str | None]:
        """The entries of one listing, and the key after which the next one goes on; None at the end of the pool."""
        rows = await self._core.store.list(PendingKey.prefix(name), after, ROWS_PER_REQUEST)
        parsed = (PendingKey.parse(row.key) for row in rows)
        return [entry for entry in parsed if entry is not None], rows[-1].key if len(rows) == ROWS_PER_REQUEST else None
