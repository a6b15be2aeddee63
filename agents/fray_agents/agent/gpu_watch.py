"""Sees to it that the GPUs that a job gets are free of others, and takes those out that are not."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.errors import HostUnfit
from fray_agents.host.gpus import gpu_names, gpu_variables, gpus_in_trouble

IDLE_PATIENCE = 10.0
"""Seconds for a GPU to be free: the driver takes some to clear the memory of a process that was killed."""

RECHECK_INTERVAL = 60.0
"""Seconds between two looks at GPUs that were taken out: somebody has to end a process, or to reset the GPU."""


@dataclass(slots=True)
class GpuWatch:
    """The GPUs that one agent offers.

    Attributes:
        member: the agent's membership.
        environ: where `PATH` and `CUDA_VISIBLE_DEVICES` are looked for.
        names: what programs call them, by their places.
    """

    member: Membership
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = gpu_names(len(self.member.leases.gpus_left()), self.environ)

    def variables(self, task: HeldTask) -> dict[str, str]:
        """The variables by which the job sees its GPUs and no others; none on a host without GPUs."""
        return gpu_variables([self.names[place] for place in task.gpus]) if self.names else {}

    async def check(self, task: HeldTask) -> None:
        """Return when nobody else uses the job's GPUs, those aside that it shares with other jobs.

        Raises:
            HostUnfit: one is in trouble, and is taken out; or there were none left for the job.
        """
        leases = self.member.leases
        if self.names and task.shape.device and not task.gpus:
            raise HostUnfit("the GPUs of this host have been given to others, or were taken out")
        places = {self.names[place]: place for place in task.gpus if leases.has_alone(task, place)}
        clock = self.member.core.clock
        give_up_at = clock.boottime() + IDLE_PATIENCE
        while trouble := await gpus_in_trouble(list(places), self.environ):
            if clock.boottime() >= give_up_at:
                leases.gpus_out |= {places[name]: why for name, why in trouble.items()}
                self._tell()
                raise HostUnfit("; ".join(f"GPU {name} is taken out: {why}" for name, why in trouble.items()))
            await clock.sleep(0.5)

    async def run(self) -> None:
        """Offer GPUs again that were taken out and are free now, for ever."""
        leases = self.member.leases
        while True:
            await self.member.core.clock.sleep(RECHECK_INTERVAL)
            if leases.gpus_out:
                places = {self.names[place]: place for place in leases.gpus_out}
                trouble = await gpus_in_trouble(list(places), self.environ)
                leases.gpus_out = {places[name]: why for name, why in trouble.items()}
                leases.changed.set()
                self._tell()

    def _tell(self) -> None:
        out = self.member.leases.gpus_out.items()
        self.member.problems.gpus = "; ".join(f"GPU {self.names[place]} is taken out: {why}" for place, why in out)
        self.member.request_beat()
