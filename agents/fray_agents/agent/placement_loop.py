"""An agent's part in placements: it follows the owners' records, votes, has gangs run, and leaves them.

It reads the owners of which it has bundles, or to which the pool's plan assigns it. While an owner waits for room or
for its start, its record is read each second; while it runs, every three seconds, because nobody sends mail to all
members of a gang.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fray_agents.agent.gang_runner import GangRunner
from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.membership import Membership
from fray_agents.agent.pool_notices import PlanReader
from fray_agents.agent.private_pools import PrivatePools, ReservationRooms, is_open
from fray_agents.agent.problems import is_set_within, run_until_first_ends
from fray_agents.agent.voting import StoredOwner, Voting
from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.protocol.heartbeat import paced_interval
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.placements.votes import OwnerPhase, phase_of_owner
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import Holding, JobRecord, ReservationRecord
from fray_layouts.states import HoldingPhase, ReservationState

RUNNING_POLLS = 3
"""Poll intervals between two reads of the record of a running owner. Without a hint, the end of a gang elsewhere is
noticed that late. A heartbeat of 5 s may come before the end is written; together they take at most 10 s."""

READS_PER_SECOND = 200.0
"""Upper bound on reads of one owner's record by all of its members together."""


@dataclass(slots=True)
class PlacementWatch:
    """Makes one agent do what the owners' records say, for owners of which it has bundles or is to have some.

    Attributes:
        member: the agent's membership.
        voting: handles gangs, and reservations that are not complete yet.
        rooms: handles reservations that are held or have ended.
        wake: set it to poll now what is due.
    """

    member: Membership
    voting: Voting
    rooms: ReservationRooms
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _plan: PlanReader = field(init=False)
    _followed: set[str] = field(default_factory=set)
    _read_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._plan = PlanReader(self.member)

    @property
    def _core(self) -> Core:
        return self.member.core

    def plan_rang(self) -> None:
        """Read the plan soon: the pool's doorbell rang, so there may be a new one."""
        self._plan.due_at = -math.inf
        self.wake.set()

    def poll_soon(self) -> None:
        """Poll soon: an owner's record may have changed, or room became free."""
        self._read_at.clear()
        self.wake.set()

    async def run(self) -> None:
        """Poll what is due, for ever."""
        while True:
            self.wake.clear()
            with self.member.problems.tolerated("read its placements"):
                await self.poll()
            await is_set_within(self.wake, self._pause())

    async def poll(self) -> None:
        """Read the plan, and the owners' records that are due, and do what they say."""
        if self._core.clock.boottime() >= self._plan.due_at:
            self._followed.update(await self._plan.read())
        now = self._core.clock.boottime()
        due = [key for key in sorted(self._followed) if self._due_at(key) <= now]
        problems: dict[str, str] = {}
        await map_noting_problems(due, self._poll_owner, problems)
        for key, problem in problems.items():
            self.member.problems.warnings.warn("%s cannot be followed: %s", key, problem)

    def _pause(self) -> float:
        """Seconds until something is due, with jitter, so that members do not poll in step."""
        wait = min([self._plan.due_at, *map(self._due_at, self._followed)]) - self._core.clock.boottime()
        return self._core.jittered(max(wait, self._core.settings.poll_interval / 10))

    def _due_at(self, key: str) -> float:
        """Boot time at which this owner's record is to be read again."""
        held, poll = self._held(key), self._core.settings.poll_interval
        waits = held is not None and held.phase != HoldingPhase.REFUSED and not held.at_work and not is_open(held)
        members = len(held.owner.placement.members) if held is not None else 0
        interval = paced_interval(poll if waits else RUNNING_POLLS * poll, members, READS_PER_SECOND)
        return self._read_at.get(key, -math.inf) + interval

    async def _poll_owner(self, key: str) -> None:
        """Read one owner's record and do what it says; if it cannot be read, change nothing."""
        held = self._held(key)
        self._read_at[key] = self._core.clock.boottime()
        try:
            found = await self._read(key, held)
            if self._held(key) is not held:
                return
            await self._follow(found, held)
        except (StoreError, BadRecord) as error:
            self.member.problems.warnings.warn("%s cannot be followed: %s", key, error)
            return
        owner_phase = phase_of_owner(found.record if found is not None else None)
        if self._held(key) is None and owner_phase is not OwnerPhase.FORMING:
            self._followed.discard(key)
            self._read_at.pop(key, None)

    async def _follow(self, found: StoredOwner | None, held: HeldPlacement | None) -> None:
        record = found.record if found is not None else held.record.record if held is not None else None
        if isinstance(record, ReservationRecord) and (found is None or record.state != ReservationState.FORMING):
            await self.rooms.follow(cast("Stored[ReservationRecord] | None", found), held)
        else:
            await self.voting.follow(found, held)

    def _held(self, key: str) -> HeldPlacement | None:
        """The agent's holding of the owner whose record has this key."""
        return next((held for held in self.member.leases.placements.values() if held.owner.key == key), None)

    async def _read(self, key: str, held: HeldPlacement | None) -> StoredOwner | None:
        records = self._core.records
        if JobKeys.parse(key) is not None:
            if held is not None:
                return await records.reread(cast("Stored[JobRecord]", held.record), one_of_many=True)
            return await records.read(key, JobRecord, one_of_many=True)
        if held is not None:
            return await records.reread(cast("Stored[ReservationRecord]", held.record), one_of_many=True)
        return await records.read(key, ReservationRecord, one_of_many=True)


