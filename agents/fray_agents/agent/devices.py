"""The accelerators of a host: an agent takes work for them only while no other process uses them.

It waits for accelerators that another process uses, and takes them out of service if that lasts.

A process that uses a TPU has all chips of its host, and needs all hosts of its slice. So one chip that is missing or in
use makes the host unfit, and with it the slice.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.cache import HostUnfit
from fray_agents.host.accelerators import gpu_names, gpu_variables, gpus_in_trouble
from fray_coordinator.clock import Clock

T = TypeVar("T")

IDLE_PATIENCE = 10.0
"""Seconds to wait for free devices: a driver needs some to clean up after a killed process, and tools open TPU chips
briefly."""

BUSY_RECHECK_INTERVAL = 0.5
"""Seconds between two checks within `IDLE_PATIENCE`: a check of TPU chips takes some 10 ms, and one of GPUs runs
nvidia-smi twice."""


async def lasting_trouble(clock: Clock, check: Callable[[], Awaitable[T]]) -> T:
    """Repeat a check until it finds no trouble, at most for `IDLE_PATIENCE`; returns what the last check found.

    check: returns what is wrong with the devices; something empty if they can be used.
    """
    give_up_at = clock.boottime() + IDLE_PATIENCE
    while (trouble := await check()) and clock.boottime() < give_up_at:
        await clock.sleep(BUSY_RECHECK_INTERVAL)
    return trouble


CHIP_CHECK_INTERVAL = 10.0
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
            await self.member.core.clock.sleep(CHIP_CHECK_INTERVAL)
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


OUT_RECHECK_INTERVAL = 60.0
"""Seconds between two checks of GPUs that were taken out: somebody has to end a process or reset the GPU."""


@dataclass(slots=True)
class GpuWatch:
    """The GPUs that one agent offers.

    Attributes:
        member: the agent's membership.
        environ: the environment whose `PATH` and `CUDA_VISIBLE_DEVICES` count.
        names: the names that programs use for the GPUs, in the order of their places.
    """

    member: Membership
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = gpu_names(len(self.member.leases.gpus_left()), self.environ)

    def variables(self, task: HeldTask) -> dict[str, str]:
        """The variables that make exactly the job's GPUs visible to it; none on a host without GPUs."""
        return gpu_variables([self.names[place] for place in task.gpus]) if self.names else {}

    async def check(self, task: HeldTask) -> None:
        """Return when no other process uses the job's GPUs; GPUs that it shares with other jobs are not checked.

        Raises:
            HostUnfit: a GPU is in use or broken, and is taken out; or no GPUs were left for the job.
        """
        leases = self.member.leases
        if self.names and task.shape.device and not task.gpus:
            raise HostUnfit("the GPUs of this host have been given to others, or were taken out")
        places = {self.names[place]: place for place in task.gpus if leases.has_alone(task, place)}
        trouble = await lasting_trouble(self.member.core.clock, lambda: gpus_in_trouble(list(places), self.environ))
        if trouble:
            leases.gpus_out |= {places[name]: why for name, why in trouble.items()}
            self._report_taken_out()
            raise HostUnfit("; ".join(f"GPU {name} is taken out: {why}" for name, why in trouble.items()))

    async def run(self) -> None:
        """Offer GPUs that were taken out again once they are free, for ever."""
        leases = self.member.leases
        while True:
            await self.member.core.clock.sleep(OUT_RECHECK_INTERVAL)
            if leases.gpus_out:
                places = {self.names[place]: place for place in leases.gpus_out}
                trouble = await gpus_in_trouble(list(places), self.environ)
                leases.gpus_out = {places[name]: why for name, why in trouble.items()}
                leases.changed.set()
                self._report_taken_out()

    def _report_taken_out(self) -> None:
        out = self.member.leases.gpus_out.items()
        self.member.problems.gpus = "; ".join(f"GPU {self.names[place]} is taken out: {why}" for place, why in out)
        self.member.request_beat()
