"""People who look after a cluster and its jobs: they retry, repair, set time limits and places, and drop children.

They come in a share of the seeds, and everything about them is drawn from sources of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.jobs.job_archive import find_record
from fray_coordinator.jobs.submission import retry, retry_obstacles
from fray_coordinator.placements.launching import outside_of_ended
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_layouts.work_keys import InboxKeys
from tests.simulation.scenario import Habits, Plan
from tests.simulation.users import User
from tests.simulation.work import drawn_placed, drawn_spec

if TYPE_CHECKING:
    from tests.simulation.world import World

USUAL = {
    "submit_timed": 4.0,
    "submit_placed": 4.0,
    "drop_child": 3.0,
    "retry_one": 4.0,
    "retry_failed": 0.5,
    "repair": 1.0,
}
"""How often they do each of these things, as weights."""

SHARE = 0.5
"""Share of the seeds that have an operator."""

PARENT_IS_PREEMPTED = 0.3
"""Share of the dropped children whose parent's agent gets a SIGTERM at the same time."""


@dataclass(frozen=True, slots=True)
class Upkeep(Plan):
    """The actions of operators. pause: average seconds between two actions of an operator."""

    operators: int
    pause: float
    habits: Habits

    @staticmethod
    def drawn(draw: random.Random, usual: dict[str, float]) -> Upkeep:
        """Draw it. usual: like `USUAL`; empty for a world without operators."""
        operators = int(bool(usual) and draw.random() < SHARE)
        return Upkeep(operators, pause=draw.uniform(3, 20), habits=Habits.drawn(draw, usual))


class Operator(User):
    """One such person, who works with the jobs of all users."""

    def __init__(self, world: World, name: str, core: Core, draw: random.Random) -> None:
        super().__init__(world, name, core, draw)
        self.ways = world.upkeep

    async def submit_timed(self) -> None:
        """Submit a job with a time limit. It often hangs until then."""
        spec = drawn_spec(self.draw, "timed")
        spec |= {"timeout": self.draw.uniform(5, 60), "max_retries_failure": self.draw.randint(0, 2)}
        await self._submit(spec)

    async def submit_placed(self) -> None:
        """Submit a job that may run on some hosts only."""
        await self._submit(drawn_placed(self.draw))

    async def drop_child(self) -> None:
        """Drop a file that names a parent, which has just lost its agent now and then."""
        parents = [job for job in self.world.watching.jobs.values() if job.status not in TERMINAL and not job.driver]
        if not parents:
            return
        parent = self.draw.choice(parents[-20:])
        self._serial += 1
        if parent.lease is not None and self.draw.random() < PARENT_IS_PREEMPTED:
            self.world.terminate(parent.lease.agent)
        await self._copy(InboxKeys.key(f"{self.name}-{self._serial}"), {**self._bare(), "parent": parent.id})

    async def retry_one(self) -> None:
        """Submit a job again, like `fray retry JOB`. It may not have ended yet; then it is refused."""
        jobs = list(self.world.watching.jobs.values())[-40:]
        ended = [job.id for job in jobs if job.status in TERMINAL]
        if self.draw.random() < 0.2:
            ended = [job.id for job in jobs]
        found = await find_record(self.core, self.draw.choice(ended)) if ended else None
        if found is not None:
            for job in await retry(self.core, [await outside_of_ended(self.core, found.record)]):
                self.world.submitted(job, found=False)

    async def retry_failed(self) -> None:
        """Submit all failed jobs again that can be, like `fray retry --failed`; each once."""
        jobs = list(self.world.watching.jobs.values())
        again = {job.retry_of for job in jobs}
        failed = [job for job in jobs if job.status == Status.FAILED and job.id not in again]
        failed = [found.record for job in failed[-5:] if (found := await find_record(self.core, job.id)) is not None]
        obstacles = await retry_obstacles(self.core, failed)
        wanted = [await outside_of_ended(self.core, job) for job in failed if job.id not in obstacles]
        for job in await retry(self.core, wanted):
            self.world.submitted(job, found=False)

    async def repair(self) -> None:
        """Run `fray fsck --repair`."""
        await fsck.repair(self.core)

    def _bare(self) -> dict[str, Any]:
        """The spec of a job that ends by itself or with its parent."""
        return {**self._spec(self.draw), "resources": {"cpu": 0.5}}
