"""The pool's plan, as one agent reads it: which owners of placements it should look at. A hint, written by the pass."""

from __future__ import annotations

from dataclasses import dataclass

from fray_agents.agent.membership import Membership
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import PoolPlan

RETRY_POLLS = 5
"""Poll intervals after which a plan is read again that could not be: as far apart as an idle agent's looks for work."""


@dataclass(slots=True)
class PlanReader:
    """Reads the plan when the pool's doorbell rang, and on the repair interval: a ring may be lost.

    due_at: boot time of the next read.
    """

    member: Membership
    due_at: float = 0.0
    _version: Version | None = None

    async def read(self) -> list[str]:
        """The keys of the owners that the agent should read; [] if the plan is what it was, or none."""
        core, begun = self.member.core, self.member.core.clock.boottime()
        again = self.due_at = begun + core.jittered(RETRY_POLLS * core.settings.poll_interval)
        answer = await core.store.get_if_changed(PoolKeys.plan(self.member.record.pool), self._version, patience=0.0)
        if self.due_at == again:  # it did not ring meanwhile
            self.due_at = begun + core.jittered(core.settings.repair_interval)
        if answer is None or isinstance(answer, NotModified):
            return []
        self._version = answer.version
        try:
            return codec.decode(answer.data, PoolPlan).record.owners.get(self.member.id, [])
        except Malformed as error:
            self.member.problems.warnings.warn("%s is no plan: %s", PoolKeys.plan(self.member.record.pool), error)
            return []
