"""Families: owners of placements, and jobs that wait for one another, on a few hosts; every order of events.

The pass, the votes, the claims and the turns of families are decided by the functions of the coordinator and the
agents. Time is left out: a turn may be over whenever nothing runs that ran at its begin, and a rest may end at any
time. Requeues are faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace as with_changes
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.families import (
    KeptOut,
    change_of_families,
    goes_before,
    is_let_in_at_once,
    waits_without_members,
)
from fray_coordinator.protocol.placements.hosts import host_view
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job
from fray_coordinator.protocol.placements.rounds import members_without_room, missing_votes, next_round
from fray_coordinator.protocol.placements.votes import MemberAction, OwnerPhase, Vote, Voter, member_action
from fray_coordinator.protocol.scheduling import entry_of, resources_of, shape_of
from fray_layouts.index_keys import family_digits
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    FamilyFirst,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    Resources,
)
from fray_layouts.spec import EntrypointSpec, JobSpec, ResourceSpec
from tests.model.explorer import Step

NOW, AT, OLD, NEW = 1e6, 9e5, 8e5, 9.5e5
"""The storage's time of every step, when each turn began, and since when jobs run that ran before it or not."""

SETTINGS = ClusterSettings()
NOT_YET, WAITS, OVER, ELSEWHERE = "not launched", "waits", "ended", "elsewhere"
Place: TypeAlias = "int | str"


class Part(NamedTuple):
    """A job or a gang of the story.

    Attributes:
        need: cores, of each replica.
        hosts: of a gang, its replicas; 0 for a single job.
        above: the jobs above it, the topmost first; the last one is its parent unless it is `alone`.
        waits: names of what has to end before it does.
        at: where it is at the beginning.
        alone: its topmost ancestor is a driver, and it does not end with it.
        server: it ends with its parent only.
        fits: the hosts that it fits; () for all.
    """

    need: int = 1
    hosts: int = 0
    above: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    at: Place = NOT_YET
    alone: bool = False
    server: bool = False
    fits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a world. Each can be turned off.

    Attributes:
        let_in: a family goes before an owner on whose members it runs.
        whole_family: all of it; otherwise only jobs with an ancestor there.
        quiet: votes lapse when a family is let in, and none is given during its turn.
        owners_too: owners of the family come before that owner.
        earlier_too: it also counts if the family runs on members of earlier owners.
        again: a family may have another turn.
        ran_before: what ran before is let in, whosever it is.
        apart: an owner gets no room that its own ancestors use.
        makes_room: a child makes room for its parent that waits for it.
    """

    let_in: bool = True
    whole_family: bool = True
    quiet: bool = True
    owners_too: bool = True
    earlier_too: bool = True
    again: bool = True
    ran_before: bool = True
    apart: bool = True
    makes_room: bool = True


class Gang(NamedTuple):
    """A gang's record: members, families in their turn with their jobs that ran there, those that had one."""

    members: tuple[int, ...] = ()
    first: tuple[tuple[str, frozenset[str]], ...] = ()
    had: frozenset[str] = frozenset()


class Scene(NamedTuple):
    """A state.

    Attributes:
        places: of each part: a host, or one of the words; gangs that run are `ELSEWHERE`, they have `votes`.
        ran: the jobs that were requeued.
        gangs: the records of gangs.
        votes: (gang, host) of votes of the present round; stale: of an earlier one.
        views: what hosts know of gangs: (gang, host, whether it is the present record, families that go first).
        requeues: how many may still happen.
    """

    places: tuple[Place, ...]
    ran: frozenset[str]
    gangs: tuple[Gang, ...]
    votes: frozenset[tuple[str, int]] = frozenset()
    stale: frozenset[tuple[str, int]] = frozenset()
    views: frozenset[tuple[str, int, bool, frozenset[str]]] = frozenset()
    requeues: int = 0


