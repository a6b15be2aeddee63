"""The scheduler of placements: gathers the members of gangs and reservations, and starts them.

The holder of the reconciler's lease runs it. It assigns free hosts to the owners in their order, tells the agents, and
starts an owner once all members have voted. All its state is in the bucket, so it may stop at any point and another
process continues from the records. Two schedulers at once do no harm.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from fray_coordinator.concurrency import decide_each
from fray_coordinator.core import Core
from fray_coordinator.placements.family_turns import FamilyTurns
from fray_coordinator.placements.pool_plans import PoolPlans
from fray_coordinator.placements.reservations import HeldReservations
from fray_coordinator.placements.start_gate import StartGate
from fray_coordinator.placements.tables import AgentTable, OwnerTable, as_gang
from fray_coordinator.protocol.claiming import back_off_until
from fray_coordinator.protocol.placements.assignment import Assignment, assign
from fray_coordinator.protocol.placements.families import families_first
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
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, Placement, Suspect

HINTED_READS_A_SECOND = 200.0
"""Reads of members per second that hints may cause for one owner that cannot start yet. Each of a thousand members
sends a hint with its vote, perhaps minutes before the last one can vote."""


@dataclass(slots=True)
class PlacementScheduler:
    """Advances owners step by step.

    Args:
        seen: by id, the agents that have not ended, from the last read of all of them.
        suspects: by id, the agents whose heartbeat is overdue.
        send_hints: sends hints to these endpoints, so that the agents there read their placements; returns at once.
    """

    core: Core
    seen: Callable[[], Mapping[str, Stored[AgentRecord]]]
    suspects: Callable[[], Mapping[str, Suspect]]
    send_hints: Callable[[Collection[HintEndpoint]], None] = lambda endpoints: None
    _owners: OwnerTable = field(init=False)
    _agents: AgentTable = field(init=False)
    _gate: StartGate = field(init=False)
    _plans: PoolPlans = field(init=False)
    _held: HeldReservations = field(init=False)
    _turns: FamilyTurns = field(init=False)
    _startable: set[str] = field(default_factory=set)
    _since: dict[tuple[str, int, bool], float] = field(default_factory=dict)
    _hinted: bool = False
    _read_at: dict[str, float] = field(default_factory=dict)
    _last: tuple[list[HostView], list[Owner], dict[str, Assignment], dict[str, str]] = ([], [], {}, {})
    _views: dict[str, tuple[AgentRecord, tuple[object, ...], HostView]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = OwnerTable(self.core)
        self._agents = AgentTable(self.core, self.seen, self.suspects)
        self._held = HeldReservations(self.core, self._owners)
        self._gate = StartGate(self.core, self._owners, self._agents, self._held)
        self._plans = PoolPlans(self.core)
        self._turns = FamilyTurns(self.core, self._owners)

    @property
    def problems(self) -> dict[str, str]:
        """By key, the errors of the last step."""
        return self._owners.problems | self._agents.problems

    def due_in(self) -> float:
        """Seconds until the back-off of the next failed gang is over, so that it may be given members again."""
        now = self.core.now()
        gangs = [gang.record for stored in self._owners.forming() if (gang := as_gang(stored)) is not None]
        waits = (back_off_until(gang, now) - now for gang in gangs)
        return min((wait for wait in waits if wait > 0.0), default=float("inf"))

    @property
    def has_owners(self) -> bool:
        """Whether there are gangs or reservations that have not ended."""
        return bool(self._owners.known)

    async def step(self, woken: bool = False) -> bool:
        """Read the owners; start those that may start, and assign members to those that wait.

        woken: a hint has arrived, so members are read even if their owner waits for something else.

        Returns whether the bell has rung.
        """
        running = self._owners.running()
        rung = await self._owners.refresh()
        for stored in running:
            if self._owners.has_moved_on(stored):
                self._hint_members_in(stored)
        if held_are_due := self._held.due() or (rung and self._held.any()):
            await self._held.end_due(self._agents.records())
        if not self._owners.forming() and not held_are_due:
            self._agents.forget_all_but(())
            return self._owners.rang
        self._gate.forget_all_but({owner_of(stored.record).id for stored in self._owners.forming()})
        await self._gate.end_overdue()
        read = await self._read_members(woken)

        async def start(stored: Stored[OwnerRecord]) -> None:
            if await self._gate.try_start(stored, read):
                self._hint_members(stored)

        await self._owners.each_forming(start)
        await self._assign()
        return self._owners.rang

    async def _read_members(self, woken: bool) -> set[str]:
        """Read the members, without a known vote, of the owners that can start now; returns these members.

        After a hint, the members of all owners are read, but at a bounded rate per owner; a hint is kept until then.
        A member that the pass does not know, or knows no more, is read too: it may have died since it was last read.
        """
        owners = [owner_of(stored.record) for stored in self._owners.forming()]
        self._agents.forget_all_but({member.agent for owner in owners for member in owner.placement.members})
        agents, now = self._agents.records(), self.core.clock.boottime()
        hinted, self._hinted = woken or self._hinted, False
        wanted: set[str] = set()
        read_at, self._read_at = self._read_at, {}

        def choose(owner: Owner) -> None:
            missing = missing_votes(owner, agents)
            pause = 0.0 if owner.id in self._startable else len(missing) / HINTED_READS_A_SECOND
            last = self._read_at[owner.id] = read_at.get(owner.id, float("-inf"))
            if owner.id in self._startable or (hinted and now - last >= pause):
                wanted.update(missing)
                self._read_at[owner.id] = now
            else:
                self._hinted |= hinted

        decide_each(owners, choose, self._owners.problems, lambda owner: owner.key)
        wanted |= self._agents.unobserved()
        await self._agents.read(wanted)
        return wanted

    async def _assign(self) -> None:
        """Assign free hosts to the forming owners, in their order."""
        forming = self._owners.forming()
        agents, silent, owners = self._agents.records(), self._agents.silent(), self._owners.owners()
        by_agent = self._hosts(agents, owners, silent)
        hosts = [*by_agent.values(), *self._held.views(by_agent, agents)]

        def to_serve(stored: Stored[OwnerRecord]) -> Owner:
            owner = owners[owner_of(stored.record).id]
            return replace(owner, placement=self._without_refused(owner, agents, hosts), stays=self._stays(stored))

        served = decide_each(forming, to_serve, self._owners.problems, lambda stored: stored.key)
        owners |= {owner.id: owner for owner in served}
        waiting = {owner_of(stored.record).id for stored in forming if self._is_due(stored)}
        self._since = {key: at for key, at in self._since.items() if key[0] in owners}
        divided = self._held.divided({o.id: o for o in owners.values() if not o.forming or o.id in waiting}, agents)
        found = await self._assigned(hosts, list(divided.values())) | dict.fromkeys(self._gate.set_aside, Assignment())
        now = self.core.now()
        free_now = {o for o, given in found.items() if given.members and given.until is not None and given.until <= now}
        self._startable = {o for o in free_now if not (o in owners and families_first(owners[o].placement))}
        changed: list[Stored[OwnerRecord]] = []

        async def write(stored: Stored[OwnerRecord]) -> None:
            given = found.get(owner_of(stored.record).id)
            if given is not None and await self._write(stored, owners, given):
                changed.append(stored)
                self._plans.note_change(self._pools_of([stored], agents))
            elif owner_of(stored.record).id in self._gate.set_aside:
                self._hint_members_in(stored)  # of the record before: they free its room

        await self._owners.each_forming(write)
        held = await self._held.write(divided, found)
        self._plans.note_change(self._pools_of(held, agents))
        changed += held
        just_written = {owner_of(each.record).id for each in changed}
        changed += await self._turns.write((agents, hosts, divided, found), just_written)
        await self._plans.publish(self._wanted_plans(agents), self._owners.problems)
        for stored in changed:
            self._hint_members(stored)

    async def _assigned(self, hosts: list[HostView], owners: list[Owner]) -> dict[str, Assignment]:
        """The assignment of each owner, computed again only if anything has changed since the last step."""
        if self._last[:2] != (hosts, owners):
            problems: dict[str, str] = {}
            # slow with 10,000 hosts; heartbeats must go on
            found = await asyncio.to_thread(assign, hosts, owners, problems)
            self._last = hosts, owners, found, problems
        self._owners.problems |= self._last[3]
        return self._last[2]

    def _hosts(
        self, agents: Mapping[str, AgentRecord], owners: Mapping[str, Owner], silent: Collection[str]
    ) -> dict[str, HostView]:
        """By agent, the views of the hosts; a view is computed again only if something about the host has changed."""
        views, self._views = self._views, {}

        def view(agent: AgentRecord) -> HostView:
            known = views.get(agent.id)
            judged = agent.id in silent, *((o, owners[o].attempt) for o in agent.holdings if o in owners)
            if known is None or known[0] is not agent or known[1] != judged:
                known = agent, judged, host_view(agent, owners, agent.id in silent)
            self._views[agent.id] = known
            return known[2]

        found = decide_each(agents.values(), view, self._agents.problems, lambda agent: AgentKeys.key(agent.id))
        return {host.agent: host for host in found}

    def _is_due(self, stored: Stored[OwnerRecord]) -> bool:
        """Whether the owner may be given members now: it is not set aside, and no back-off after a failure goes on."""
        if owner_of(stored.record).id in self._gate.set_aside:
            return False
        gang = as_gang(stored)
        now = self.core.now()
        return gang is None or now >= back_off_until(gang.record, now)

    def _stays(self, stored: Stored[OwnerRecord]) -> bool:
        """Whether a gang should stay where it was: its start waits in any case for what still runs there."""
        gang = as_gang(stored)
        return gang is not None and waits_for_lingering(gang.record, self.core.now(), self.core.settings)

    def _without_refused(self, owner: Owner, agents: Mapping[str, AgentRecord], hosts: Iterable[HostView]) -> Placement:
        """The placement without agents that refused the owner; after a long time without others, tries all again."""
        now = self.core.clock.boottime()
        first = bool(families_first(owner.placement))  # nobody votes then, so members have not been slow
        since = self._since.setdefault((owner.id, owner.placement.round, first), now)
        if first:
            return without(owner, refusals(owner, agents))
        if now - since < SILENT_ROUND_REPAIRS * self.core.settings.repair_interval:
            return without(owner, refusals(owner, agents))
        if not owner.placement.members:
            return msgspec.structs.replace(owner.placement, refused=[])
        return without(owner, [*refusals(owner, agents), *self._slow(owner, agents, hosts)])

    def _slow(self, owner: Owner, agents: Mapping[str, AgentRecord], hosts: Iterable[HostView]) -> list[str]:
        """The members that have room for the owner, by their records, and have not voted."""
        missing = set(missing_votes(owner, agents))
        asked = [host for host in hosts if host.agent in missing and host.pool == owner.pool]
        return [host.agent for host in asked if has_room(host, owner, agents[host.agent], owner.bundles_of(host.agent))]

    async def _write(self, stored: Stored[OwnerRecord], owners: Mapping[str, Owner], given: Assignment) -> bool:
        """Write an owner's assignment if it differs from the present members; returns whether it has new members."""
        owner = owner_of(stored.record)
        placement = next_round(owners[owner.id].placement, owner.placement, given, self.core.now())
        if placement is None:
            return False
        wanted = placed(stored.record, placement)
        written = await self.core.records.write(stored.key, type(stored.record), wanted, stored, one_of_many=True)
        self._owners.keep(stored.key, written.stored)
        return written.wrote and bool(placement.members)

    def _wanted_plans(self, agents: Mapping[str, AgentRecord]) -> dict[str, dict[str, list[str]]]:
        """By pool and agent, the keys of the owners whose bundles the agent is to reserve."""
        plans: dict[str, dict[str, list[str]]] = {}

        def add(owner: Owner) -> None:
            for member in owner.placement.members:
                agent = agents.get(member.agent)
                if agent is not None and (owner.forming or self._held.has_missing_bundles(owner, member, agent)):
                    plans.setdefault(agent.pool, {}).setdefault(agent.id, []).append(owner.key)

        decide_each(self._owners.owners().values(), add, self._owners.problems, lambda owner: owner.key)
        return plans

    def _pools_of(self, changed: Iterable[Stored[OwnerRecord]], agents: Mapping[str, AgentRecord]) -> set[str]:
        """The pools of these owners' present members."""
        owners = (owner_of(self._owners.known.get(stored.key, stored).record) for stored in changed)
        members = (agents.get(member.agent) for owner in owners for member in owner.placement.members)
        return {agent.pool for agent in members if agent is not None}

    def _hint_members(self, stored: Stored[OwnerRecord]) -> None:
        """Make the owner's present members read its record."""
        self._hint_members_in(self._owners.known.get(stored.key, stored))

    def _hint_members_in(self, stored: Stored[OwnerRecord]) -> None:
        """Make the members in this earlier record of an owner read the present one."""
        agents = self._agents.records()
        members = (agents.get(member.agent) for member in owner_of(stored.record).placement.members)
        self.send_hints([m.hint_endpoint for m in members if m is not None and m.hint_endpoint is not None])
