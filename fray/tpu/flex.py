"""The choice among several numbers of slices: the largest that there is, and another one when that changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fray_coordinator.protocol.placements.hosts import HostView, host_view
from fray_coordinator.protocol.placements.packing import is_whole_slice, newest_workers
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord

LOOK_INTERVAL = 10.0
"""Seconds between two looks at the slices: each reads every agent's record."""

LOOKS_BEFORE_CHANGE = 3
"""Looks in a row that see the same better number: a slice that was lost may be back, and a restart costs minutes."""


def best_count(counts: Iterable[int], available: int) -> int:
    """The largest acceptable number of slices that are available; the smallest acceptable one if none is."""
    ordered = sorted(counts)
    return max((count for count in ordered if count <= available), default=ordered[0])


def available_slices(agents: Iterable[AgentRecord], tpu_type: str, job: str, pool: str = "default") -> int:
    """The whole slices of a type that a job has or could have at once.

    Args:
        agents: those that live.
        job: the job's id; what its agents hold for it is in nobody's way.
        pool: of the job; "~" and an id: the hosts of that reservation.
    """
    reservation = ReservationKeys.of_pool(pool)
    known = {agent.id: agent for agent in agents if _is_in(agent, pool, reservation)}
    hosts = (host_view(agent, {}) for agent in known.values())
    slices = newest_workers(host for host in hosts if host.slice is not None and host.slice.type == tpu_type)

    def is_free(host: HostView) -> bool:
        agent = known[host.agent]
        return host.willing and agent.holdings.keys() <= {job, reservation}

    return sum(is_whole_slice(workers) and all(map(is_free, workers.values())) for workers in slices.values())


def _is_in(agent: AgentRecord, pool: str, reservation: str) -> bool:
    return reservation in agent.holdings if reservation else agent.pool == pool


@dataclass(slots=True)
class FlexChoice:
    """Whether a job should go on with another number of slices.

    Attributes:
        counts: the acceptable numbers.
        current: the one that the job has or waits for.
    """

    counts: Sequence[int]
    current: int
    _wanted: int = 0
    _looks: int = 0

    def look(self, available: int, runs: bool) -> int:
        """Take note of how many slices there are; the number to go on with, which is `current` unless it should change.

        Args:
            runs: the job runs, so that fewer slices are no reason to change anything.
        """
        wanted = best_count(self.counts, available)
        if wanted == self.current or (runs and wanted < self.current):
            self._looks = 0
            return self.current
        self._looks = self._looks + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        return wanted if self._looks >= LOOKS_BEFORE_CHANGE else self.current
