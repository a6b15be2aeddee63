"""Makes an agent leave that has had no work for a while, because its host is paid for by the second."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fray_agents.agent.membership import Membership

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
