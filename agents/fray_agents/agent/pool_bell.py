"""The doorbell of an agent's pool: whether there is a new job in the index, or a new plan of placements.

An agent reads it often and cheaply, but more rarely in a large fleet, where some agent always polls soon.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fray_agents.agent.membership import Membership
from fray_coordinator.store.interface import NotModified, Version
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import Doorbell


@dataclass(slots=True)
class PoolBell:
    """One agent's view of the doorbell.

    Attributes:
        member: the agent's membership.
        on_ring: called when it has rung, for whatever reason.
        rang_for_jobs: it has rung since the index was last listed, and not only because of a new plan.
    """

    member: Membership
    on_ring: Callable[[], None]
    rang_for_jobs: bool = False
    _version: Version | None = None

    async def poll(self) -> None:
        """Read the doorbell; if that fails, the index and the plan are still read on the repair interval."""
        answer = None
        with self.member.problems.tolerated("read the doorbell"):
            answer = await self.member.core.store.get_if_changed(
                PoolKeys.doorbell(self.member.record.pool), self._version, patience=0.0
            )
        if answer is None or isinstance(answer, NotModified):
            return
        bell = _bell(answer.data)
        if bell.cluster != self.member.core.settings.cluster_id:
            self.member.core.store.suspect_root()
        self.rang_for_jobs |= self._version is None or bell.replaces != self._version
        self._version = answer.version
        self.on_ring()


def _bell(data: bytes) -> Doorbell:
    """The bell; an empty one, which is a ring for jobs, if anything else lies there."""
    try:
        return codec.decode(data, Doorbell).record
    except Malformed:
        return Doorbell()
