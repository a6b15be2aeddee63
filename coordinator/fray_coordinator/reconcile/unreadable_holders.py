"""Handles agents that hold jobs, by the jobs' records, but whose own records cannot be read.

**Invariant.** The jobs that such an agent holds end with it, or are requeued.

**Unsafe sequence.** A job is requeued because its holder's record is garbage, while the holder still runs it. Or the
record is repaired, and the holder, which had only missed a beat, continues with the new record.

**Why this cannot happen.** An agent that cannot read its own record cannot beat, so its trust runs out and it ends.
Only after that is its record replaced by a dead agent's, on condition of the version that has been there since. After
that replacement no beat of the agent can be applied.
"""

from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.protocol.failure_detection import is_lost, lost_agent
from fray_coordinator.store.interface import Object
from fray_layouts.object_keys import AgentKeys


@dataclass(slots=True)
class UnreadableHolders:
    """Remembers unreadable holders: by key, the present version, and the boot time since when it is there."""

    core: Core
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _before: dict[str, tuple[str, float]] = field(default_factory=dict)

    def start_run(self) -> None:
        """Start a run of the repair; forget holders that the previous run did not meet."""
        self._before, self._seen = self._seen, {}

    async def check(self, agent: str) -> None:
        """Read the agent's record again, and write the agent off if the record has not changed for long enough."""
        key = AgentKeys.key(agent)
        present, now = await self.core.store.get(key, one_of_many=True), self.core.clock.boottime()
        if present is None:
            return
        version, since = self._before.get(key, ("", now))
        self._seen[key] = first = (present.version, since if version == present.version else now)
        if is_lost(now - first[1], self.core.settings):
            await write_off(self.core, agent, present)


async def write_off(core: Core, agent: str, present: Object) -> None:
    """Replace the agent's unreadable record by that of a dead agent, unless it has changed."""
    await core.records.put(AgentKeys.key(agent), lost_agent(agent), present.version)