@dataclass(slots=True)
class PlacementLoop:
    """Everything that one agent does about gangs and reservations.

    Attributes:
        member: the agent's membership.
        gangs: runs replicas.
        freed: called when room became free.
        notify_pass: makes the agent that runs the pass read the members of gangs.
        spawn: runs a coroutine in the background.
        on_fatal_error: called with an error for which the agent must exit.
        claim: tries to claim a job, to run it in the room of a reservation; whether it was claimed.
    """

    member: Membership
    gangs: GangRunner
    freed: Callable[[], None]
    notify_pass: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    on_fatal_error: Callable[[BaseException], None]
    claim: Callable[[PendingKey, HeldPlacement], Awaitable[bool]]
    _voting: Voting = field(init=False)
    _watch: PlacementWatch = field(init=False)
    _private_pools: PrivatePools = field(init=False)

    def __post_init__(self) -> None:
        self._voting = Voting(self.member, self._start, self.freed)
        self._private_pools = PrivatePools(self.member, self.claim)
        rooms = ReservationRooms(self.member, self._voting.let_go, self._private_pools.wake.set)
        self._watch = PlacementWatch(self.member, self._voting, rooms)

    async def run(self) -> None:
        """Follow the records of owners, and claim jobs that wait in held reservations, for ever."""
        await run_until_first_ends(self._watch.run(), self._private_pools.run())

    def plan_rang(self) -> None:
        """Read the plan soon: the pool's doorbell rang, so there may be a new one."""
        self._watch.plan_rang()

    def poll_soon(self) -> None:
        """Poll soon: an owner's record may have changed, or room became free."""
        self._watch.poll_soon()
        self._private_pools.wake.set()

    def on_listed(self, holdings: Mapping[str, Holding]) -> None:
        """Tell the pass about new votes once a heartbeat that lists them is applied."""
        is_new = False
        for owner, holding in holdings.items():
            held = self.member.leases.placements.get(owner)
            is_vote = holding.phase == HoldingPhase.RESERVED and held is not None and holding.round == held.round
            if is_vote and held is not None and not held.vote_reported:
                held.vote_reported = is_new = True
        if is_new:
            self.notify_pass()

    def leave(self, longest_grace: float, at_once: bool) -> None:
        """End running replicas as preempted and withdraw votes, because the agent leaves.

        Args:
            longest_grace: most seconds that tasks get.
            at_once: they get none.
        """
        for held in self.member.leases.placements.values():
            if at_once:
                held.kill()
            elif held.at_work and held.owner.kind == GANG:
                self.spawn(self.gangs.leave(held, min(held.grace, longest_grace)))
        self.poll_soon()

    def _start(self, held: HeldPlacement) -> None:
        self.spawn(self._run(held))

    async def _run(self, held: HeldPlacement) -> None:
        job = cast(JobRecord, held.record.record)
        try:
            late = await self.gangs.run(held)
        except BaseException as error:  # the end is not written: the gang stays listed until its agent has ended
            self.on_fatal_error(error)
            return
        if held.abandoned:
            self.member.leases.changed.set()
        else:
            await self._voting.let_go(held)
            await self.gangs.store_late(job, late)
