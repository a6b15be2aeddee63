"""The agents as the scheduler of placements knows them: from the last read of all of them, or read since."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.placements.owner_table import MAX_CONCURRENT_READS
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced, max_interval
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Suspect


@dataclass(slots=True)
class AgentTable:
    """Reads the records of those agents that matter for a decision now.

    Attributes:
        seen: by id, the agents that have not ended, from the last read of all of them.
        suspects: by id, the agents whose heartbeat is overdue.
        problems: by key, the errors of the last reads.
    """

    core: Core
    seen: Callable[[], Mapping[str, Stored[AgentRecord]]]
    suspects: Callable[[], Mapping[str, Suspect]]
    problems: dict[str, str] = field(default_factory=dict)
    _read: dict[str, Stored[AgentRecord] | None] = field(default_factory=dict)

    def records(self) -> dict[str, AgentRecord]:
        """By id, the agents that have not ended, each as last read."""
        return {agent: stored.record for agent, stored in self._newest().items()}

    def silent(self) -> set[str]:
        """The agents whose heartbeat is overdue."""
        newest = self._newest()
        return {a for a, suspect in self.suspects().items() if a in newest and newest[a].record.beat == suspect.beat}

    def unobserved(self) -> set[str]:
        """The agents that were read here and that the last observation lacks: they have joined since, or have ended."""
        return {a for a, stored in self._read.items() if stored and not is_fenced(stored.record)} - self.seen().keys()

    async def read(self, agents: Iterable[str]) -> None:
        """Read these agents' records now."""
        known = self._newest()
        self.problems = {}

        async def read(agent: str) -> None:
            before = known.get(agent)
            if before is not None:
                self._read[agent] = await self.core.records.reread(before, one_of_many=True)
            else:
                self._read[agent] = await self.core.records.read(AgentKeys.key(agent), AgentRecord, one_of_many=True)

        await map_noting_problems(sorted(set(agents)), read, self.problems, AgentKeys.key, MAX_CONCURRENT_READS)

    async def read_changed(self) -> None:
        """Read the records of all agents that may be alive and have changed since they were last read."""
        known = self._newest()
        rows = {AgentKeys.parse(row.key): row for row in await self.core.store.list(AgentKeys.area, versions=True)}
        oldest = self.core.now() - DEATH_INTERVALS * max_interval(self.core.settings)
        changed = [
            name
            for name, row in rows.items()
            if name is not None
            and (row.version != known[name].version if name in known else (row.updated or oldest) >= oldest)
        ]
        await self.read(changed)

    def forget_all_but(self, agents: Collection[str]) -> None:
        """Forget what was read of all other agents, and their errors; the next pass reads them anyway."""
        self._read = {agent: stored for agent, stored in self._read.items() if agent in agents}
        self.problems = {key: problem for key, problem in self.problems.items() if AgentKeys.parse(key) in agents}

    def _newest(self) -> dict[str, Stored[AgentRecord]]:
        newest = dict(self.seen())
        for agent, stored in self._read.items():
            if stored is None or is_fenced(stored.record):
                newest.pop(agent, None)
            elif agent not in newest or newest[agent].record.beat <= stored.record.beat:
                newest[agent] = stored
        return newest
