"""The private pools of held reservations: one agent's bundles of them, and the jobs that it claims for these.

Once a reservation is held there are no votes. The agent takes the bundles that the record assigns to it as soon as it
has room, and only the agent itself says whether it has them. A bundle that is assigned elsewhere takes no new job, and
the agent gives it up once no job in the reservation needs its room. An agent that may take no work, and runs none of
the reservation's jobs, refuses it for that time, so that its bundles go to other agents.

The first page of a pool is listed when its doorbell has rung, and on the repair interval. If none of the listed jobs
fits the free room, the listing goes on page by page, `PAGES_PER_POLL` at most in one poll, so that large jobs do not
hide a small one behind them. If the first page is listed again before the listing has come to the end, for urgent jobs,
the listing still goes on from where it was. At its end it begins again: a job that came behind the first page meanwhile
is found then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.index_search import PAGES_PER_POLL
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_agents.agent.overcommit import make_room_for_parents
from fray_agents.agent.problems import is_set_within
from fray_coordinator.core import Core
from fray_coordinator.protocol.placements.families import families_first
from fray_coordinator.protocol.placements.owners import RESERVATION, Owner, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import held_by
from fray_coordinator.protocol.scheduling import HostKind, remaining_after, shortage
from fray_coordinator.store.interface import ROWS_PER_REQUEST, NotModified, Version
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import PoolKeys, ReservationKeys
from fray_layouts.records import ReservationRecord, Resources
from fray_layouts.states import HoldingPhase, ReservationState

log = logging.getLogger("fray")


@dataclass(slots=True)
class ReservationRooms:
    """Takes and gives up bundles of reservations that are no longer forming.

    Attributes:
        member: the agent's membership.
        let_go: frees the room that is held for an owner.
        opened: called when there may be room for jobs in a private pool.
    """

    member: Membership
    let_go: Callable[[HeldPlacement], Awaitable[None]]
    opened: Callable[[], None]

    @property
    def _leases(self) -> Leases:
        return self.member.leases

    async def follow(self, found: Stored[ReservationRecord] | None, held: HeldPlacement | None) -> None:
        """Do what a record that was just read says.

        Args:
            found: the record of a reservation that is held or has ended; None: the record is gone.
            held: the agent's holding of it; None: it has none.
        """
        assigned = self._assigned(found)
        if held is None:
            if found is None or not assigned:
                return
            held = HeldPlacement(owner_of_reservation(found.record), found, ())
            self._leases.add_placement(held)
        if found is not None:
            held.record, held.owner = found, owner_of_reservation(found.record)
        before = held.holding()
        refuses = self._refuses(found, held)
        if refuses:
            assigned = ()
        self._give_up(held, assigned)
        self._take(held, assigned)
        if not held.bundles and not self._is_used(held) and not refuses:
            log.info("%s: its bundles are given up", held.owner.id)
            await self.let_go(held)
            return
        held.round = held.owner.placement.round
        if any(bundle.taken for bundle in held.bundles):
            held.phase = HoldingPhase.RUNNING if self._is_used(held) else HoldingPhase.RESERVED
        elif refuses or held.phase == HoldingPhase.REFUSED:
            held.phase = HoldingPhase.REFUSED if refuses else ""
        if held.holding() != before:
            self.member.request_beat()
            self.opened()

    def _assigned(self, found: Stored[ReservationRecord] | None) -> tuple[int, ...]:
        """The bundles that are assigned to the agent; an agent that leaves gets none."""
        if found is None or self.member.leaving or self.member.draining:
            return ()
        return held_by(found.record, self.member.id)

    def _refuses(self, found: Stored[ReservationRecord] | None, held: HeldPlacement) -> bool:
        """Whether the agent refuses a held reservation until it may take work again."""
        member = self.member
        is_held = found is not None and found.record.state == ReservationState.HELD
        return is_held and member.unfit and not (member.leaving or member.draining or self._is_used(held))

    def _give_up(self, held: HeldPlacement, assigned: tuple[int, ...]) -> None:
        """Give up bundles that are no longer assigned to the agent, as far as no job needs their room."""
        for bundle in [b for b in held.bundles if b.number not in assigned]:
            if not bundle.taken or not shortage(bundle.shape, self._leases.free(held), HostKind()):
                held.bundles = tuple(b for b in held.bundles if b is not bundle)
                self._leases.changed.set()

    def _take(self, held: HeldPlacement, assigned: tuple[int, ...]) -> None:
        """Take the bundles that are assigned to the agent, each as soon as there is room for it."""
        known = {bundle.number for bundle in held.bundles}
        around = self._leases.placements.get(ReservationKeys.of_pool(held.owner.pool))
        device = self._leases.capacity.device
        held.bundles += tuple(
            HeldBundle(number=number, wants=held.owner.part_of(number).shape_on(device), room=around)
            for number in assigned
            if number not in known
        )
        for bundle in held.bundles:
            may_take = not (self.member.unfit or families_first(held.owner.placement))
            if not bundle.taken and bundle.number in assigned and may_take:
                self._leases.reserve([bundle], self.member.host_kind)

    def _is_used(self, held: HeldPlacement) -> bool:
        """Whether a task runs in it or has room in it; a gang's bundle that waits for room does not count."""
        inside = (task for task in self._leases.tasks() if task.room is held)
        return any(not isinstance(task, HeldBundle) or task.taken for task in inside)


def is_open(held: HeldPlacement) -> bool:
    """Whether jobs may start in this holding: it is part of a held reservation, with room."""
    record = held.record.record
    if held.owner.kind != RESERVATION or not isinstance(record, ReservationRecord):
        return False
    return record.state == ReservationState.HELD and any(bundle.taken for bundle in held.bundles)


def room_for_jobs(held: HeldPlacement, leases: Leases, agent: str, entry: PendingKey) -> Resources:
    """The free resources of the agent's assigned bundles that are not kept for gangs which come before the entry."""
    left = leases.unreserved(held, entry)
    assigned = held.owner.bundles_of(agent)
    for bundle in held.bundles:
        if bundle.taken and bundle.number not in assigned:
            left = remaining_after(left, bundle.shape)
    return replace(left, cpu=max(left.cpu, 0), memory=max(left.memory, 0), disk=max(left.disk, 0))


def jobs_bound(owner: Owner, agent: str) -> set[str]:
    """The jobs of a group to which the agent's bundles are bound; "" stands for a bundle that any job may use."""
    return {owner.part_of(number).job for number in owner.bundles_of(agent)}


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
        pool.bell = None if answer is None else pool.bell  # or each poll would confirm the root
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