@dataclass(frozen=True)
class FamilyWorld:
    """The moves of a world. parts: by name, in the order of submission; hosts: cores of each."""

    parts: Mapping[str, Part]
    hosts: tuple[int, ...] = (2, 2)
    requeues: int = 0
    rules: Rules = field(default_factory=Rules)

    def start(self) -> Scene:
        places = tuple(part.at for part in self.parts.values())
        return Scene(places, frozenset(), tuple(Gang() for _ in self._gangs), requeues=self.requeues)

    def good(self, scene: Scene) -> bool:
        return all(place == OVER for place in scene.places)

    def broken(self, scene: Scene) -> str:
        return "a host is overfull" if any(self._used(scene, h) > cores for h, cores in enumerate(self.hosts)) else ""

    def steps(self, scene: Scene) -> Iterator[Step[Scene]]:
        for name in self.parts:
            yield from self._launched(scene, name)
            yield from self._ended(scene, name)
            if not self.parts[name].hosts:
                yield from self._claimed(scene, name)
                yield from self._requeued(scene, name)
        for name in self._gangs:
            if self._place(scene, name) == WAITS:
                yield from self._votes(scene, name)
                yield from self._turns(scene, name)
                if self._gang(scene, name).members and not missing_votes(self._owner(scene, name), self._agents(scene)):
                    yield Step(f"{name} starts", self._at(scene, name, ELSEWHERE))
        yield from self._assigned(scene)

    # --- jobs

    def _launched(self, scene: Scene, name: str) -> Iterator[Step[Scene]]:
        if self._place(scene, name) == NOT_YET and self._parent_runs(scene, name):
            yield Step(f"{name} is launched", self._at(scene, name, WAITS))

    def _ended(self, scene: Scene, name: str) -> Iterator[Step[Scene]]:
        part, place = self.parts[name], self._place(scene, name)
        runs = isinstance(place, int) or (place == ELSEWHERE)
        if runs and not part.server and all(self._place(scene, other) == OVER for other in part.waits):
            todo, now = [name], scene
            while todo:
                gone = todo.pop()
                now = self._at(self._without(now, gone), gone, OVER)
                children = (n for n, p in self.parts.items() if p.above[-1:] == (gone,) and not p.alone)
                todo += [child for child in children if self._place(now, child) != OVER]
            yield Step(f"{name} ends", now)

    def _claimed(self, scene: Scene, name: str) -> Iterator[Step[Scene]]:
        if self._place(scene, name) != WAITS or not self._parent_runs(scene, name):
            return
        for host, cores in enumerate(self.hosts):
            fits = host in (self.parts[name].fits or range(len(self.hosts)))
            if fits and self._used(scene, host) + self._kept(scene, name, host) + self.parts[name].need <= cores:
                yield Step(f"{name} is claimed on {host}", self._at(scene, name, host))

    def _kept(self, scene: Scene, name: str, host: int) -> int:
        """The room that the host keeps for gangs that the job does not go before, as the host knows them."""
        entry, kept = entry_of(self._job(scene, name)), 0
        for gang, where, _, first in scene.views:
            seen = self._owner(scene, gang, first)
            if where == host and not self._has(scene, gang, host) and not goes_before(entry, seen):
                kept += self.parts[gang].need
        return kept

    def _requeued(self, scene: Scene, name: str) -> Iterator[Step[Scene]]:
        place = self._place(scene, name)
        if not isinstance(place, int):
            return
        back = self._at(self._forgotten(scene, name), name, WAITS)._replace(ran=scene.ran | {name})
        if scene.requeues:
            yield Step(f"{name} is requeued", back._replace(requeues=scene.requeues - 1), fault=True)
        parent = self.parts[name].above[-1:]
        if self.rules.makes_room and parent and not self.parts[name].alone and self._place(scene, parent[0]) == WAITS:
            need, used = self.parts[parent[0]].need, self._used(scene, place)
            if used + need > self.hosts[place] >= used - self.parts[name].need + need:
                yield Step(f"{name} makes room for {parent[0]}", back)

    # --- agents

    def _votes(self, scene: Scene, gang: str) -> Iterator[Step[Scene]]:
        """Hosts read the gang's record, and vote."""
        record = self._gang(scene, gang)
        now = frozenset(family for family, _ in record.first)
        for host in range(len(self.hosts)):
            views = [view for view in scene.views if view[:2] == (gang, host)]
            wanted = [(gang, host, True, now)] if host in record.members else []
            if views != wanted or (gang, host) in scene.stale:
                read = scene._replace(
                    views=scene.views.difference(views).union(wanted),
                    stale=scene.stale - {(gang, host)},
                    votes=scene.votes if wanted else scene.votes - {(gang, host)},
                )
                yield Step(f"{host} reads {gang}", read)
            if views and not self._has(scene, gang, host) and self._would_vote(scene, gang, host, views[0][3]):
                pair = frozenset({(gang, host)})
                if views[0][2]:
                    yield Step(f"{host} votes for {gang}", scene._replace(votes=scene.votes | pair))
                else:
                    yield Step(f"{host} votes late for {gang}", scene._replace(stale=scene.stale | pair))

    def _would_vote(self, scene: Scene, gang: str, host: int, first: frozenset[str]) -> bool:
        if self._used(scene, host) + self.parts[gang].need > self.hosts[host]:
            return False
        members = self._gang(scene, gang).members
        owner = self._owner(scene, gang, first if self.rules.quiet else frozenset(), (*members, host))
        vote = Vote(1, 1, owner.bundles_of(str(host)))
        return member_action(Voter(str(host)), owner, OwnerPhase.FORMING, vote) is MemberAction.RESERVE

    # --- the pass

    def _assigned(self, scene: Scene) -> Iterator[Step[Scene]]:
        waiting = [g for g in self._gangs if self._place(scene, g) == WAITS]
        if not waiting:
            return
        owners = {g: self._owner(scene, g) for g in self._gangs if self._place(scene, g) in (WAITS, ELSEWHERE)}
        if not self.rules.apart:
            owners = {g: with_changes(owner, ancestors=()) for g, owner in owners.items()}
        if not self.rules.owners_too:
            owners = {g: with_changes(o, placement=replace(o.placement, first=[])) for g, o in owners.items()}
        found = assign([host_view(a, owners) for a in self._agents(scene).values()], owners.values())
        for gang in waiting:
            placement = self._owner(scene, gang).placement
            if (wanted := next_round(placement, placement, found[gang], NOW)) is not None:
                members = tuple(int(member.agent) for member in wanted.members)
                record = self._gang(scene, gang)._replace(members=members)
                yield Step(f"{gang} is assigned {members}", self._moved(scene, gang, record))

    def _turns(self, scene: Scene, gang: str) -> Iterator[Step[Scene]]:
        record = self._gang(scene, gang)
        if not (self.rules.let_in and record.members):
            return
        agents = self._agents(scene, gang)
        owner = self._owner(scene, gang)
        number = self._gangs.index(gang)
        before = self._gangs[: number + 1] if self.rules.earlier_too else [gang]
        hosts = {("default", a.id): host_view(a, {}) for a in agents.values()}
        without_room = [
            agent
            for g in before
            if self._place(scene, g) == WAITS
            for agent in members_without_room(self._owner(scene, g), hosts, agents)
        ]
        change = change_of_families(
            owner.placement, self._kept_out(scene, owner, without_room), without_room, NOW, SETTINGS, float("inf")
        )
        if change is None:
            return
        let_in = {turn.kept_out.family for turn in change.turns}
        there = {name for a in without_room for name in a.holdings}
        first = [(f, old) for f, old in record.first if f not in change.over]
        first += [(f, frozenset(n for n in there if self._family(n) == f)) for f in sorted(let_in)]
        had = record.had | set(change.over) if not self.rules.again else frozenset()
        now = Gang(record.members, tuple(sorted(first, key=lambda each: each[0])), had)
        if change.turns and self.rules.quiet:
            yield Step(f"a family goes before {gang}", self._moved(scene, gang, now))
        else:
            yield Step(f"the families before {gang} change", self._written(scene, gang, now))

    def _kept_out(self, scene: Scene, owner: Owner, there: list[AgentRecord]) -> list[KeptOut]:
        found: list[KeptOut] = []
        for name, part in self.parts.items():
            if self._place(scene, name) != WAITS or not self._parent_runs(scene, name) or name == owner.id:
                continue
            if part.hosts:
                if self.rules.owners_too and not self._gang(scene, name).members:
                    found.append(waits_without_members(self._owner(scene, name)))
                continue
            entry = entry_of(self._job(scene, name))
            at_once = self.rules.ran_before and is_let_in_at_once(entry, owner)
            if not self.rules.whole_family and not any(a in agent.holdings for agent in there for a in part.above):
                continue
            if any(self._is_kept_out(scene, name, owner, view) for view in scene.views if view[0] == owner.id):
                found.append(KeptOut(entry.family, name, NOW, at_once, entry))
        return found

    def _is_kept_out(self, scene: Scene, name: str, owner: Owner, view: tuple[str, int, bool, frozenset[str]]) -> bool:
        _, host, _, first = view
        if host not in (self.parts[name].fits or range(len(self.hosts))):
            return False
        has = self._has(scene, owner.id, host)
        used = self._used(scene, host) - (self.parts[owner.id].need if has else 0)
        seen = self._owner(scene, owner.id, first)
        lets_in = not has and goes_before(entry_of(self._job(scene, name)), seen)
        return used + self.parts[name].need <= self.hosts[host] and not lets_in

    # --- records

    @cached_property
    def _gangs(self) -> list[str]:
        return [name for name, part in self.parts.items() if part.hosts]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.parts)}

    def _place(self, scene: Scene, name: str) -> Place:
        return scene.places[self._numbers[name]] if name in self._numbers else ELSEWHERE

    def _gang(self, scene: Scene, name: str) -> Gang:
        return scene.gangs[self._gangs.index(name)]

    def _family(self, name: str) -> str:
        return family_digits((*self.parts[name].above, name)[0])

    def _parent_runs(self, scene: Scene, name: str) -> bool:
        part = self.parts[name]
        if part.alone or not part.above:
            return True
        place = self._place(scene, part.above[-1])
        return isinstance(place, int) or place == ELSEWHERE

    def _has(self, scene: Scene, gang: str, host: int) -> bool:
        runs = self._place(scene, gang) == ELSEWHERE and host in self._gang(scene, gang).members
        return runs or (gang, host) in scene.votes | scene.stale

    def _used(self, scene: Scene, host: int) -> int:
        jobs = sum(part.need for name, part in self.parts.items() if self._place(scene, name) == host)
        return jobs + sum(self.parts[gang].need for gang in self._gangs if self._has(scene, gang, host))

    def _job(self, scene: Scene, name: str) -> JobRecord:
        return job_of(self._kind(scene, name))

    def _kind(self, scene: Scene, name: str) -> Kind:
        part = self.parts[name]
        status = "pending" if not part.hosts else "running" if self._place(scene, name) == ELSEWHERE else "gathering"
        return Kind(name, part, status, 2 if name in scene.ran else 1, float(self._numbers[name]))

    def _owner(
        self, scene: Scene, gang: str, first: frozenset[str] | None = None, members: tuple[int, ...] | None = None
    ) -> Owner:
        """A gang by its record, or as a host knows it."""
        record = self._gang(scene, gang)
        now = [family for family, _ in record.first] if first is None else sorted(first)
        chosen = record.members if members is None else members
        return owner_of_gang(self._kind(scene, gang), tuple(now), record.had, chosen)

    def _agents(self, scene: Scene, before: str = "") -> dict[str, AgentRecord]:
        """The heartbeats. before: a gang; jobs that ran when one of its turns began have run for longer."""
        old = {name for _, jobs in self._gang(scene, before).first for name in jobs} if before else set()
        found: dict[str, AgentRecord] = {}
        for host, cores in enumerate(self.hosts):
            capacity = Resources(cpu=1000 * cores, memory=2**33, disk=2**33)
            holdings = {
                name: Holding(
                    attempt=1,
                    phase="running",
                    since=OLD if name in old else NEW,
                    family=(part.above or ("",))[0],
                    takes=resources_taken(self._kind(scene, name)),
                )
                for name, part in self.parts.items()
                if self._place(scene, name) == host
            }
            for gang in self._gangs:
                if self._has(scene, gang, host):
                    runs = self._place(scene, gang) == ELSEWHERE
                    bundles = list(self._owner(scene, gang).bundles_of(str(host)))
                    holdings[gang] = Holding(
                        attempt=1,
                        phase="running" if runs else "reserved",
                        round=1 if (gang, host) in scene.votes or runs else 0,
                        bundles=bundles or [0],
                        since=NEW if runs else None,
                        family=(self.parts[gang].above or ("",))[0],
                    )
            free = replace(capacity, cpu=max(0, 1000 * (cores - self._used(scene, host))))
            found[str(host)] = AgentRecord(
                id=str(host), host=str(host), pool="default", capacity=capacity, free=free, supports_placements=True,
                holdings=holdings,
            )  # fmt: skip
        return found

    # --- changes

    def _at(self, scene: Scene, name: str, place: Place) -> Scene:
        number = self._numbers[name]
        return scene._replace(places=(*scene.places[:number], place, *scene.places[number + 1 :]))

    def _forgotten(self, scene: Scene, name: str) -> Scene:
        """A job that is requeued or ends does not run any more where it ran when a turn began."""
        gangs = tuple(gang._replace(first=tuple((f, old - {name}) for f, old in gang.first)) for gang in scene.gangs)
        return scene._replace(gangs=gangs)

    def _without(self, scene: Scene, name: str) -> Scene:
        scene = self._forgotten(scene, name)
        if name in self._gangs:
            number = self._gangs.index(name)
            scene = scene._replace(gangs=(*scene.gangs[:number], Gang(), *scene.gangs[number + 1 :]))
        return scene._replace(
            votes=frozenset(vote for vote in scene.votes if vote[0] != name),
            stale=frozenset(vote for vote in scene.stale if vote[0] != name),
            views=frozenset(view for view in scene.views if view[0] != name),
        )

    def _written(self, scene: Scene, gang: str, record: Gang) -> Scene:
        """The gang's record in the same round; hosts know the one before."""
        number = self._gangs.index(gang)
        views = frozenset((g, h, known and g != gang, first) for g, h, known, first in scene.views)
        return scene._replace(gangs=(*scene.gangs[:number], record, *scene.gangs[number + 1 :]), views=views)

    def _moved(self, scene: Scene, gang: str, record: Gang) -> Scene:
        """The gang's record in its next round."""
        lapsed = frozenset(vote for vote in scene.votes if vote[0] == gang)
        moved = self._written(scene, gang, record)
        return moved._replace(votes=scene.votes - lapsed, stale=scene.stale | lapsed)


