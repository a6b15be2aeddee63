"""What an agent does about machines: it manages pools if nobody else does, and leaves its own when it is idle.

Agents with `--provision` manage the pools that it names, and agents on machines manage all: otherwise machines that
nobody manages would cost money for ever.

An agent on a machine leaves when it has had no work for a while, because its host is paid for by the second.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fray_agents.agent.membership import Membership
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.protocol.scaling.provisioning import ScalingScope


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


log = logging.getLogger("fray")

CHECK_INTERVAL = 1.0
"""Seconds between two checks of what the agent holds; they make no requests to the storage."""


@dataclass(frozen=True, slots=True)
class IdleExit:
    """Makes an agent leave when it is idle.

    Attributes:
        member: the agent's membership.
        seconds: idle time, without anything that its heartbeat would list; votes for gangs count as work.
        leave: ends the agent, as a signal does.
    """

    member: Membership
    seconds: float
    leave: Callable[[], None]

    async def run(self) -> None:
        """Watch for ever; the agent ends this as it ends."""
        clock = self.member.core.clock
        idle_since = clock.boottime()
        while True:
            await clock.sleep(CHECK_INTERVAL)
            if self.member.leases.lists_any():
                idle_since = clock.boottime()
            elif clock.boottime() - idle_since >= self.seconds and not self.member.leaving:
                log.info("has had no work for %g s", self.seconds)
                self.leave()
