"""Agents that have jobs by the jobs' records, and whose own records cannot be read.

**Invariant.** What such an agent holds ends with it, or is put back.

**Unsafe sequence.** A job is put back because its holder's record is garbage, while the holder runs it; or the record
is repaired, and the holder, which had only missed a beat, goes on under it.

**Why this cannot happen.** An agent that cannot read its own record cannot beat, so its trust runs out, and it ends.
After that the record is replaced by a dead agent's, on condition of the version that has lain there since: under that
no beat follows.
"""

from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.protocol.failure_detection import is_lost, lost_agent
from fray_coordinator.store.interface import Object
from fray_layouts.object_keys import AgentKeys


@dataclass(slots=True)
class UnreadableHolders:
    """Remembers unreadable holders: by key, the version that is there, and since when (boot time)."""

    core: Core
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _before: dict[str, tuple[str, float]] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a round; holders that the last one did not meet are forgotten."""
        self._before, self._seen = self._seen, {}

    async def look(self, agent: str) -> None:
        """Look at the agent's record once more, and write the agent off if that has not changed for long enough."""
        key = AgentKeys.key(agent)
        present, now = await self.core.store.get(key, one_of_many=True), self.core.clock.boottime()
        if present is None:
            return
        version, since = self._before.get(key, ("", now))
        self._seen[key] = first = (present.version, since if version == present.version else now)
        if is_lost(now - first[1], self.core.settings):
            await write_off(self.core, agent, present)


async def write_off(core: Core, agent: str, present: Object) -> None:
    """Replace the agent's unreadable record by a dead agent's, unless it has changed."""
    await core.records.put(AgentKeys.key(agent), lost_agent(agent), present.version)
