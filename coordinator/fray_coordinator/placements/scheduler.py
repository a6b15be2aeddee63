"""Gathers the members of gangs and reservations, and starts them: the part of the pass that the lease's holder runs.

It assigns what is free to the owners in their order, tells the agents, and starts who has all votes. It keeps nothing
that the bucket does not have, and may stop at any point: another goes on from the records. Two at once do no harm.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from fray_coordinator.core import Core
from fray_coordinator.placements.agent_table import AgentTable
from fray_coordinator.placements.held_reservations import HeldReservations
from fray_coordinator.placements.owner_table import OwnerTable, as_gang
from fray_coordinator.placements.pool_plans import PoolPlans
from fray_coordinator.placements.start_gate import StartGate
from fray_coordinator.protocol.placements.assignment import Assignment, assign
from fray_coordinator.protocol.placements.hosts import HostView, has_room, host_view
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.placements.rounds import (
    SILENT_ROUND_REPAIRS,
    OwnerRecord,
    missing_votes,
    next_round,
    owner_of,
    placed,
    refusals,
    waits_for_lingering,
    without,
)
from fray_coordinator.store.records import Stored
from fray_layouts.records import AgentRecord, HintEndpoint, Placement, Suspect

HINTED_READS_A_SECOND = 200.0
"""Reads of members that hints lead to for one owner which others still keep from starting: each of a thousand members
tells of its vote, and may do so minutes before the last one can."""


@dataclass(slots=True)
class PlacementScheduler:
    """Brings owners forward, a step at a time.

    Args:
        seen: the agents that have not ended, by id, as the last look at all of them saw them.
        suspects: those that owe a heartbeat, by id.
        poke: has agents at these addresses look at once; returns at once.
    """

    core: Core
    seen: Callable[[], Mapping[str, Stored[AgentRecord]]]
    suspects: Callable[[], Mapping[str, Suspect]]
    poke: Callable[[Collection[HintEndpoint]], None] = lambda endpoints: None
    _owners: OwnerTable = field(init=False)
    _agents: AgentTable = field(init=False)
    _gate: StartGate = field(init=False)
    _plans: PoolPlans = field(init=False)
    _held: HeldReservations = field(init=False)
    _soon: set[str] = field(default_factory=set)
    _since: dict[tuple[str, int], float] = field(default_factory=dict)
    _hinted: bool = False
    _read_at: dict[str, float] = field(default_factory=dict)
    _last: tuple[list[HostView], list[Owner], dict[str, Assignment]] = ([], [], {})
    _views: dict[str, tuple[AgentRecord, tuple[object, ...], HostView]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = OwnerTable(self.core)
        self._agents = AgentTable(self.core, self.seen, self.suspects)
        self._held = HeldReservations(self.core, self._owners)
        self._gate = StartGate(self.core, self._owners, self._agents, self._held)
        self._plans = PoolPlans(self.core)

    @property
    def problems(self) -> dict[str, str]:
        """What went wrong in the last step, by key."""
        return self._owners.problems | self._agents.problems

    def due_in(self) -> float:
        """Seconds until the next gang may be given members again that waits after its last attempt."""
        gangs = [gang.record for stored in self._owners.forming() if (gang := as_gang(stored)) is not None]
        waits = (gang.not_before - self.core.now() for gang in gangs)
        return min((wait for wait in waits if wait > 0.0), default=float("inf"))

    async def step(self, woken: bool = False) -> None:
        """Look at the owners; start those that may start, and assign members to those that wait.

        woken: somebody said that there is something to see: members are read whatever they wait for.
        """
        running = self._owners.running()
        rung = await self._owners.refresh()
        for stored in running:
            if self._owners.has_moved_on(stored):
                self._poke(stored)
        if look_at_held := self._held.due() or (rung and self._held.any()):
            await self._held.look(self._agents.records())
        if not self._owners.forming() and not look_at_held:
            self._agents.forget_all_but(())
            return
        await self._gate.end_overdue()
        read = await self._read_members(woken)

        async def start(stored: Stored[OwnerRecord]) -> None:
            if await self._gate.try_start(stored, read):
                self._poke_members(stored)

        await self._owners.each_forming(start)
        await self._assign()

    async def _read_members(self, woken: bool) -> set[str]:
        """Read the members that have not voted, as far as is known, of the owners that can start now; returns them.

        After a hint those of all owners, but for none of them too many a second: what was told is not forgotten.
        """
        owners = [owner_of(stored.record) for stored in self._owners.forming()]
        self._agents.forget_all_but({member.agent for owner in owners for member in owner.placement.members})
        agents, now = self._agents.records(), self.core.clock.boottime()
        hinted, self._hinted = woken or self._hinted, False
        wanted: set[str] = set()
        read_at, self._read_at = self._read_at, {}
        for owner in owners:
            missing = missing_votes(owner, agents)
            pause = 0.0 if owner.id in self._soon else len(missing) / HINTED_READS_A_SECOND
            last = self._read_at[owner.id] = read_at.get(owner.id, float("-inf"))
            if owner.id in self._soon or (hinted and now - last >= pause):
                wanted.update(missing)
                self._read_at[owner.id] = now
            else:
                self._hinted |= hinted
        await self._agents.read(wanted)
        return wanted

    async def _assign(self) -> None:
        """Give the owners that form what is free, in their order."""
        forming = self._owners.forming()
        agents, silent, owners = self._agents.records(), self._agents.silent(), self._owners.owners()
        by_agent = self._hosts(agents, owners, silent)
        hosts = [*by_agent.values(), *self._held.views(by_agent, agents)]
        for stored in forming:
            owner = owners[owner_of(stored.record).id]
            placement, stays = self._without_refused(owner, agents, hosts), self._stays(stored)
            owners[owner.id] = replace(owner, placement=placement, stays=stays)
        waiting = {owner_of(stored.record).id for stored in forming if self._is_due(stored)}
        self._since = {key: at for key, at in self._since.items() if key[0] in owners}
        divided = self._held.divided({o.id: o for o in owners.values() if not o.forming or o.id in waiting}, agents)
        found = await self._assigned(hosts, list(divided.values()))
        now = self.core.now()
        self._soon = {
            o for o, given in found.items() if given.members and (given.until is not None and given.until <= now)
        }
        changed: list[Stored[OwnerRecord]] = []

        async def write(stored: Stored[OwnerRecord]) -> None:
            given = found.get(owner_of(stored.record).id)
            if given is not None and await self._write(stored, owners, given):
                changed.append(stored)
                self._plans.renew(self._pools_of([stored], agents))

        await self._owners.each_forming(write)
        held = await self._held.write(divided, found)
        self._plans.renew(self._pools_of(held, agents))
        changed += held
        await self._plans.tell(self._wanted_plans(agents))
        for stored in changed:
            self._poke_members(stored)

    async def _assigned(self, hosts: list[HostView], owners: list[Owner]) -> dict[str, Assignment]:
        """What each owner is to have, found anew if anything has changed since the last step."""
        if self._last[:2] != (hosts, owners):
            found = await asyncio.to_thread(assign, hosts, owners)  # takes a while among 10,000 hosts; heartbeats go on
            self._last = hosts, owners, found
        return self._last[2]

    def _hosts(
        self, agents: Mapping[str, AgentRecord], owners: Mapping[str, Owner], silent: Collection[str]
    ) -> dict[str, HostView]:
        """The agents' hosts by agent, each looked at anew if something about it has changed."""
        views, self._views = self._views, {}
        for agent in agents.values():
            known = views.get(agent.id)
            judged = agent.id in silent, *((o, owners[o].attempt) for o in agent.holdings if o in owners)
            if known is None or known[0] is not agent or known[1] != judged:
                known = agent, judged, host_view(agent, owners, agent.id in silent)
            self._views[agent.id] = known
        return {agent: view for agent, (_, _, view) in self._views.items()}

    def _is_due(self, stored: Stored[OwnerRecord]) -> bool:
        """Whether it may be given members: a gang that failed waits for a while."""
        gang = as_gang(stored)
        return gang is None or self.core.now() >= gang.record.not_before

    def _stays(self, stored: Stored[OwnerRecord]) -> bool:
        """Whether it goes on where it was, if it can: until then it waits for what is left there in any case."""
        gang = as_gang(stored)
        return gang is not None and waits_for_lingering(gang.record, self.core.now(), self.core.settings)

    def _without_refused(self, owner: Owner, agents: Mapping[str, AgentRecord], hosts: Iterable[HostView]) -> Placement:
        """The owner's placement with those that are left out; when nobody was left for long, they are asked again."""
        now = self.core.clock.boottime()
        since = self._since.setdefault((owner.id, owner.placement.round), now)
        if now - since < SILENT_ROUND_REPAIRS * self.core.settings.repair_interval:
            return without(owner, refusals(owner, agents))
        if not owner.placement.members:
            return msgspec.structs.replace(owner.placement, refused=[])
        return without(owner, [*refusals(owner, agents), *self._slow(owner, agents, hosts)])

    def _slow(self, owner: Owner, agents: Mapping[str, AgentRecord], hosts: Iterable[HostView]) -> list[str]:
        """The members that show room for the owner and have not voted."""
        missing = set(missing_votes(owner, agents))
        asked = [host for host in hosts if host.agent in missing and host.pool == owner.pool]
        return [host.agent for host in asked if has_room(host, owner, agents[host.agent])]

    async def _write(self, stored: Stored[OwnerRecord], owners: Mapping[str, Owner], given: Assignment) -> bool:
        """Write the members that an owner was given, if they are others than it has; whether it has new ones."""
        owner = owner_of(stored.record)
        placement = next_round(owners[owner.id].placement, owner.placement, given, self.core.now())
        if placement is None:
            return False
        wanted = placed(stored.record, placement)
        written = await self.core.records.write(stored.key, type(stored.record), wanted, stored, one_of_many=True)
        self._owners.keep(stored.key, written.stored)
        return written.wrote and bool(placement.members)

    def _wanted_plans(self, agents: Mapping[str, AgentRecord]) -> dict[str, dict[str, list[str]]]:
        """By pool of agents and agent, the keys of the owners whose bundles it is to reserve."""
        plans: dict[str, dict[str, list[str]]] = {}
        for owner in self._owners.owners().values():
            for member in owner.placement.members:
                agent = agents.get(member.agent)
                if agent is not None and (owner.forming or self._held.is_news(owner, member, agent)):
                    plans.setdefault(agent.pool, {}).setdefault(agent.id, []).append(owner.key)
        return plans

    def _pools_of(self, changed: Iterable[Stored[OwnerRecord]], agents: Mapping[str, AgentRecord]) -> set[str]:
        """The pools of the members that these owners have by now."""
        owners = (owner_of(self._owners.known.get(stored.key, stored).record) for stored in changed)
        members = (agents.get(member.agent) for owner in owners for member in owner.placement.members)
        return {agent.pool for agent in members if agent is not None}

    def _poke_members(self, stored: Stored[OwnerRecord]) -> None:
        """Have the members that an owner has by now look at its record."""
        self._poke(self._owners.known.get(stored.key, stored))

    def _poke(self, stored: Stored[OwnerRecord]) -> None:
        """Have the members in this record of an owner look at the present one."""
        agents = self._agents.records()
        members = (agents.get(member.agent) for member in owner_of(stored.record).placement.members)
        self.poke([m.hint_endpoint for m in members if m is not None and m.hint_endpoint is not None])
