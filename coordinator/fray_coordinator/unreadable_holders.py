"""Agents that have jobs by the jobs' records, and whose own records cannot be read.

Invariant: what such an agent holds ends with it, or is put back.
Unsafe: a job is put back because its holder's record is garbage, while the holder runs it; or the record is repaired,
and the holder, which had only missed a beat, goes on under it.
Why not here: an agent that cannot read its own record cannot beat, so its trust runs out, and it ends. After that the
record is replaced by a dead agent's, on condition of the version that has lain there since: under that no beat follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.protocol.death import is_silent_for_good, written_off
from fray_coordinator.store.api import Object
from fray_layouts import codec
from fray_layouts.names import Agents


@dataclass(slots=True)
class UnreadableHolders:
    """What one participant has seen of them: by key, the version that lies there, and since when (boot time)."""

    core: Core
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _before: dict[str, tuple[str, float]] = field(default_factory=dict)

    def begin(self) -> None:
        """A round of looks begins; what the last one did not come upon is forgotten."""
        self._before, self._seen = self._seen, {}

    async def look(self, agent: str) -> None:
        """Look at the agent's record once more, and write the agent off if that has not changed for long enough."""
        key = Agents.key(agent)
        lies, now = await self.core.store.get(key, one_of_many=True), self.core.clock.boottime()
        if lies is None:
            return
        version, since = self._before.get(key, ("", now))
        self._seen[key] = first = (lies.version, since if version == lies.version else now)
        if is_silent_for_good(now - first[1], self.core.settings):
            await write_off(self.core, agent, lies)


async def write_off(core: Core, agent: str, lies: Object) -> None:
    """Replace what lies where the agent's record should by a dead agent's record, unless it has changed."""
    op = core.chance.token(16)
    dead = codec.successor(written_off(agent), op, None)
    await core.store.put(Agents.key(agent), codec.encode(dead), lies.version, op)