class Kind(NamedTuple):
    """What a job's record is made from. Many states share a record, and to make it takes longer than all else."""

    name: str
    part: Part
    status: str
    attempt: int
    order: float


@cache
def job_of(kind: Kind) -> JobRecord:
    spec = JobSpec(
        name=kind.name,
        entrypoint=EntrypointSpec(command=["x"]),
        replicas=kind.part.hosts or 1,
        resources=ResourceSpec(cpu=float(kind.part.need)),
        spread=bool(kind.part.hosts),
    )
    return JobRecord(
        id=kind.name,
        spec=spec,
        status=kind.status,
        attempt=kind.attempt,
        submitted_at=kind.order,
        ancestors=list(kind.part.above),
    )


@cache
def resources_taken(kind: Kind) -> Resources:
    return resources_of(shape_of(job_of(kind).spec))


@cache
def owner_of_gang(kind: Kind, now: tuple[str, ...], had: frozenset[str], members: tuple[int, ...]) -> Owner:
    """The owner with these families in their turn, those that had one, and these members."""
    families = [FamilyFirst(family=f, at=AT) for f in now]
    families += [FamilyFirst(family=f, at=AT, again=2 * NOW) for f in sorted(had)]
    bundles = [PlacementMember(agent=str(h), bundles=[n]) for n, h in enumerate(dict.fromkeys(members))]
    placement = Placement(round=1, members=bundles, first=families, place=OLD, moves=3)
    return owner_of_job(replace(job_of(kind), placement=placement))
