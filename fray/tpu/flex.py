"""Chooses among several acceptable numbers of slices: the largest that is available, and another when that changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fray_coordinator.protocol.placements.hosts import HostView, host_view
from fray_coordinator.protocol.placements.packing import is_whole_slice, newest_workers
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord

CHECK_INTERVAL = 10.0
"""Seconds between two checks of the available slices. Each check reads every agent's record."""

CHECKS_BEFORE_CHANGE = 3
"""Checks in a row that must find the same better number before it is used: a lost slice may come back soon, and a
restart costs minutes."""


def best_count(counts: Iterable[int], available: int) -> int:
    """The largest acceptable number that is available; the smallest acceptable number if none of them is."""
    ordered = sorted(counts)
    return max((count for count in ordered if count <= available), default=ordered[0])


def available_slices(agents: Iterable[AgentRecord], tpu_type: str, job: str, pool: str = "default") -> int:
    """The number of whole slices of a type that a job has or could have at once.

    Args:
        agents: the living agents.
        job: the job's id. Slices that are held for it count as available.
        pool: the job's pool; "~" and a reservation's id for the hosts of that reservation.
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
    """Decides whether a job should be restarted with another number of slices.

    Attributes:
        counts: the acceptable numbers.
        current: the number that the job has or waits for.
    """

    counts: Sequence[int]
    current: int
    _wanted: int = 0
    _agreeing: int = 0

    def update(self, available: int, runs: bool) -> int:
        """Take the number of available slices. Returns the number to use: `current`, unless it should change.

        Args:
            runs: whether the job runs. Then fewer available slices are no reason for a change.
        """
        wanted = best_count(self.counts, available)
        if wanted == self.current or (runs and wanted < self.current):
            self._agreeing = 0
            return self.current
        self._agreeing = self._agreeing + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        return wanted if self._agreeing >= CHECKS_BEFORE_CHANGE else self.current
