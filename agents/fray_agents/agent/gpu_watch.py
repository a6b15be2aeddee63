"""Makes sure that no other process uses a job's GPUs, and takes GPUs out of service that are in use."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_agents.agent.device_patience import lasting_trouble
from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.errors import HostUnfit
from fray_agents.host.gpus import gpu_names, gpu_variables, gpus_in_trouble

RECHECK_INTERVAL = 60.0
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
            await self.member.core.clock.sleep(RECHECK_INTERVAL)
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
