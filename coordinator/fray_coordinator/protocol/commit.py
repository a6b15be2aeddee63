"""The end of an attempt: commit, requeue, failure, and the budgets.

**Invariant.** At most one result is committed, by the attempt that the record names; a result complete under a lease
that still stands is never thrown away; preemption never spends the failure budget; a stopped job is not restarted.

**Unsafe sequence.** The holder's commit is rejected because a stop's flag came in between; the holder takes that for a
lost lease and discards a finished result. Or: the agent is declared dead, its job is put back and runs again, and the
first holder commits over it.

**Why this cannot happen.** A rejected commit is decided again on the current record, which is discarded only if attempt
or lease differ or the job has ended; and a put-back raises the attempt in the same write that takes the lease away.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.backoff import exponential_wait
from fray_coordinator.protocol.claiming import holds_attempt, names_holder
from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, transition
from fray_layouts.records import (
    MAX_HISTORY,
    AttemptExit,
    ClusterSettings,
    JobRecord,
    JobResult,
    KeptOutputs,
    PastAttempt,
)
from fray_layouts.states import ExitKind

FIRST_RESTART_WAIT, MAX_RESTART_WAIT = 0.05, 1.6
"""Seconds before a restart on the same host, where callers wait for the actor. Quick failures are counted by the past
attempts in the record, so no more than `MAX_HISTORY` doublings are known of."""

MAX_AVOIDED_HOSTS = 8
"""Hosts that a job avoids, those of its last failed starts: each for a minute, so that more would not matter."""

QUICK_FAILURE_SECONDS = 60.0
"""Seconds; an attempt that fails sooner makes the next restart wait longer."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, as its holder saw it.

    Attributes:
        exit: its kind "success", "preempted", "start-failed" and "host-failed" decide what follows; any other is the
            job's failure.
        result: where the return value is, for a success; `outputs`: where the files are that it left.
        complete_before_stop: the result was complete before SIGTERM was sent for a stop.
        restart: the holder can run the job again at once, after a failure of its own.
    """

    exit: AttemptExit
    result: JobResult | None = None
    complete_before_stop: bool = True
    restart: bool = False
    outputs: KeptOutputs | None = None


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """Nothing is left to write. `ours`: the record already says what this holder meant to write."""

    ours: bool


def end_of_attempt(
    job: JobRecord | None, attempt: int, agent: str, ending: AttemptEnd, now: float, settings: ClusterSettings
) -> JobRecord | AlreadySettled:
    """The holder's write at the end of `attempt`, decided anew on every record that it meets."""
    if job is None or not holds_attempt(job, attempt, agent):
        return AlreadySettled(ours=_already_ours(job, attempt, agent))
    if ending.exit.kind == ExitKind.SUCCESS and (job.stop is None or ending.complete_before_stop):
        left = {"result": ending.result, "outputs": ending.outputs}
        return transition(job, Event.SUCCEED, ended_at=now, exit=ending.exit, **left, agent_deaths=0)
    if job.stop is not None:
        ended = stop_now(job, now, job.stop.reason, job.stop.by)
        return replace(ended, exit=replace(ending.exit, kind=ExitKind.STOPPED, message=job.stop.reason or "stopped"))
    match ending.exit.kind:
        # Stopped without a request in the record: its agent's doing, not the job's.
        case ExitKind.PREEMPTED | ExitKind.STOPPED:
            return _preempted(job, ending.exit, now, settings)
        case ExitKind.START_FAILED:
            return _not_started(job, ending.exit, now, settings)
        case ExitKind.HOST_FAILED:
            return _preempted(_avoiding_host(job), ending.exit, now, settings)
    return _failed(job, ending.exit, now, settings, ending.restart)


def requeue_lost(
    job: JobRecord, agent: str, now: float, settings: ClusterSettings, why: str = "died"
) -> JobRecord | None:
    """The write that takes a RUNNING job from an agent that has lost it; None if that agent does not hold it.

    Attempts that end so are preemptions, but `host_killer_limit` of them in a row count as one failure: a job that
    kills its hosts, or makes every agent drop it, must not go round for ever.

    Args:
        agent: dead, absent, or one that lives and has dropped the job (`protocol.unlisted`).
        why: what the agent did, for people.
    """
    if job.status != Status.RUNNING or job.lease is None or job.lease.agent != agent:
        return None
    lost = AttemptExit(kind=ExitKind.LOST, message=f"its agent {agent} {why}")
    if job.stop is not None:
        return stop_now(job, now, job.stop.reason, job.stop.by)
    if job.driver:
        lost.message = "the program was not heard of any more; what it owned ends with it"
        return _fail_for_good(job, lost, now, "")
    if job.agent_deaths + 1 >= settings.host_killer_limit:
        lost.message += f", the {settings.host_killer_limit}. in a row: the job may be what kills its hosts"
        return _failed(job, lost, now, settings)
    return _preempted(replace(job, agent_deaths=job.agent_deaths + 1), lost, now, settings)


