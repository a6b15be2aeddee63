"""Watches the agents: which of them are silent, for how long, and which are dead.

The decisions are in `protocol.failure_detection`.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreUnavailable, describe_error, is_outage
from fray_coordinator.protocol.failure_detection import (
    MAX_GAP_INTERVALS,
    defer_mass_failure,
    has_timed_out,
    needs_reaping,
    observe,
)
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.protocol.retention import removable_agents
from fray_coordinator.protocol.scheduling import free_slots
from fray_coordinator.reconcile import reaper
from fray_coordinator.reconcile.background_work import BackgroundWork
from fray_coordinator.reconcile.record_cache import UnreadableRecords
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.paging import list_pages
from fray_coordinator.store.records import Stored
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, PoolSummary, Suspect
from fray_layouts.states import AgentState

MAX_CONCURRENT_READS = 64
"""Records read at a time. It then reads hundreds a second; an observation has to end before the lease ages."""

MAX_PASS_READS = 2000
"""New records that an observation reads before it ends, and agents that it declares dead; both take a second or two.

If there are more, they are read in the background, the latest first, so that known agents are judged in time.
"""
UNREAD_AGENTS = "agents/ not read yet"
"""The name of that background work."""

VERDICT_PATIENCE = 3.0
"""Seconds for which the write of a death is retried.

