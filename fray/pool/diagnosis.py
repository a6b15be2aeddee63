"""Finds out why workers of a pool are missing, and how a lost worker has ended, for messages to people."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from fray.cluster import log_printer
from fray.cluster.job_info import exit_reason, info_of, last_attempt
from fray.cluster.storage import StorageCluster
from fray.types import JobId
from fray.wait_line import above_line
from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import jobs_by_id, live_agents, read_jobs, refreshed_agents
from fray_coordinator.jobs.waiting import PollBackoff
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job, reservations_around, with_claims
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.records import JobRecord

log = logging.getLogger("fray")

_EXPLAIN_PAUSES = WARN_AFTER, 600.0
"""First and longest pause in seconds between two explanations of why workers are missing. Each explanation reads the
record of every agent, and those of the workers' jobs: a failed start is not known otherwise."""

_MAX_MACHINE_PAUSE = 30.0
"""Longest pause in seconds while machines are made for the workers."""

_LOG_PAUSES = 30.0, 600.0
"""First and longest pause in seconds after which the same reason is logged again."""

_MAX_EXPLAINED = 50
"""Missing workers whose records an explanation reads at most. The others usually wait for the same reason."""


class AbsenceWatch:
    """Finds out why a pool lacks workers: after two seconds, then at intervals that double. It logs each new reason.

    Attributes:
        why: the latest reason; "" if none is known.
    """

    def __init__(self, cluster: StorageCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.why = ""
        self._explained: set[str] = set()
        self._wants_machines = False
        self._due = self._log_at = 0.0
        self._restart()

    def observe(self, up: int, missing: Sequence[str]) -> None:
        """Take the number of workers that are up and the jobs of the missing ones; explain if that is due."""
        if not missing:
            self.end()
            self.why = ""
            self._restart()
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + next(self._pauses)
            self._explained = set(missing)
            before, self.why = self.why, self._cluster.run(partial(self._explain, jobs=missing[:_MAX_EXPLAINED]))
            now = time.monotonic()
            if self._wants_machines:
                self._due = min(self._due, now + _MAX_MACHINE_PAUSE)
            if self.why != before or now >= self._log_at:
                self._log_at = now + next(self._log_pauses)
                text = f"pool {self._name}: {up} of {up + len(missing)} workers are up: {self.why}"
                log_printer.printer.value.update(self, partial(_warn, text))
        elif self._explained != set(missing):
            self.why = ""

    def end(self) -> None:
        """End the wait for workers, and so for machines."""
        if self._explained:
            self._explained = set()
            self._cluster.run(self._end)

    def _restart(self) -> None:
        self._pauses, self._log_pauses = backoff(*_EXPLAIN_PAUSES), backoff(*_LOG_PAUSES)
        self._due = self._log_at = time.monotonic() + WARN_AFTER

    async def _explain(self, core: Core, jobs: Sequence[str]) -> str:
        scaler = await self._cluster.scaler()
        self._wants_machines = False

        def on_machines() -> None:
            self._wants_machines = True
            scaler.begin(self)

        return await explain_absence(core, jobs, on_machines)

    async def _end(self, core: Core) -> None:
        await (await self._cluster.scaler()).end(self)


_EXIT_TIMEOUT, _MAX_EXIT_AGE = 5.0, 3.0
"""Seconds in which a lost worker's agent has to write how it ended, and the age above which an exit in the history is
one of an earlier attempt."""


async def worker_exit(core: Core, job: JobId) -> str:
    """How the worker with this job, which was just lost, has ended; "" if that does not become known in time."""
    pace, since, until = PollBackoff(core), core.now() - _MAX_EXIT_AGE, core.clock.boottime() + _EXIT_TIMEOUT
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
"""Reasons in one message at most, the most frequent first. More would make the message hard to read."""


async def explain_absence(core: Core, jobs: Sequence[str], on_machines: Callable[[], None] = lambda: None) -> str:
    """The reasons why the workers with these jobs are missing, with what to do; "" if there are no jobs.

    on_machines: called if they wait in a pool that may have machines.
    """
    records = await read_jobs(core, jobs, problems={})
    live = live_agents(await refreshed_agents(core), core.now())
    around = await reservations_around(core, records)
    machines = await machines_for(core, records, around)
    if machines:
        on_machines()
    waiting = reasons_by_job(filter(is_waiting, records), with_claims(live, records), core.now(), around, machines)
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
    before = f" ({ended})" if (ended := last_attempt(job)) else ""
    return f"{status} and cannot be called yet{before}"
