"""Holds and backfill in ticks: one gang, a few hosts with room for one task each, and an adversary.

The adversary tries to starve the gang. It submits single jobs of any length up to the longest, at any time, and decides
which agent claims which and how late each agent learns of the gang's members. The pass, the votes, the kept room and
the allowed claims are decided by the functions of the coordinator and the agents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from msgspec.structs import replace as changed

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.protocol.claiming import Skip, claim
from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.hosts import host_view
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.placements.rounds import next_round
from fray_coordinator.protocol.placements.votes import MemberAction, Voter, member_action, phase_of_owner
from fray_coordinator.protocol.scheduling import HostKind, entry_of, shortage
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_coordinator.store.records import Stored
from fray_layouts.records import AgentRecord, Holding, JobLease, JobRecord, Placement, PlacementMember, Resources
from fray_layouts.spec import EntrypointSpec, JobSpec

NOW, TICK = 1000.0, 10.0
"""The storage's time of every tick: times in a state are told from it. And seconds of a tick."""

HOST = Resources(cpu=1000, memory=2**30, disk=2**30)
VOTED, IDLE = -1, 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a world. Each can be turned off.

    Attributes:
        hold: an agent keeps room that becomes free for the gang that it is assigned to.
        fixed_window: the time until which others may use that room is fixed once, not counted from now.
        few_moves: members are exchanged for a better set only a few times.
    """

    hold: bool = True
    fixed_window: bool = True
    few_moves: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tick of a gang that waits.

    Attributes:
        hosts: of each, the ticks that its single job still runs; `IDLE`; `VOTED` for the gang.
        heard: which have read that they are members.
        members: numbers of the hosts that the gang is assigned.
        until: ticks from now until which others may use their room; None: they may not.
        moves: how often the members were exchanged for a better set.
        age: ticks since the members were assigned, as far as it matters.
    """

    hosts: tuple[int, ...]
    heard: tuple[bool, ...]
    members: tuple[int, ...] = ()
    until: int | None = None
    moves: int = 0
    age: int = 0


