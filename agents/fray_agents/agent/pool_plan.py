"""The pool's plan, as one agent reads it: which owners of placements it should read.

The pass writes it, as a hint only.
"""

from __future__ import annotations

from dataclasses import dataclass

from fray_agents.agent.membership import Membership
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import PoolPlan

RETRY_POLLS = 5
"""Poll intervals after which a failed read of the plan is repeated: as rare as an idle agent's polls for work."""


@dataclass(slots=True)
class PlanReader:
    """Reads the plan when the pool's doorbell has rung, and on the repair interval, because a ring may be lost.

    due_at: boot time of the next read.
    """

    member: Membership
    due_at: float = 0.0
    _version: Version | None = None

    async def read(self) -> list[str]:
        """The keys of the owners that the agent should read; [] if the plan has not changed, or there is none."""
        core, begun = self.member.core, self.member.core.clock.boottime()
        again = self.due_at = begun + core.jittered(RETRY_POLLS * core.settings.poll_interval)
        answer = await core.store.get_if_changed(PoolKeys.plan(self.member.record.pool), self._version, patience=0.0)
        if self.due_at == again:  # the doorbell did not ring meanwhile
            self.due_at = begun + core.jittered(core.settings.repair_interval)
        if answer is None or isinstance(answer, NotModified):
            return []
        self._version = answer.version
        try:
            return codec.decode(answer.data, PoolPlan).record.owners.get(self.member.id, [])
        except Malformed as error:
            self.member.problems.warnings.warn("%s is not a plan: %s", PoolKeys.plan(self.member.record.pool), error)
            return []
