"""Watching the agents: who is silent, for how long, who is dead. What that means is decided in `protocol.death`."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator import burial
from fray_coordinator.core import Core, each, each_sound
from fray_coordinator.protocol.death import doomed, needs_burial, observe, spare_the_many
from fray_coordinator.protocol.retention import agent_is_due
from fray_coordinator.protocol.schedule import slots
from fray_coordinator.records import Stored
from fray_coordinator.store.api import Listed
from fray_layouts.names import Agents
from fray_layouts.records import AgentRecord, Ear, PoolView, Suspect

READS_AT_ONCE = 64
"""A look at a large fleet reads hundreds of records for each second since the last, and must not let the lease age."""

EARS = 3
"""Agents of each pool whom submitters may tell."""


@dataclass(slots=True)
class Watch:
    """One observer. It keeps each agent's record as last read, and when that was.

    Attributes:
        problems: what went wrong in the last look, by key.
        someone_died: an agent that lived at the look before the last is dead.
    """

    core: Core
    agents: dict[str, Stored[AgentRecord]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    someone_died: bool = False
    _known: dict[str, Suspect] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)

    def live(self) -> dict[str, Stored[AgentRecord]]:
        """The agents that are not known to be dead or gone, by id."""
        return {name: agent for name, agent in self.agents.items() if agent.record.state == "live"}

    async def look(self, suspects: Mapping[str, Suspect]) -> dict[str, Suspect]:
        """Read every agent's record once, declare and bury the dead, and tell what is now known of the others.

        A row of a listing that shows the known version is a successful read. Each agent's age is counted from the end
        of one read of its record to the begin of the next look, which is never more than the time between what the two
        saw. (From the end of one look to the begin of the next would be too little: a look at many agents takes long.)
        """
        self.problems = {}
        begun, read_at = self.core.clock.boottime(), self._read_at
        lived = self.live().keys()
        await self._read_all()
        seen = {
            name: observe(
                agent.record,
                self._known.get(name),
                suspects.get(name),
                begun - read_at[name] if name in read_at else None,
            )
            for name, agent in self.live().items()
        }
        seen |= await self._judge(seen)
        self.someone_died = any(self.agents[name].record.state == "dead" for name in lived & self.agents.keys())
        dead = [agent for agent in self.agents.values() if needs_burial(agent.record)]
        await each_sound(dead, lambda agent: burial.bury(self.core, agent), self.problems, lambda agent: agent.key)
        await self._forget_old()
        live = self.live()
        self._known = {name: suspect for name, suspect in seen.items() if name in live}
        return self._known

    def silent(self) -> dict[str, Suspect]:
        """What a successor must know: of those who owe a beat, and of the spared."""
        live = self.live()
        return {n: s for n, s in self._known.items() if n in live and (s.spared or s.age >= live[n].record.interval)}

    def pools(self) -> dict[str, PoolView]:
        """Per pool: its live agents and the one-core tasks they can run at once."""
        views: dict[str, PoolView] = {}
        for agent in self.live().values():
            view = views.setdefault(agent.record.pool, PoolView())
            view.agents += 1
            view.slots += slots(agent.record.capacity)
        return {pool: replace(view, ears=self._ears(pool)) for pool, view in views.items()}

    def _ears(self, pool: str) -> list[Ear]:
        """Those of the agents with the most room."""
        hearing = [a.record for a in self.live().values() if a.record.pool == pool and a.record.ear is not None]
        chosen = heapq.nlargest(EARS, hearing, key=lambda agent: (agent.free.cpu, agent.id))
        return [agent.ear for agent in chosen if agent.ear is not None]

    async def _read_all(self) -> None:
        rows = await self.core.store.list(Agents.prefix, versions=True)
        listed_at = self.core.clock.boottime()
        named = [row for row in rows if Agents.parse(row.key)]
        fresh = await each_sound(
            named, lambda row: self._read_row(row, listed_at), self.problems, lambda row: row.key, READS_AT_ONCE
        )
        self.agents = {agent.record.id: agent for agent, _ in fresh if agent is not None}
        self._read_at = {agent.record.id: read_at for agent, read_at in fresh if agent is not None}

    async def _read_row(self, row: Listed, listed_at: float) -> tuple[Stored[AgentRecord] | None, float]:
        """The agent's record, and when it was known to be that."""
        known = self.agents.get(Agents.parse(row.key) or "")
        if known is not None and known.version == row.version:
            return known, listed_at
        return await self.core.records.read(row.key, AgentRecord), self.core.clock.boottime()

    async def _judge(self, seen: Mapping[str, Suspect]) -> dict[str, Suspect]:
        """Declare the doomed dead; returns those who are spared for now."""
        live = self.live()
        guilty = {name: suspect for name, suspect in seen.items() if doomed(live[name].record, suspect)}
        spared = spare_the_many(guilty, len(live))
        for name in guilty.keys() - spared.keys():
            killed = await burial.kill(self.core, live[name])
            if killed is not None:
                self.agents[name] = killed
        return spared

    async def _forget_old(self) -> None:
        now, settings = self.core.now(), self.core.settings
        old = [a for a in self.agents.values() if agent_is_due(a.record, a.updated, now, settings)]
        await each(old, lambda agent: self.core.store.delete(agent.key, agent.version))