def _already_ours(job: JobRecord | None, attempt: int, agent: str) -> bool:
    return job is not None and job.status == Status.SUCCEEDED and names_holder(job, attempt, agent)


def _preempted(job: JobRecord, end: AttemptExit, now: float, settings: ClusterSettings) -> JobRecord:
    deaths = job.agent_deaths if end.kind == ExitKind.LOST else 0
    spent = replace(job, preemptions=job.preemptions + 1, agent_deaths=deaths)
    if spent.preemptions > job.spec.max_retries_preemption:
        limit = job.spec.max_retries_preemption
        return _fail_for_good(spent, end, now, f"preempted more often than max_retries_preemption={limit} allows")
    return _requeue(spent, end, now, _requeue_wait(1, settings))


def _not_started(job: JobRecord, end: AttemptExit, now: float, settings: ClusterSettings) -> JobRecord:
    tried = replace(_avoiding_host(job), start_failures=job.start_failures + 1)
    return _requeue(tried, end, now, _requeue_wait(tried.start_failures, settings))


def _avoiding_host(job: JobRecord) -> JobRecord:
    """The job, which avoids its host from now on."""
    host = job.lease.host if job.lease else ""
    return replace(job, avoid_hosts=[host, *(h for h in job.avoid_hosts if h != host)][:MAX_AVOIDED_HOSTS])


def _failed(
    job: JobRecord, end: AttemptExit, now: float, settings: ClusterSettings, restart: bool = False
) -> JobRecord:
    spent = replace(job, failures=job.failures + 1, start_failures=0, agent_deaths=0, avoid_hosts=[])
    hopeless = end.kind == ExitKind.ENVIRONMENT_FAILED or _actor_ended_itself(job, end)
    if hopeless or spent.failures > job.spec.max_retries_failure:
        return _fail_for_good(spent, end, now, "")
    if restart:
        return _restart(spent, end, now)
    return _requeue(spent, end, now, _requeue_wait(spent.failures, settings))


def _actor_ended_itself(job: JobRecord, end: AttemptExit) -> bool:
    """Whether an actor ended itself: it could not be made, or says that it failed. Its process did not crash."""
    return job.spec.actor and end.kind == ExitKind.EXCEPTION


def _fail_for_good(job: JobRecord, end: AttemptExit, now: float, why: str) -> JobRecord:
    message = "; ".join(part for part in (end.message, why) if part)
    return transition(job, Event.FAIL, ended_at=now, exit=replace(end, message=message))


def _requeue(job: JobRecord, end: AttemptExit, now: float, wait: float) -> JobRecord:
    history = _history(job, end, now)
    return transition(job, Event.REQUEUE, lease=None, started_at=None, not_before=now + wait, history=history)


def _restart(job: JobRecord, end: AttemptExit, now: float) -> JobRecord:
    """The next attempt in the same hands; it may be started after `not_before`."""
    history, ready = _history(job, end, now), now + restart_wait(job, now)
    assert job.lease is not None, "only a running job is restarted"
    return transition(
        job, Event.RESTART, lease=replace(job.lease, since=now), started_at=now, not_before=ready, history=history
    )


def restart_wait(job: JobRecord, now: float) -> float:
    """Seconds before a job that failed now is started again: they double with each quick failure in a row."""
    lives = [now - (job.started_at or now), *(past.ended_at - past.started_at for past in reversed(job.history))]
    quick = 0
    while quick < len(lives) and lives[quick] < QUICK_FAILURE_SECONDS:
        quick += 1
    return exponential_wait(max(quick, 1), FIRST_RESTART_WAIT, MAX_RESTART_WAIT)


def _history(job: JobRecord, end: AttemptExit, now: float) -> list[PastAttempt]:
    """The past attempts, the one that ends now among them."""
    lease = job.lease
    assert lease is not None, "only a running attempt ends"
    past = PastAttempt(
        attempt=job.attempt,
        agent=lease.agent,
        host=lease.host,
        started_at=job.started_at or lease.since,
        ended_at=now,
        exit=end,
    )
    return [*job.history, past][-MAX_HISTORY:]


def _requeue_wait(nth: int, settings: ClusterSettings) -> float:
    return exponential_wait(nth, settings.requeue_backoff, settings.requeue_backoff_max)
