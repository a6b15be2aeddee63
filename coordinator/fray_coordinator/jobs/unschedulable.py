"""Warnings about jobs that stay pending: no live agent could ever run them, or for long none has had room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.jobs.live_usage import refreshed_agents
from fray_coordinator.jobs.lookup import live_agents, unschedulable_reason, waiting_reasons
from fray_coordinator.protocol.scheduling import shape_of
from fray_coordinator.protocol.transitions import Status
from fray_layouts.index_keys import Shape
from fray_layouts.records import JobRecord

DIAGNOSE_AFTER = 3.0
"""Seconds that a job is seen pending before its waiter asks why: where there is room, a claim takes less."""

WARN_AFTER = 30.0
"""Seconds that it is seen waiting for room, which other jobs may give back, before its waiter says so."""

_DIAGNOSE_INTERVAL = 30.0
"""Seconds between two questions: each reads every agent's record."""

_MAX_AGENTS_NAMED = 3
"""Agents whose reasons one warning gives; those of the others are mostly the same."""


@dataclass(slots=True)
class UnschedulableWarnings:
    """Warns once for each pool and shape why jobs of it do not start.

    Args:
        warn: gets a job and the sentence; None: nobody wants to know, and nothing is asked.
    """

    core: Core
    warn: Callable[[JobRecord, str], None] | None
    _since: dict[str, float] = field(default_factory=dict)
    _warned: set[tuple[str, Shape]] = field(default_factory=set)
    _reasons: dict[str, str] = field(default_factory=dict)
    _not_before: float = 0.0

    async def update(self, jobs: Iterable[JobRecord]) -> None:
        """Take note of jobs as they are now, and warn if it is time to."""
        if self.warn is None:
            return
        now = self.core.clock.boottime()
        waiting = [job for job in jobs if job.status == Status.PENDING]
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        self._reasons = {job: why for job, why in self._reasons.items() if job in self._since}
        late = {
            (job.spec.pool, shape_of(job.spec)): job
            for job in reversed(waiting)
            if now - self._since[job.id] >= DIAGNOSE_AFTER
        }
        unwarned = {kind: job for kind, job in late.items() if kind not in self._warned}
        if unwarned and now >= self._not_before:
            self._not_before = now + _DIAGNOSE_INTERVAL
            await self._diagnose(unwarned)

    def summary(self) -> str:
        """The reason of one job that waits, as the end of a sentence; "" if none is known."""
        return next((f"; {job} waits: {why}" for job, why in self._reasons.items()), "")

    async def _diagnose(self, waiting: dict[tuple[str, Shape], JobRecord]) -> None:
        agents, now = await refreshed_agents(self.core), self.core.clock.boottime()
        for kind, job in waiting.items():
            live = live_agents(agents, job.spec.pool, self.core.now())
            never = unschedulable_reason(job, live)
            reasons = waiting_reasons(job, live, self.core.now())[:_MAX_AGENTS_NAMED]
            why = self._reasons[job.id] = never or "; ".join(reasons)
            if self.warn is not None and (never or now - self._since[job.id] >= WARN_AFTER):
                self._warned.add(kind)
                self.warn(job, why)
