"""Lets a TPU host take work only while all of its chips are present and no other process uses them.

A process that uses a TPU has all chips of its host, and needs all hosts of its slice. So one chip that is missing or
in use makes the host unfit, and with it the slice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fray_agents.agent.device_patience import lasting_trouble
from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.errors import HostUnfit

CHECK_INTERVAL = 10.0
"""Seconds between two checks of chips that no job uses: a check reads the open files of all processes, some 10 ms."""

CheckChips: TypeAlias = Callable[[], str]
"""Says why the chips of this host cannot be used now, as text for people; "" if they can."""


@dataclass(slots=True)
class ChipWatch:
    """The chips of one agent's host.

    Attributes:
        member: the agent's membership.
        check_chips: None on a host without a TPU.
    """

    member: Membership
    check_chips: CheckChips | None

    async def check_host(self) -> None:
        """Check the chips once, and record whether the host is fit."""
        self._update_problem(await self._trouble())

    async def check(self, task: HeldTask) -> None:
        """Return when no other process uses the chips that the task is about to get.

        Raises:
            HostUnfit: a process does, or chips are missing; the host takes no work while that lasts.
        """
        if not _has_chips(task):
            return
        trouble = await self._lasting_trouble()
        self._update_problem(trouble)
        if trouble:
            raise HostUnfit(trouble)

    async def run(self) -> None:
        """Check the chips while no job uses them, for ever."""
        while True:
            await self.member.core.clock.sleep(CHECK_INTERVAL)
            trouble = "" if self._in_use() else await self._lasting_trouble()
            if not self._in_use():
                self._update_problem(trouble)

    def _in_use(self) -> bool:
        """Whether a job has the chips, or is about to; a job whose processes cannot be killed does not count."""
        tasks = [task for task in self.member.leases.tasks() if _has_chips(task)]
        return any(not task.task.unkilled if task.task else task.starting for task in tasks)

    async def _lasting_trouble(self) -> str:
        return await lasting_trouble(self.member.core.clock, self._trouble)

    async def _trouble(self) -> str:
        return await asyncio.to_thread(self.check_chips) if self.check_chips is not None else ""

    def _update_problem(self, trouble: str) -> None:
        was, self.member.problems.chips = self.member.problems.chips, trouble and f"claims nothing: {trouble}"
        if was != self.member.problems.chips:
            self.member.request_beat()


def _has_chips(task: HeldTask) -> bool:
    return task.shape.device.startswith("tpu")
