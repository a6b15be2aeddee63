"""Why workers of a pool are missing, and how one that was lost has ended, for people."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from fray.cluster import log_printer
from fray.cluster.job_info import exit_reason, info_of
from fray.cluster.storage import StorageCluster
from fray.types import JobId
from fray.wait_line import above_line
from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import jobs_by_id, live_agents, read_jobs, refreshed_agents
from fray_coordinator.jobs.poll_backoff import PollBackoff
from fray_coordinator.jobs.why_in_reservation import reservations_around
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.records import JobRecord

log = logging.getLogger("fray")

_EXPLAIN_PAUSES = 30.0, 600.0
"""Seconds between two explanations of why workers are missing, the first and the longest: each reads every agent's
record."""


_MAX_EXPLAINED = 50
"""Missing workers whose records an explanation reads: the others wait for the same."""


class AbsenceWatch:
    """Says why a pool lacks workers: after two seconds, then ever more rarely, in the log and in `why`."""

    def __init__(self, cluster: StorageCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.why = ""
        self._explained: set[str] = set()
        self._pauses = backoff(*_EXPLAIN_PAUSES)
        self._due = time.monotonic() + WARN_AFTER

    def look(self, up: int, missing: Sequence[str]) -> None:
        """Take note of how many workers are up, and of the jobs of those that are not."""
        if not missing:
            self.end()
            self.why = ""
            self._pauses = backoff(*_EXPLAIN_PAUSES)
            self._due = time.monotonic() + WARN_AFTER
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + next(self._pauses)
            self._explained = set(missing)
            self.why = self._cluster.run(partial(self._explain, jobs=missing[:_MAX_EXPLAINED]))
            text = f"pool {self._name}: {up} of {up + len(missing)} workers are up: {self.why}"
            log_printer.printer.tell(self, partial(_warn, text))
        elif self._explained != set(missing):
            self.why = ""

    def end(self) -> None:
        """Wait for no worker any more, and so for no machine."""
        if self._explained:
            self._explained = set()
            self._cluster.run(self._end)

    async def _explain(self, core: Core, jobs: Sequence[str]) -> str:
        scaler = await self._cluster.scaler()
        return await explain_absence(core, jobs, partial(scaler.begin, self))

    async def _end(self, core: Core) -> None:
        await (await self._cluster.scaler()).end(self)


_END_PATIENCE, _END_AGE = 5.0, 3.0
"""Seconds for a lost worker's agent to write how it ended; an end that was written longer ago is of an earlier one."""


async def last_words(core: Core, job: JobId) -> str:
    """How the worker with this job, which was just lost, has ended; "" if that is not known in time."""
    pace, since, until = PollBackoff(core), core.now() - _END_AGE, core.clock.boottime() + _END_PATIENCE
    while core.clock.boottime() < until:
        found = (await jobs_by_id(core, [job], problems={})).get(job)
        if found is None:
            return ""
        if found.exit is not None:
            return f"{exit_reason(found.exit)} (`fray logs {job}`)"
        if found.history and found.history[-1].ended_at >= since:
            return f"{exit_reason(found.history[-1].exit)} (`fray logs {job}`)"
        await pace.sleep(at_most=0.5)
    return ""


def _warn(text: str) -> None:
    with above_line():
        log.warning("%s", text)


_MAX_REASONS = 3
"""Reasons in one message, those of most workers first: more would hide what to do."""


async def explain_absence(core: Core, jobs: Sequence[str], on_machines: Callable[[], None] = lambda: None) -> str:
    """Why the workers with these jobs are missing, and what to do about it; "" if there are none.

    on_machines: called if they wait in a pool that may have machines.
    """
    records = await read_jobs(core, jobs, problems={})
    live = live_agents(await refreshed_agents(core), core.now())
    around = await reservations_around(core, records)
    machines = await machines_for(core, records, around)
    if machines:
        on_machines()
    waiting = reasons_by_job(filter(is_waiting, records), live, core.now(), around, machines)
    states = Counter(_state(core, job, waiting.get(job.id, "")) for job in records)
    reasons = [f"{count} {text}" for text, count in states.most_common(_MAX_REASONS)]
    return "; ".join(reasons)


def _state(core: Core, job: JobRecord, why_waiting: str) -> str:
    """The state of a missing worker's job, with the reason."""
    status = info_of(core.root, job).status
    if why_waiting:
        return f"{status} ({why_waiting})"
    if job.exit is not None:
        return f"{status} ({exit_reason(job.exit)})"
    last = job.history[-1] if job.history else None
    before = f" (attempt {last.attempt} ended: {exit_reason(last.exit)})" if last is not None else ""
    return f"{status} and cannot be called yet{before}"
