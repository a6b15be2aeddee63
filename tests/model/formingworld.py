"""A small world for gangs that form: two passes, agents of one core, gangs of as many bundles as `Scope.bundles`.

The decisions are `assign`, `next_round` and `missing_votes` for the pass, `member_action` and `withdrawn` for a member.
A vote carries the round of the record that was read; rounds only grow, so a vote is for the present one ("now") or for
an earlier one ("old"). A write that would be rejected is no longer on its way. Only agent 0 has faults; its heartbeats
may land late. A gang that is requeued is at its next attempt, and all its earlier votes are old.

An agent's ledger, and what its heartbeat lists: nothing, `SINGLE`, or what it has of a gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import NamedTuple

from msgspec.structs import replace as with_changes

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.hosts import host_view
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job
from fray_coordinator.protocol.placements.rounds import missing_votes, next_round
from fray_coordinator.protocol.placements.votes import MemberAction, OwnerPhase, Vote, Voter, member_action, withdrawn
from fray_layouts.records import AgentRecord, Holding, JobRecord, Placement, PlacementMember, Resources
from fray_layouts.spec import EntrypointSpec, JobSpec
from fray_layouts.states import HoldingPhase
from tests.model.explorer import Step

SINGLE = "a single"
CORE = Resources(cpu=1000)
NOW, OLD = (2, 2), (1, 1)
"""Attempt and round of a record, and of a vote for it; and those of a vote that is for an earlier one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time; the first comment of each is its number."""

    conditional: bool = True  # 1
    reserve_first: bool = True  # 2
    round_named: bool = True  # 3
    binding: bool = True  # 4
    withdraw: bool = True  # 5
    order: bool = True  # 9
    repair: bool = True  # 23


class Share(NamedTuple):
    """What an agent has of a gang. phase: "reserved" or "running"; now: of the record's present round."""

    gang: int
    phase: str
    now: bool = True


Use = Share | str | None


class Gang(NamedTuple):
    """A gang's record. status: gathering, running, ended. members: the agent of each bundle."""

    status: str = "gathering"
    members: tuple[int, ...] = ()


class Host(NamedTuple):
    """An agent. mode: up, frozen, leaving, gone. record: live, dead, left. beat: on its way, as (what it lists,)."""

    mode: str = "up"
    record: str = "live"
    ledger: Use = None
    listed: Use = None
    beat: tuple[Use] | None = None


class Write(NamedTuple):
    """A write of the pass on its way. kind: "assign" or "start"."""

    kind: str
    gang: int
    members: tuple[int, ...]


class Budget(NamedTuple):
    """How often each event may still happen."""

    crash: int = 0
    freeze: int = 0
    leave: int = 0
    stop: int = 0
    stale: int = 0
    lost: int = 0
    singles: int = 0
    faults: int = 0


class Forming(NamedTuple):
    """A state."""

    gangs: tuple[Gang, ...]
    hosts: tuple[Host, ...]
    writes: frozenset[Write]
    budget: Budget


@dataclass(frozen=True, slots=True)
class Scope:
    """The size of the world. late: whether agent 0's heartbeats may land late."""

    budget: Budget
    gangs: int = 2
    hosts: int = 3
    bundles: int = 2
    late: bool = False
    on_their_way: int = 2


class FormingWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules, self.scope = rules, scope
        self.start = Forming((Gang(),) * scope.gangs, (Host(),) * scope.hosts, frozenset(), scope.budget)

    def good(self, w: Forming) -> bool:
        """All gangs have ended, and all live agents are free."""
        over = all(gang.status == "ended" for gang in w.gangs)
        return over and all(h.mode == "gone" or (h.mode == "up" and h.ledger is None) for h in w.hosts)

    def broken(self, w: Forming) -> str:
        for number, gang in enumerate(w.gangs):
            for agent in gang.members if gang.status == "running" else ():
                host = w.hosts[agent]
                holds = isinstance(host.ledger, Share) and host.ledger.gang == number
                if host.record == "live" and host.mode != "gone" and not holds:
                    return "a gang runs of which a live member does not hold its bundle"
        return ""

    def steps(self, w: Forming) -> Iterator[Step[Forming]]:
        yield from self._passes(w)
        yield from self._writes(w)
        yield from self._gangs(w)
        for agent in range(len(w.hosts)):
            yield from self._fate(w, agent)
            if w.hosts[agent].mode in ("up", "leaving"):
                yield from self._agent(w, agent)

    # the passes

    def _passes(self, w: Forming) -> Iterator[Step[Forming]]:
        if len(w.writes) >= self.scope.on_their_way:
            return
        listed = tuple((h.record, h.mode == "leaving", h.listed) for h in w.hosts)
        for write in _wanted(w.gangs, listed, self.scope.bundles, self.rules.round_named, self.rules.order):
            if write not in w.writes:
                yield Step(f"the pass sends {write}", w._replace(writes=w.writes | {write}))
        if w.budget.stale and w.budget.faults:
            for number, gang in enumerate(w.gangs):
                yield from self._stale(w, number, gang)

    def _stale(self, w: Forming, number: int, gang: Gang) -> Iterator[Step[Forming]]:
        """A pass with an arbitrary old view gives the gang any hosts."""
        for members in _picks(self.scope.hosts, self.scope.bundles) if gang.status == "gathering" else ():
            write = Write("assign", number, members)
            if members != gang.members and write not in w.writes:
                after = w._replace(writes=w.writes | {write}, budget=_spent(w.budget, "stale"))
                yield Step(f"a stale pass sends {write}", after, fault=True)

    def _writes(self, w: Forming) -> Iterator[Step[Forming]]:
        for write in w.writes:
            if w.gangs[write.gang].status != "gathering":
                yield Step(f"{write} is rejected", w._replace(writes=w.writes - {write}))
            elif write.kind == "assign":
                yield Step(f"{write} lands", self._moved(w, write.gang, Gang("gathering", write.members), write))
            else:
                started = self._written(w, write.gang, Gang("running", write.members), write)
                yield Step(f"{write} lands", started)
            if w.budget.lost and w.budget.faults:
                after = w._replace(writes=w.writes - {write}, budget=_spent(w.budget, "lost"))
                yield Step(f"{write} is lost", after, fault=True)

    def _written(self, w: Forming, number: int, gang: Gang, own: Write | None = None) -> Forming:
        """After a write of the gang's record: whatever else is on its way for it will be rejected."""
        left = frozenset(x for x in w.writes if x != own and (x.gang != number or not self.rules.conditional))
        return w._replace(gangs=_put(w.gangs, number, gang), writes=left)

    def _moved(self, w: Forming, number: int, gang: Gang, own: Write | None = None) -> Forming:
        """After a write with another round: what was of the gang is old."""
        hosts = tuple(
            h._replace(
                ledger=_aged(h.ledger, number),
                listed=_aged(h.listed, number),
                beat=None if h.beat is None else (_aged(h.beat[0], number),),
            )
            for h in w.hosts
        )
        return self._written(w._replace(hosts=hosts), number, gang, own)

    # what happens to gangs and agents

    def _gangs(self, w: Forming) -> Iterator[Step[Forming]]:
        for number, gang in enumerate(w.gangs):
            if gang.status == "running" and all(w.hosts[a].ledger == Share(number, "running") for a in gang.members):
                yield Step(f"gang {number} succeeds", self._moved(w, number, Gang("ended")))
            lost = any(w.hosts[agent].record != "live" for agent in gang.members)
            if gang.status == "running" and lost and self.rules.repair:
                yield Step(f"gang {number} is requeued", self._moved(w, number, Gang()))
            if gang.status == "gathering" and w.budget.stop and w.budget.faults:
                after = self._moved(w, number, Gang("ended"))._replace(budget=_spent(w.budget, "stop"))
                yield Step(f"gang {number} is stopped", after, fault=True)

    def _fate(self, w: Forming, agent: int) -> Iterator[Step[Forming]]:
        host = w.hosts[agent]
        if host.beat is not None and host.record == "live":
            landed = host._replace(listed=host.beat[0], beat=None)
            yield Step(f"{agent}: its beat lands", _with(w, agent, landed))
            if host.mode == "gone":
                yield Step(f"{agent}: its beat never lands", _with(w, agent, host._replace(beat=None)))
        if host.record == "live" and host.mode in ("gone", "frozen"):
            yield Step(f"{agent}: is declared dead", _with(w, agent, host._replace(record="dead", beat=None)))
        if host.mode == "frozen":
            yield Step(f"{agent}: wakes", _with(w, agent, host._replace(mode="up")))
        if agent == 0 and host.mode == "up" and w.budget.faults:
            for fault, mode, ledger in (
                ("crash", "gone", None),
                ("freeze", "frozen", host.ledger),
                ("leave", "leaving", host.ledger),
            ):
                if getattr(w.budget, fault):
                    after = _with(w, agent, host._replace(mode=mode, ledger=ledger))
                    yield Step(f"{agent}: {fault}", after._replace(budget=_spent(w.budget, fault)), fault=True)

    # an agent that is at work

    def _agent(self, w: Forming, agent: int) -> Iterator[Step[Forming]]:
        host = w.hosts[agent]
        if host.record != "live":
            yield Step(f"{agent}: sees that it is dead", _with(w, agent, host._replace(mode="gone", ledger=None)))
            return
        yield from self._beats(w, agent, host)
        if host.ledger == SINGLE:
            yield Step(f"{agent}: its single ends", _with(w, agent, host._replace(ledger=None)))
        if host.ledger is None and host.mode == "leaving":
            yield Step(f"{agent}: leaves", _with(w, agent, Host("gone", "left")))
        if host.ledger is None and host.mode == "up" and w.budget.singles:
            after = _with(w, agent, host._replace(ledger=SINGLE))
            budget = w.budget._replace(singles=w.budget.singles - 1)
            yield Step(f"{agent}: claims a single", after._replace(budget=budget), fault=True)
        for number in range(len(w.gangs)):
            yield from self._reads(w, agent, host, number)

    def _beats(self, w: Forming, agent: int, host: Host) -> Iterator[Step[Forming]]:
        if host.ledger == host.listed or (host.beat is not None and host.beat[0] == host.ledger):
            return
        if agent == 0 and self.scope.late:
            yield Step(f"{agent}: sends a beat", _with(w, agent, host._replace(beat=(host.ledger,))))
        else:
            yield Step(f"{agent}: beats", _with(w, agent, host._replace(listed=host.ledger)))

    def _reads(self, w: Forming, agent: int, host: Host, number: int) -> Iterator[Step[Forming]]:
        """It reads a gang's record and does what that says."""
        gang = w.gangs[number]
        mine = host.ledger if isinstance(host.ledger, Share) and host.ledger.gang == number else None
        release = _with(w, agent, host._replace(ledger=None))
        todo = _member_action(gang, number, agent, mine, host.mode == "leaving")
        if mine is not None and mine.phase == "reserved" and gang.status == "gathering" and not self.rules.binding:
            yield Step(f"{agent}: has waited for gang {number} for long, and releases", release)
        if todo is MemberAction.TAKE and mine is None:
            if host.ledger is None:
                taken = _with(w, agent, host._replace(ledger=Share(number, "reserved")))
                yield Step(f"{agent}: reserves for gang {number}", taken)
            elif host.ledger == SINGLE and not self.rules.reserve_first:
                listed = _with(w, agent, host._replace(listed=Share(number, "reserved")))
                yield Step(f"{agent}: lists gang {number} without room", listed)
        elif todo in (MemberAction.RELEASE, MemberAction.ABANDON, MemberAction.TAKE):
            yield Step(f"{agent}: reads that gang {number} has moved on, and releases", release)
        elif todo is MemberAction.START:
            started = _with(w, agent, host._replace(ledger=Share(number, "running")))
            yield Step(f"{agent}: starts gang {number}", started)
        elif todo is MemberAction.WITHDRAW and self.rules.withdraw:
            assert withdrawn(_placement(gang.members)).members == []
            yield Step(f"{agent}: moves the round of gang {number}", self._moved(w, number, Gang()))
        elif todo is MemberAction.WITHDRAW:
            yield Step(f"{agent}: forgets its vote for gang {number}", release)
        elif mine is not None and mine.phase == "running" and host.mode == "leaving" and gang.status == "running":
            yield Step(f"{agent}: ends the attempt of gang {number}", self._moved(w, number, Gang()))


