"""An agent's share in scaling: it looks at the pools that have machines, if nobody else does.

Agents with `--provision` do, and agents on machines: else machines that nobody looks at would be paid for and on.
"""

from dataclasses import dataclass, field

from fray_agents.agent.membership import Membership
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS


@dataclass(slots=True)
class ScalerDuty:
    """Takes part in scaling for one agent.

    Attributes:
        asked: people asked this agent to, so it goes on where a provider denies it something.
    """

    member: Membership
    asked: bool
    _scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        self._scaler = Scaler(self.member.core, self.member.id, steps_back=not self.asked)

    async def run(self) -> None:
        """Look whenever it may be due, for ever."""
        core = self.member.core
        try:
            while True:
                with self.member.problems.tolerated("look after the machines of pools"):
                    if self.member.leaving or not self.member.trusts():
                        await self._scaler.resign()
                    else:
                        await self._scaler.try_look()
                await core.clock.sleep(core.jittered(core.settings.pass_interval))
        finally:
            await self._scaler.close()

    async def look_last(self) -> None:
        """Look after this agent has left, unless another process is at it: nobody else deletes the last machine."""
        core, scaler = self.member.core, self._scaler
        try:
            for _ in range(LEASE_INTERVALS + 2):  # by then a dead holder's lease is free
                if await scaler.try_look() or scaler.has_stepped_back:
                    break
                await core.clock.sleep(core.settings.pass_interval)
            await scaler.resign()
        finally:
            await scaler.close()
