"""An agent's part in placements: it follows the owners' records, votes, has gangs run, and leaves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fray_agents.agent.gang_runner import GangRunner
from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.loops import run_until_first_ends
from fray_agents.agent.membership import Membership
from fray_agents.agent.placement_watch import PlacementWatch
from fray_agents.agent.private_pools import PrivatePools
from fray_agents.agent.reservation_rooms import ReservationRooms
from fray_agents.agent.voting import Voting
from fray_coordinator.protocol.placements.owners import GANG
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import Holding, JobRecord
from fray_layouts.states import HoldingPhase


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