@dataclass(frozen=True)
class HoldWorld:
    """The moves of a world.

    Attributes:
        agents, need: hosts, and replicas of the gang.
        longest: ticks of the longest single job.
        deaf: ticks after which every agent has heard at the latest.
        known: single jobs have time-outs, so it is known when a host is free.
    """

    agents: int
    need: int
    longest: int
    deaf: int
    known: bool = True
    rules: Rules = field(default_factory=Rules)

    def starts(self) -> Iterator[tuple[str, int, Waiting]]:
        """Every state in which the gang becomes the first that waits."""
        for hosts in product(range(self.longest + 1), repeat=self.agents):
            yield f"at first {hosts}", 0, Waiting(hosts, (False,) * self.agents)

    def steps(self, state: Waiting) -> Iterator[tuple[str, int, Waiting]]:
        """A pass, then all actions of the agents and the submitter in one tick."""
        now = self._passed(state)
        for heard in product(*(self._hears(now, number) for number in range(self.agents))):
            acts = [self._acts(now, number, hears) for number, hears in enumerate(heard)]
            for hosts in product(*acts):
                if now.members and all(hosts[number] == VOTED for number in now.members):
                    yield "it forms", 0, FORMED
                    continue
                left = tuple(max(host - 1, IDLE) if host > IDLE else host for host in hosts)
                until = max(now.until - 1, 0) if now.until is not None else None
                yield str(hosts), 1, replace(now, hosts=left, heard=heard, until=until, age=min(now.age + 1, self.deaf))

    def _hears(self, state: Waiting, number: int) -> tuple[bool, ...]:
        if number not in state.members or state.heard[number]:
            return (state.heard[number],)
        return (True,) if state.age >= self.deaf else (False, True)

    def _passed(self, state: Waiting) -> Waiting:
        """The state after a look of the pass at all of it."""
        gang = self._gang(state)
        owner = owner_of_job(gang)
        views = [host_view(self._agent(state, number, gang), {owner.id: owner}) for number in range(self.agents)]
        found = assign(views, [owner])[owner.id]
        assert gang.placement is not None
        placement = next_round(gang.placement, gang.placement, found, NOW)
        if placement is None:
            return state if self.rules.fixed_window else replace(state, until=self.longest)
        members = tuple(int(member.agent) for member in placement.members)
        until = round((placement.until - NOW) / TICK) if placement.until is not None else None
        hosts = tuple(IDLE if host == VOTED and n not in members else host for n, host in enumerate(state.hosts))
        heard = tuple(heard and number in members for number, heard in enumerate(state.heard))
        return Waiting(hosts, heard, members, until if self.rules.fixed_window else self.longest, placement.moves)

    def _acts(self, state: Waiting, number: int, hears: bool) -> list[int]:
        """What a host may come to do: what it does already, a vote, or a single job of any length that it may claim."""
        if state.hosts[number] != IDLE:
            return [state.hosts[number]]
        votes = hears and self._votes(state, number)
        idle = [VOTED] if votes else [IDLE]
        return idle + [ticks for ticks in range(1, self.longest + 1) if self._claims(state, hears, ticks)]

    def _votes(self, state: Waiting, number: int) -> bool:
        gang = self._gang(state)
        return member_action(Voter(str(number)), owner_of_job(gang), phase_of_owner(gang), None) is MemberAction.TAKE

    def _claims(self, state: Waiting, hears: bool, ticks: int) -> bool:
        """Whether an idle agent may claim a single job of so many ticks that comes after the gang."""
        spec = JobSpec(name="s", entrypoint=EntrypointSpec(command=["x"]), timeout=ticks * TICK, grace=0.0)
        job = JobRecord(id="s", spec=spec, status="pending", submitted_at=NOW)
        leases = Leases(HOST)
        if hears and self.rules.hold:
            owner = owner_of_job(self._gang(state))
            bundle = HeldBundle(number=0, wants=owner.parts[0].shape)
            leases.add_placement(HeldPlacement(owner, Stored(owner.key, self._gang(state), {}, "1", NOW), (bundle,)))
        shape = entry_of(job).shape
        if not shortage(shape, leases.unreserved(entry=entry_of(job)), HostKind()):
            return True
        if state.until is None:
            return False
        lease = JobLease(agent="a", host="h", since=NOW)
        return not isinstance(claim(job, 1, lease, ChildVerdict.KEEP, ends_before=NOW + state.until * TICK), Skip)

    def _gang(self, state: Waiting) -> JobRecord:
        members = [PlacementMember(agent=str(n), bundles=[place]) for place, n in enumerate(state.members)]
        until = NOW + state.until * TICK if state.until is not None else None
        moves = state.moves if self.rules.few_moves else 0
        placement = Placement(round=1, members=members, until=until, moves=moves)
        return changed(self._waiting_gang, placement=placement)

    @cached_property
    def _waiting_gang(self) -> JobRecord:
        spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["x"]), replicas=self.need)
        return JobRecord(id="g", spec=spec, status="gathering", submitted_at=NOW - 500.0)

    def _agent(self, state: Waiting, number: int, gang: JobRecord) -> AgentRecord:
        """The agent's record, as its last heartbeat tells it."""
        host, holdings = state.hosts[number], {}
        if host == VOTED:
            bundles = [state.members.index(number)]
            holdings = {gang.id: Holding(attempt=1, phase="reserved", round=1, bundles=bundles)}
        elif host != IDLE:
            holdings = {"s": Holding(attempt=1, phase="running", ends_by=NOW + host * TICK if self.known else None)}
        free = HOST if host == IDLE else changed(HOST, cpu=0)
        record = AgentRecord(
            id=str(number), host="h", pool="default", capacity=HOST, free=free, supports_placements=True
        )
        return changed(record, holdings=holdings)


FORMED = Waiting((), ())
"""All members have voted: nothing can keep it from its start."""
