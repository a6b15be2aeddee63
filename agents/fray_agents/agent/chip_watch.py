"""Sees to it that a TPU host takes work only while all of its chips are there, and nobody else uses them.

A process that uses a TPU has all chips of its host, and needs all hosts of its slice. So one chip that is missing or
held makes the host unfit, and with it the slice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.errors import HostUnfit

IDLE_PATIENCE = 10.0
"""Seconds for chips to be free: the driver takes some to let go of a process that was killed, tools look briefly."""

LOOK_INTERVAL = 10.0
"""Seconds between two looks at chips that no job uses: a look reads what all processes have open, some 10 ms."""

LookAtChips: TypeAlias = Callable[[], str]
"""Says why the chips of this host cannot be used now, for people; "" if they can."""


@dataclass(slots=True)
class ChipWatch:
    """The chips of one agent's host.

    Attributes:
        member: the agent's membership.
        look_at_chips: None on a host without a TPU.
    """

    member: Membership
    look_at_chips: LookAtChips | None

    async def look(self) -> None:
        """Note whether the host is fit, as the chips are at this moment."""
        self._note(await self._trouble())

    async def check(self, task: HeldTask) -> None:
        """Return when nobody uses the chips that the task is about to have.

        Raises:
            HostUnfit: somebody does, or some are missing; the host takes no work while that lasts.
        """
        if not _has_chips(task):
            return
        trouble = await self._lasting_trouble()
        self._note(trouble)
        if trouble:
            raise HostUnfit(trouble)

    async def run(self) -> None:
        """Look at the chips while no job uses them, for ever."""
        while True:
            await self.member.core.clock.sleep(LOOK_INTERVAL)
            trouble = "" if self._in_use() else await self._lasting_trouble()
            if not self._in_use():
                self._note(trouble)

    def _in_use(self) -> bool:
        """Whether a job has them, or is about to; one whose processes cannot be killed only keeps others off."""
        tasks = [task for task in self.member.leases.tasks() if _has_chips(task)]
        return any(not task.task.unkilled if task.task else task.starting for task in tasks)

    async def _lasting_trouble(self) -> str:
        """What is wrong with the chips, and does not end soon."""
        clock = self.member.core.clock
        give_up_at = clock.boottime() + IDLE_PATIENCE
        while (trouble := await self._trouble()) and clock.boottime() < give_up_at:
            await clock.sleep(0.5)
        return trouble

    async def _trouble(self) -> str:
        return await asyncio.to_thread(self.look_at_chips) if self.look_at_chips is not None else ""

    def _note(self, trouble: str) -> None:
        was, self.member.problems.chips = self.member.problems.chips, trouble and f"claims nothing: {trouble}"
        if was != self.member.problems.chips:
            self.member.request_beat()


def _has_chips(task: HeldTask) -> bool:
    return task.shape.device.startswith("tpu")