def _put(items: tuple[Gang, ...], place: int, item: Gang) -> tuple[Gang, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _with(w: Forming, agent: int, host: Host) -> Forming:
    return w._replace(hosts=(*w.hosts[:agent], host, *w.hosts[agent + 1 :]))


def _aged(use: Use, gang: int) -> Use:
    return use._replace(now=False) if isinstance(use, Share) and use.gang == gang else use


def _spent(budget: Budget, what: str) -> Budget:
    left = budget._replace(**{what: getattr(budget, what) - 1, "faults": budget.faults - 1})
    return left if left.faults else Budget(singles=left.singles)


@cache
def _picks(hosts: int, bundles: int) -> tuple[tuple[int, ...], ...]:
    return tuple(combinations(range(hosts), bundles))


# the real functions


def _placement(members: tuple[int, ...]) -> Placement:
    found = [PlacementMember(agent=f"a{agent}", bundles=[number]) for number, agent in enumerate(members)]
    return Placement(round=NOW[1], members=found)


@cache
def _owner(gang: Gang, number: int, bundles: int) -> Owner:
    spec = JobSpec(name="g", entrypoint=EntrypointSpec(command=["true"]), replicas=bundles)
    status, at = ("gathering" if gang.status == "gathering" else "running"), float(number)
    placement = _placement(gang.members)
    job = JobRecord(id=f"g{number}", spec=spec, status=status, attempt=NOW[0], submitted_at=at, placement=placement)
    return owner_of_job(job)


@cache
def _record(agent: int, state: str, leaving: bool, listed: Use, round_named: bool) -> AgentRecord:
    holdings: dict[str, Holding] = {}
    if isinstance(listed, Share):
        attempt, round_ = NOW if listed.now or not round_named else OLD
        holdings[f"g{listed.gang}"] = Holding(attempt=attempt, phase=listed.phase, round=round_)
    elif listed == SINGLE:
        holdings["single"] = Holding(attempt=1)
    return AgentRecord(
        id=f"a{agent}",
        host=f"a{agent}",
        pool="default",
        state=state,
        supports_placements=True,
        drain=leaving,
        capacity=CORE,
        free=CORE if listed is None else Resources(),
        holdings=holdings,
    )


Listed = tuple[tuple[str, bool, Use], ...]


@cache
def _wanted(gangs: tuple[Gang, ...], listed: Listed, bundles: int, round_named: bool, order: bool) -> list[Write]:
    """What the pass writes, by the records and the heartbeats that it reads."""
    owners = [_owner(gang, number, bundles) for number, gang in enumerate(gangs) if gang.status != "ended"]
    agents: dict[str, AgentRecord] = {}
    for agent, (state, leaving, use) in enumerate(listed):
        record = _record(agent, state, leaving, use, round_named)
        agents[record.id] = _told(record, owners)
    views = [host_view(agent, {owner.id: owner for owner in owners}) for agent in agents.values()]
    alone = ([owner] for owner in owners if owner.forming)
    found = {name: given for asking in ([owners] if order else alone) for name, given in assign(views, asking).items()}
    writes: list[Write] = []
    for owner in owners:
        if not owner.forming:
            continue
        number, known = int(owner.id[1:]), owner.placement
        wanted = next_round(known, known, found[owner.id], 0.0)
        if wanted is not None:
            chosen = sorted((n, int(m.agent[1:])) for m in wanted.members for n in m.bundles)
            writes.append(Write("assign", number, tuple(agent for _, agent in chosen)))
        elif known.members and not missing_votes(owner, agents):
            writes.append(Write("start", number, gangs[number].members))
    return writes


def _told(agent: AgentRecord, owners: list[Owner]) -> AgentRecord:
    """The record with the bundles in it that its vote is for: those that it is assigned, or one of an earlier round."""
    holdings = {
        held: with_changes(now, bundles=list(owner.bundles_of(agent.id)) or [0])
        for held, now in agent.holdings.items()
        for owner in owners
        if owner.id == held
    }
    return with_changes(agent, holdings={**agent.holdings, **holdings})


@cache
def _member_action(gang: Gang, number: int, agent: int, mine: Share | None, leaving: bool) -> MemberAction:
    bundles = max(len(gang.members), 1)
    owner = _owner(gang, number, bundles)
    owner_phase = {"gathering": OwnerPhase.FORMING, "running": OwnerPhase.STARTED, "ended": OwnerPhase.OVER}[
        gang.status
    ]
    vote = None
    if mine is not None:
        attempt, round_ = NOW if mine.now else OLD
        phase = HoldingPhase.RUNNING if mine.phase == "running" else HoldingPhase.RESERVED
        has = owner.bundles_of(f"a{agent}") if mine.now else (0,)
        vote = Vote(attempt, round_, has or (0,), phase)
    return member_action(Voter(f"a{agent}", leaving), replace(owner, attempt=NOW[0]), owner_phase, vote)
