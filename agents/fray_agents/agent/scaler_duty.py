"""An agent's share in scaling: it looks at the pools that have machines, if nobody else does.

Agents with `--provision` do, and agents on machines: else machines that nobody looks at would be paid for and on. The
latter step back for a while where a pool cannot be looked after from their host, so that another who can may try.
"""

from dataclasses import dataclass, field

from fray_agents.agent.membership import Membership
from fray_agents.provisioning.scaler import Scaler

STEP_BACK_SECONDS = 3600.0
"""For so long an agent on a machine does not try again, after it could not look after some pool."""


@dataclass(slots=True)
class ScalerDuty:
    """Takes part in scaling for one agent.

    Attributes:
        asked: people asked this agent to, so it goes on where a pool has a problem.
    """

    member: Membership
    asked: bool
    _scaler: Scaler = field(init=False)
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._scaler = Scaler(self.member.core, self.member.id)

    async def run(self) -> None:
        """Look whenever it may be due, for ever."""
        core = self.member.core
        try:
            while True:
                with self.member.problems.tolerated("look after the machines of pools"):
                    await self._turn()
                await core.clock.sleep(core.jittered(core.settings.pass_interval))
        finally:
            await self._scaler.close()

    async def _turn(self) -> None:
        clock, scaler = self.member.core.clock, self._scaler
        if self.member.leaving or not self.member.trusts():
            await scaler.resign()
            return
        if clock.boottime() < self._not_before or not await scaler.try_look() or self.asked:
            return
        if scaler.lease is not None and any(pool.problem for pool in scaler.lease.record.pools.values()):
            self._not_before = clock.boottime() + STEP_BACK_SECONDS
            await scaler.resign()
