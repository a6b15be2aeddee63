"""An agent's share in running the coordinator's pass: it runs the pass, or watches that some agent does."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fray_agents.agent.membership import Membership
from fray_agents.agent.problems import is_set_within
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.records import HintEndpoint

QUIET_POLLS = 10.0
"""Poll intervals between two reads of the placements' bell while the cluster is quiet."""

STANDBYS = 50
"""Average number of agents that watch whether the pass is run; the chance that no agent does is e to the -50."""


@dataclass(slots=True)
class ReconcilerLoop:
    """Takes part in the pass for one agent, and stores what the pass saw of the cluster in its membership.

    Attributes:
        send_hints: sends hints to these endpoints, so that the agents there read their placements.
        wake: set it to gather gangs now, if this agent runs the pass.
    """

    member: Membership
    send_hints: Callable[[Collection[HintEndpoint]], None] = lambda endpoints: None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _reconciler: Reconciler = field(init=False)
    _watches: bool = True
    _drawn_until: float = 0.0

    def __post_init__(self) -> None:
        endpoint = self.member.record.hint_endpoint
        self._reconciler = Reconciler(
            self.member.core,
            self.member.id,
            lambda: self.member.beat,
            endpoint,
            lambda endpoints: self.send_hints(endpoints),
        )

    async def run(self) -> None:
        """Try to run the pass whenever it may be due, for ever."""
        core = self.member.core
        try:
            while True:
                begun = core.clock.boottime()
                await self._try_pass()
                took = core.clock.boottime() - begun
                if self._takes_part():  # from start to start, so that the ages of silent agents add up
                    wait = max(core.jittered(self._looks_in()) - took, core.settings.poll_interval)
                else:
                    wait = core.jittered(core.settings.repair_interval)
                await self._gather(wait)
        finally:
            self._reconciler.stop()

    def notify_pass(self) -> None:
        """Make the agent that runs the pass read the members of gangs now, if this agent knows which it is."""
        if self._reconciler.holds_lease:
            self.wake.set()
        elif (lease := self._reconciler.lease) is not None and lease.record.hint_endpoint is not None:
            self.send_hints([lease.record.hint_endpoint])

    async def end_quiet(self) -> None:
        """Make passes frequent again, before this agent claims a job: if it died, that would be noticed late."""
        with self.member.problems.tolerated("wake the coordinator's pass"):
            await self._reconciler.end_quiet()
        if self._reconciler.holds_lease:
            self.wake.set()

    async def _try_pass(self) -> None:
        member, reconciler = self.member, self._reconciler
        with member.problems.tolerated("run the coordinator's pass"):
            if member.trusts() and not member.leaving:
                try:
                    await reconciler.try_pass()
                finally:  # what was read about the last pass counts even if this one failed
                    member.live_agents, member.is_quiet = reconciler.fleet(), reconciler.is_quiet
                    member.pool_slots = reconciler.pool_slots(member.record.pool)
            elif member.leaving and reconciler.holds_lease:
                await reconciler.resign()

    async def _gather(self, seconds: float) -> None:
        """Gather the members of gangs for so many seconds, until the next pass, if this agent runs it.

        While the cluster is quiet, it listens more rarely, and a ring or a hint makes the next pass due at once.
        """
        core = self.member.core
        until = core.clock.boottime() + seconds
        was_quiet = self._reconciler.is_quiet
        if not self._reconciler.holds_lease:
            await core.clock.sleep(seconds)
        while (rest := until - core.clock.boottime()) > 0:
            woken, rang = self.wake.is_set(), False
            self.wake.clear()
            with self.member.problems.tolerated("gather the members of gangs"):
                if self.member.trusts() and not self.member.leaving:
                    rang = await self._reconciler.schedule_placements(woken)
            if was_quiet and (woken or rang):
                return
            poll = core.settings.poll_interval * (QUIET_POLLS if was_quiet else 1.0)
            pause = min(core.jittered(poll), self._reconciler.placements_due_in())
            await is_set_within(self.wake, min(rest, pause))

    def _looks_in(self) -> float:
        """Seconds until this agent runs or watches the pass again.

        All watchers together look as often as ever, so that one of them soon sees it when the holder becomes busy.
        """
        reconciler, often = self._reconciler, self.member.core.settings.pass_interval
        watchers = max(self.member.live_agents - 1, 1)
        return reconciler.pass_due_in if reconciler.holds_lease else min(reconciler.pass_due_in, often * watchers)

    def _takes_part(self) -> bool:
        """Whether this agent runs the pass or watches it; in a large fleet a few agents do, for a while each."""
        core, live = self.member.core, self.member.live_agents
        now = core.clock.boottime()
        if now >= self._drawn_until:
            self._drawn_until = now + core.jittered(core.settings.repair_interval)
            self._watches = live <= STANDBYS or core.rng.random() * live < STANDBYS
        return self._watches or self._reconciler.holds_lease
