"""Watching the agents: who is silent, for how long, who is dead.

What that means is decided in `protocol.failure_detection`.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.concurrency import map_noting_problems
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
from fray_coordinator.reconcile.unreadable_records import UnreadableRecords
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.metering import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, PoolSummary, Suspect
from fray_layouts.states import AgentState

MAX_CONCURRENT_READS = 64
"""A look at a large fleet reads hundreds of records for each second since the last, and must not let the lease age."""

MAX_PASS_READS = 2000
"""Unknown records that a look waits for at most, which take a second or two; agents that it declares dead at most.

More of them are read in the background, the last written first: agents that are known already are judged in time.
"""
UNREAD_AGENTS = "agents/ not read yet"
"""The name of that work."""

VERDICT_PATIENCE = 3.0
"""Seconds for which a death is tried to be written.

A verdict that waited for the end of an outage of writes would be there before the beat that waits as well.
"""

HINT_ENDPOINTS_PER_POOL = 3
"""Agents of each pool to which submitters send hints: one may have ended, and two have no room."""


@dataclass(slots=True)
class FailureDetector:
    """Watches the agents: keeps the record of each that may still change, as last read, and when that was.

    Attributes:
        agents: by id; those that have ended and are reaped are not among them.
        background: reads what a look need not wait for.
        problems: what went wrong in the last look, by key.
        complete: every agent's record was read that is answered.
        someone_died: an agent that lived is dead, since whoever asks reset this.
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
        """The agents that live, as far as this version knows their states, by id."""
        return {name: agent for name, agent in self.agents.items() if agent.record.state == AgentState.LIVE}

    def watched(self) -> dict[str, Stored[AgentRecord]]:
        """The agents that have not ended, by id: also those in a state that this version does not know."""
        return {name: agent for name, agent in self.agents.items() if not is_fenced(agent.record)}

    def unreaped(self) -> list[Stored[AgentRecord]]:
        """The agents that have ended and whose jobs may still have to be put back; those with few of them first."""
        dead = [agent for agent in self.agents.values() if needs_reaping(agent.record)]
        return sorted(dead, key=lambda agent: len(agent.record.holdings))

    async def look(self, suspects: Mapping[str, Suspect]) -> dict[str, Suspect]:
        """Read every agent's record once, declare the dead, and return what is now known of the others.

        A row of a listing that shows the known version is a successful read. Each agent's age is counted from the
        answer to one read of its record to the begin of the next, which is never more than the time between what the
        two saw. (From the end of one look to the begin of the next would be too little: a look at many takes long.)
        """
        self.problems, self._lived = {}, frozenset(self.watched())
        begun, listed_at, read_at = self.core.clock.boottime(), self._listed_at, self._read_at
        asked_at = await self._read_all()

        def gap(agent: Stored[AgentRecord]) -> float | None:
            """Seconds of silence seen, or, where those are too many to count, the rest between the two looks."""
            read = read_at.get(agent.record.id)
            if read is None:
                return None
            between = asked_at.get(agent.key, begun) - read
            return between if between <= MAX_GAP_INTERVALS * agent.record.interval else begun - max(read, listed_at)

        seen = {
            name: observe(agent.record, self._known.get(name), suspects.get(name), gap(agent))
            for name, agent in self.watched().items()
        }
        seen |= await self._judge(seen)
        watched = self.watched()
        self._known = {name: suspect for name, suspect in seen.items() if name in watched}
        return self._known

    def confirm(self) -> None:
        """Note that a write succeeded after the last look: agents could write too, so the silence seen is theirs."""
        self._confirmed = self._known

    def discount(self) -> None:
        """This observer could not write: perhaps nobody could, and what it saw since it last could is no silence."""
        self._known, self._read_at = self._confirmed, {}

    async def forget_old(self) -> None:
        """Remove records of agents that have ended, are reaped, and are old or too many."""
        ended = {key: row.updated or 0.0 for key, row in self._ended.items()}
        due = removable_agents(ended, self.core.now(), self.core.settings)[:MAX_PASS_READS]
        problems: dict[str, str] = {}
        await map_noting_problems(
            due, lambda key: self.core.store.delete(key, self._ended[key].version or ""), problems
        )

    def silent(self) -> dict[str, Suspect]:
        """The suspects that a successor must know: agents that owe a heartbeat, and deferred ones."""
        of = self.watched()
        return {n: s for n, s in self._known.items() if n in of and (s.deferred or s.age >= of[n].record.interval)}

    def pools(self) -> dict[str, PoolSummary]:
        """Per pool: its live agents and the one-core tasks they can run at once."""
        views: dict[str, PoolSummary] = {}
        hearing: dict[str, list[AgentRecord]] = {}
        for agent in (agent for agent in self.live().values() if not agent.record.driver):
            view = views.setdefault(agent.record.pool, PoolSummary())
            view.agents += 1
            view.slots = min(view.slots + free_slots(agent.record.capacity), MAX_SAFE_INTEGER)
            if agent.record.hint_endpoint is not None:
                hearing.setdefault(agent.record.pool, []).append(agent.record)
        return {
            pool: replace(view, hint_endpoints=_hint_endpoints(hearing.get(pool, ()))) for pool, view in views.items()
        }

    async def _list(self) -> dict[str, tuple[Listed, float, float]]:
        """Every row by key, with the times when its page was asked for and answered."""
        page = None if self.core.store.local else ROWS_PER_REQUEST
        rows: dict[str, tuple[Listed, float, float]] = {}
        after: str | None = None
        while True:
            asked = self.core.clock.boottime()
            found = await self.core.store.list(AgentKeys.area, after, page, versions=True)
            answered = self.core.clock.boottime()
            rows |= {row.key: (row, asked, answered) for row in found}
            if page is None or len(found) < page:
                return rows
            after = found[-1].key

    async def _read_all(self) -> dict[str, float]:
        """Read what is not known; returns when the listing of each key was asked for."""
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
        """Read changed and new records; those that are very many, or were not answered, in the background."""
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
            self.background.begin(
                UNREAD_AGENTS,
                lambda: map_noting_problems(late, self._read_background, {}, lambda row: row.key, MAX_CONCURRENT_READS),
            )
        await map_noting_problems(
            changed + unknown, self._read_row, self.problems, lambda row: row.key, MAX_CONCURRENT_READS
        )

    async def _read_background(self, row: Listed) -> None:
        """Read it, unless a look has meanwhile."""
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
        """Declare the timed-out agents dead; returns those that are deferred."""
        watched = self.watched()
        timed_out = {name: suspect for name, suspect in seen.items() if has_timed_out(watched[name].record, suspect)}
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


def _hint_endpoints(hearing: Iterable[AgentRecord]) -> list[HintEndpoint]:
    """The hint endpoints of the agents with the most room."""
    chosen = heapq.nlargest(HINT_ENDPOINTS_PER_POOL, hearing, key=lambda agent: (agent.free.cpu, agent.id))
    return [agent.hint_endpoint for agent in chosen if agent.hint_endpoint is not None]
