"""An agent's share in scaling: it manages pools that have machines, if no other process does.

Agents with `--provision` manage the pools that it names, and agents on machines manage all: otherwise machines that
nobody manages would cost money for ever.
"""

from dataclasses import dataclass, field

from fray_agents.agent.membership import Membership
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.protocol.scaling.scope import ScalingScope


@dataclass(slots=True)
class ScalerLoop:
    """Takes part in scaling for one agent.

    Attributes:
        scope: the pools that the agent may scale.
        asked: people asked this agent to scale, so it goes on even if a provider denies it something.
    """

    member: Membership
    scope: ScalingScope
    asked: bool
    _scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        self._scaler = Scaler(self.member.core, self.member.id, self.scope, steps_back=not self.asked)

    async def run(self) -> None:
        """Scale whenever it may be due, for ever."""
        core = self.member.core
        try:
            while True:
                with self.member.problems.tolerated("look after the machines of pools"):
                    if self.member.leaving or not self.member.trusts():
                        await self._scaler.resign()
                    else:
                        await self._scaler.run_if_elected()
                await core.clock.sleep(core.jittered(core.settings.pass_interval))
        finally:
            await self._scaler.close()

    async def run_once_more(self) -> None:
        """Scale once more after this agent left, unless another process does: the last machine has to be deleted."""
        core, scaler = self.member.core, self._scaler
        try:
            for _ in range(LEASE_INTERVALS + 2):  # by then the lease of a dead holder is free
                if await scaler.run_if_elected() or scaler.has_stepped_back:
                    break
                await core.clock.sleep(core.settings.pass_interval)
            await scaler.resign()
        finally:
            await scaler.close()