After an outage of writes, a verdict that had waited longer would be applied before the heartbeat that waits as well.
"""

HINT_ENDPOINTS_PER_POOL = 3
"""Agents per pool to which submitters send hints: one may have ended, and two may have no room."""


@dataclass(slots=True)
class FailureDetector:
    """Watches the agents: keeps the record of each agent that may still change, as last read, and the time of the read.

    Attributes:
        agents: by id, all agents except those that have ended and are reaped.
        background: runs reads for which an observation does not wait.
        problems: by key, the errors of the last observation.
        complete: whether every agent's record was read for which the store answers.
        someone_died: a living agent has died since the caller reset this.
    """

    core: Core
    background: BackgroundWork = field(default_factory=BackgroundWork)
    agents: dict[str, Stored[AgentRecord]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    someone_died: bool = False
    _ended: dict[str, Listed] = field(default_factory=dict)
    _unreadable: UnreadableRecords = field(default_factory=UnreadableRecords)
    _lived: frozenset[str] = frozenset()
    _known: dict[str, Suspect] = field(default_factory=dict)
    _confirmed: dict[str, Suspect] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    _listed_at: float = 0.0
    _unanswered: dict[str, str] = field(default_factory=dict)

    def live(self) -> dict[str, Stored[AgentRecord]]:
        """By id, the agents that are alive, by the states that this version knows."""
        return {name: agent for name, agent in self.agents.items() if agent.record.state == AgentState.LIVE}

    def watched(self) -> dict[str, Stored[AgentRecord]]:
        """By id, the agents that have not ended, including those in a state that this version does not know."""
        return {name: agent for name, agent in self.agents.items() if not is_fenced(agent.record)}

    def unreaped(self) -> list[Stored[AgentRecord]]:
        """The ended agents whose jobs may still have to be requeued, those with few jobs first."""
        dead = [agent for agent in self.agents.values() if needs_reaping(agent.record)]
        return sorted(dead, key=lambda agent: len(agent.record.holdings))

    async def observe_agents(self, suspects: Mapping[str, Suspect]) -> dict[str, Suspect]:
        """Read every agent's record once, declare the dead, and return what is known about the others.

        A row of a listing with the known version counts as a read. An agent's age counts the time from the answer to
        one read of its record to the start of the next, which is never more than the time between the moments that the
        two reads show. (The time from the end of one observation to the start of the next would be too short:
        an observation of many agents takes long.)
        """
        self.problems, self._lived = {}, frozenset(self.watched())
        started, listed_at, read_at = self.core.clock.boottime(), self._listed_at, self._read_at
        asked_at = await self._read_all()

        def gap(agent: Stored[AgentRecord]) -> float | None:
            """Seconds of silence between two reads; if too many to count, only those between the two observations."""
            read = read_at.get(agent.record.id)
            if read is None:
                return None
            between = asked_at.get(agent.key, started) - read
            return between if between <= MAX_GAP_INTERVALS * agent.record.interval else started - max(read, listed_at)

        def suspicion(agent: Stored[AgentRecord]) -> tuple[str, Suspect]:
            name = agent.record.id
            return name, observe(agent.record, self._known.get(name), suspects.get(name), gap(agent))

        seen = dict(decide_each(self.watched().values(), suspicion, self.problems, _key))
        seen |= await self._judge(seen)
        watched = self.watched()
        self._known = {name: suspect for name, suspect in seen.items() if name in watched}
        return self._known

    def confirm(self) -> None:
        """Note that a write succeeded after the last observation: agents could write too, and their silence counts."""
        self._confirmed = self._known

    def discount(self) -> None:
        """Note that a write failed; perhaps nobody could write, so silence since the last success does not count."""
        self._known, self._read_at = self._confirmed, {}

    async def forget_old(self) -> None:
        """Delete the records of agents that have ended and are reaped, if they are old or too many."""
        ended = {key: row.updated or 0.0 for key, row in self._ended.items()}
        due = removable_agents(ended, self.core.now(), self.core.settings)[:MAX_PASS_READS]
        problems: dict[str, str] = {}
        await map_noting_problems(
            due, lambda key: self.core.store.delete(key, self._ended[key].version or ""), problems
        )

    def silent(self) -> dict[str, Suspect]:
        """The suspects that a successor must know: agents whose heartbeat is overdue, and deferred ones."""
        of = self.watched()
        return {n: s for n, s in self._known.items() if n in of and (s.deferred or s.age >= of[n].record.interval)}

    def pools(self) -> dict[str, PoolSummary]:
        """By pool: its live agents, and the number of one-core tasks that they can run at once."""
        views: dict[str, PoolSummary] = {}
        hearing: dict[str, list[AgentRecord]] = {}

        def count(agent: Stored[AgentRecord]) -> None:
            view = views.setdefault(agent.record.pool, PoolSummary())
            view.agents += 1
            view.slots = min(view.slots + free_slots(agent.record.capacity), MAX_SAFE_INTEGER)
            if agent.record.hint_endpoint is not None:
                hearing.setdefault(agent.record.pool, []).append(agent.record)

        agents = (agent for agent in self.live().values() if not agent.record.driver)
        decide_each(agents, count, self.problems, _key)
        return {
            pool: replace(view, hint_endpoints=_hint_endpoints(hearing.get(pool, ()))) for pool, view in views.items()
        }

    async def _list(self) -> dict[str, tuple[Listed, float, float]]:
        """By key: the row, and the times when its page was requested and received."""
        rows: dict[str, tuple[Listed, float, float]] = {}
        asked = self.core.clock.boottime()
        async for page in list_pages(self.core.store, AgentKeys.area, versions=True):
            answered = self.core.clock.boottime()
            rows |= {row.key: (row, asked, answered) for row in page}
            asked = self.core.clock.boottime()
        return rows

    async def _read_all(self) -> dict[str, float]:
        """Read all new and changed records; returns by key when its listing was requested."""
        listed = await self._list()
        self._listed_at = self.core.clock.boottime()
        agents = (row for row, _, _ in listed.values() if AgentKeys.parse(row.key))
        rows = self._unreadable.sift(agents, self.problems)
        before = {agent.key: agent for agent in self.agents.values()}
        ended, self._ended, self.agents, self._read_at = self._ended, {}, {}, {}
        changed: list[Listed] = []
        unknown: list[Listed] = []
        for row in rows:
            if (known := before.get(row.key)) is not None and known.version == row.version:
                self._keep(known, listed[row.key][2])
            elif (gone := ended.get(row.key)) is not None and gone.version == row.version:
                self._ended[row.key] = gone
            else:
                (unknown if known is None else changed).append(row)
                if known is not None:
                    self.agents[known.record.id] = known  # until it is read
        await self._read(changed, unknown)
        return {key: asked for key, (_, asked, _) in listed.items()}

    async def _read(self, changed: list[Listed], unknown: list[Listed]) -> None:
        """Read changed and new records; in the background if they are too many, or were not answered before."""
        rows = {row.key: row for row in [*changed, *unknown]}
        self._unanswered = {key: why for key, why in self._unanswered.items() if key in rows}
        self.problems |= self._unanswered
        late = [rows[key] for key in self._unanswered]
        changed, unknown = ([row for row in some if row.key not in self._unanswered] for some in (changed, unknown))
        self.complete = len(unknown) <= MAX_PASS_READS
        if not self.complete:
            late = sorted(unknown, key=lambda row: -(row.updated or 0.0)) + late
            unknown = []
        if late:
            self.background.start(
                UNREAD_AGENTS,
                lambda: map_noting_problems(late, self._read_background, {}, lambda row: row.key, MAX_CONCURRENT_READS),
            )
        await map_noting_problems(
            changed + unknown, self._read_row, self.problems, lambda row: row.key, MAX_CONCURRENT_READS
        )

    async def _read_background(self, row: Listed) -> None:
        """Read the record, unless an observation has read it meanwhile."""
        if row.key in self._unanswered or (AgentKeys.parse(row.key) not in self.agents and row.key not in self._ended):
            await self._read_row(row)

    async def _read_row(self, row: Listed) -> None:
        try:
            agent = await self._unreadable.read(self.core.records, row, AgentRecord)
        except Exception as error:
            if not (isinstance(error, BadRecord) or is_outage(error)):
                self._unanswered[row.key] = describe_error(error)
            raise
        self._unanswered.pop(row.key, None)
        if agent is not None:
            as_believed = replace(agent, record=with_bounded_interval(agent.record, self.core.settings))
            self._keep(as_believed, self.core.clock.boottime())

    def _keep(self, agent: Stored[AgentRecord], read_at: float | None) -> None:
        record = agent.record
        self.someone_died |= record.state == AgentState.DEAD and record.id in self._lived
        if is_fenced(record) and not needs_reaping(record):
            self._ended[agent.key] = Listed(agent.key, agent.version, agent.updated)
            self.agents.pop(record.id, None)
            return
        self.agents[record.id] = agent
        if read_at is not None:
            self._read_at[record.id] = read_at

    async def _judge(self, seen: Mapping[str, Suspect]) -> dict[str, Suspect]:
        """Declare the timed-out agents dead; returns the deferred ones."""
        watched = self.watched()
        judged = decide_each(
            seen, lambda name: (name, has_timed_out(watched[name].record, seen[name])), self.problems, AgentKeys.key
        )
        timed_out = {name: seen[name] for name, is_due in judged if is_due}
        deferred = defer_mass_failure(timed_out, len(watched))

        async def declare_dead(name: str) -> None:
            try:
                killed = await reaper.declare_agent_dead(self.core, watched[name], VERDICT_PATIENCE)
            except StoreUnavailable as error:  # the next write of the lease shows whether it is an outage
                self.problems[AgentKeys.key(name)] = describe_error(error)
                return
            if killed is not None:
                self._keep(killed, None)

        dead = sorted(timed_out.keys() - deferred.keys())[:MAX_PASS_READS]
        await map_noting_problems(dead, declare_dead, self.problems, AgentKeys.key, MAX_CONCURRENT_READS)
        return deferred


def _key(agent: Stored[AgentRecord]) -> str:
    return agent.key


def _hint_endpoints(hearing: Iterable[AgentRecord]) -> list[HintEndpoint]:
    """The hint endpoints of the agents with the most room."""
    chosen = heapq.nlargest(HINT_ENDPOINTS_PER_POOL, hearing, key=lambda agent: (agent.free.cpu, agent.id))
    return [agent.hint_endpoint for agent in chosen if agent.hint_endpoint is not None]
