"""Reports to waiters of jobs: why some have not started, and what agents do before a task starts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs.lookup import live_agents, refreshed_agents
from fray_coordinator.jobs.why_in_reservation import reservations_around
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job
from fray_coordinator.protocol.claiming import WAITING_TO_START
from fray_coordinator.protocol.stopping import holders_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord, ReservationRecord
from fray_layouts.spec import needs_environment

_ASK_PAUSES = 30.0, 600.0
"""Seconds between two requests of one waiter, the first pause and the longest: each reads every agent's record."""

_MACHINE_PAUSES = WARN_AFTER, 30.0
"""The same while jobs wait for machines: a start of a machine may fail within seconds."""

_MAX_REASONS = 3
"""Reasons in one line, the most frequent first: more would hide what to do."""


@dataclass(slots=True)
class WaitingReasons:
    """Reports why the jobs of one waiter have not started; reads agents after two seconds, then more and more rarely.

    A job's failed attempt is reported without a further read of the agents.

    Attributes:
        on_machines: called the first time that jobs wait in pools that may have machines.
    """

    core: Core
    on_machines: Callable[[], None] = lambda: None
    _since: dict[str, float] = field(default_factory=dict)
    _why: dict[tuple[str, int], str] = field(default_factory=dict)
    """By id and attempt of the job."""
    _live: list[AgentRecord] | None = None
    _pauses: Iterator[float] = field(default_factory=lambda: backoff(*_ASK_PAUSES))
    _machine_pauses: Iterator[float] = field(default_factory=lambda: backoff(*_MACHINE_PAUSES))
    _ask_at: float = 0.0
    _reported: str = ""
    _machines: bool = False

    @property
    def text(self) -> str:
        """The reasons in one line, as of the last update; "" if none is known."""
        reasons = Counter(self._why.values()).most_common(_MAX_REASONS)
        return "; ".join(f"{count} x {why}" for why, count in reasons) if len(reasons) > 1 else "".join(dict(reasons))

    async def update(self, jobs: Iterable[JobRecord]) -> str:
        """Update with the present jobs; returns the reasons if they have changed since the last update, else ""."""
        now = self.core.clock.boottime()
        waiting = [job for job in jobs if job.status in WAITING_TO_START]
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        late = [job for job in waiting if now - self._since[job.id] >= WARN_AFTER]
        if late and now >= self._ask_at:
            with suppress(StoreError):  # a wait must not fail because its reason is unknown
                self._live = live_agents(await refreshed_agents(self.core), self.core.now())
                self._why = {}
            self._ask_at = self.core.clock.boottime() + next(self._pauses)
        unknown = [job for job in late if _attempt(job) not in self._why] if self._live is not None else []
        around: dict[str, ReservationRecord] = {}
        machines: dict[str, str] = {}
        with suppress(StoreError):  # without reservations and machines the reasons only say less
            around = await reservations_around(self.core, unknown)
            machines = await machines_for(self.core, unknown, around)
        if machines:
            if not self._machines:
                self._machines = True
                self.on_machines()
            self._ask_at = min(self._ask_at, self.core.clock.boottime() + next(self._machine_pauses))
        reasons = reasons_by_job(unknown, self._live or (), self.core.now(), around, machines)
        found = self._why | {_attempt(job): reasons[job.id] for job in unknown}
        self._why = {key: found[key] for key in map(_attempt, late) if key in found}
        before, self._reported = self._reported, self.text
        return self._reported if self._reported != before else ""


def _attempt(job: JobRecord) -> tuple[str, int]:
    return job.id, job.attempt


@dataclass(slots=True)
class ActivityReports:
    """Reports what a job's agent does before the task starts, from the agent's heartbeats.

    Attributes:
        activity: the agent's activity in words, as of the last update; "" once the task runs.
    """

    core: Core
    activity: str = ""
    _started_attempt: int = 0
    _not_before: float = 0.0

    async def update(self, job: JobRecord) -> str:
        """Update with a job that has not printed anything; returns the agent's activity if it has changed, else "".

        Reads the agent's record once per heartbeat until the task runs; of a gang, the record of the first member.
        """
        now = self.core.clock.boottime()
        asks = _brings_something(job) and job.attempt != self._started_attempt
        holders = holders_of(job)
        if not asks or not holders or now < self._not_before:
            return ""
        self._not_before = now + self.core.settings.beat_interval
        holding = await self._holding(holders[0], job.id)
        if holding is None or holding.attempt != job.attempt:
            return ""
        if holding.usage is not None:
            self._started_attempt = job.attempt
        before, self.activity = self.activity, holding.activity
        return self.activity if self.activity != before else ""

    async def _holding(self, agent: str, job_id: str) -> Holding | None:
        """The agent's holding of the job; None also if its record cannot be read: a wait must not fail for that."""
        with suppress(StoreError, BadRecord):
            found = await self.core.records.read(AgentKeys.key(agent), AgentRecord)
            return found.record.holdings.get(job_id) if found is not None else None
        return None


def _brings_something(job: JobRecord) -> bool:
    environment = job.spec.environment
    return environment.workspace is not None or needs_environment(environment) or bool(environment.docker_image)
