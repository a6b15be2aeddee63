"""The end of an attempt: commit, requeue, failure, and the budgets.

Invariant: at most one result is committed, by the attempt that the record names; a result complete under a lease that
still stands is never thrown away; preemption never spends the failure budget; a stopped job is not restarted.
Unsafe: the holder's commit is rejected because a stop's flag came in between; the holder takes that for a lost lease
and discards a finished result. Or: the agent is declared dead, its job is put back and runs again, and the first
holder commits over it.
Why not here: a rejected commit is decided again on the current record, which is discarded only if attempt or lease
differ or the job has ended; and a put-back raises the attempt in the same write that takes the lease away.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.protocol.claim import holds, names_holder
from fray_coordinator.protocol.stop import stopped
from fray_coordinator.protocol.transitions import Event, Status, move
from fray_layouts.records import HISTORY, Attempt, Exit, JobRecord, Result, Settings

RESTART_BACKOFF = 0.05
"""Seconds before the first restart on the same host."""

QUICK_FAILURE = 60.0
"""Seconds; an attempt that fails sooner makes the next restart wait longer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as its holder saw it.

    Attributes:
        exit: its kind "success", "preempted", "start-failed" and "host-failed" decide what follows; any other is the
            job's failure.
        result: where the return value is, for a success.
        complete_before_stop: the result was complete before SIGTERM was sent for a stop.
        restart: the holder can run the job again at once, after a failure of its own.
    """

    exit: Exit
    result: Result | None = None
    complete_before_stop: bool = True
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to write. `ours`: the record already says what this holder meant to write."""

    ours: bool


def finish(
    job: JobRecord | None, attempt: int, agent: str, ending: Ending, now: float, settings: Settings
) -> JobRecord | Settled:
    """What the holder of `attempt` writes at its end, decided anew on every record it meets."""
    if job is None or not holds(job, attempt, agent):
        return Settled(ours=_already_ours(job, attempt, agent))
    if ending.exit.kind == "success" and (job.stop is None or ending.complete_before_stop):
        return move(job, Event.SUCCEED, ended_at=now, exit=ending.exit, result=ending.result, agent_deaths=0)
    if job.stop is not None:
        ended = stopped(job, now, job.stop.reason, job.stop.by)
        return replace(ended, exit=replace(ending.exit, kind="stopped", message=job.stop.reason or "stopped"))
    match ending.exit.kind:
        case "preempted" | "stopped":  # stopped without a wish in the record: its agent's doing, not the job's
            return _preempted(job, ending.exit, now, settings)
        case "start-failed":
            return _not_started(job, ending.exit, now, settings)
        case "host-failed":
            return _preempted(_elsewhere(job), ending.exit, now, settings)
    return _failed(job, ending.exit, now, settings, ending.restart)


def put_back(job: JobRecord, agent: str, now: float, settings: Settings, why: str = "died") -> JobRecord | None:
    """What anyone writes who finds the job RUNNING under an agent that has lost it; None if it is not.

    Attempts that end so are preemptions, but `host_killer_limit` of them in a row count as one failure: a job that
    kills its hosts, or makes every agent drop it, must not go round for ever.

    Args:
        agent: dead, absent, or one that lives and has dropped the job (`protocol.unlisted`).
        why: what the agent did, for people.
    """
    if job.status != Status.RUNNING or job.lease is None or job.lease.agent != agent:
        return None
    lost = Exit(kind="lost", message=f"its agent {agent} {why}")
    if job.stop is not None:
        return stopped(job, now, job.stop.reason, job.stop.by)
    if job.driver:
        lost.message = "the program was not heard of any more; what it owned ends with it"
        return _give_up(job, lost, now, "")
    if job.agent_deaths + 1 >= settings.host_killer_limit:
        lost.message += f", the {settings.host_killer_limit}. in a row: the job may be what kills its hosts"
        return _failed(job, lost, now, settings)
    return _preempted(replace(job, agent_deaths=job.agent_deaths + 1), lost, now, settings)


def _already_ours(job: JobRecord | None, attempt: int, agent: str) -> bool:
    return job is not None and job.status == Status.SUCCEEDED and names_holder(job, attempt, agent)


def _preempted(job: JobRecord, end: Exit, now: float, settings: Settings) -> JobRecord:
    deaths = job.agent_deaths if end.kind == "lost" else 0
    spent = replace(job, preemptions=job.preemptions + 1, agent_deaths=deaths)
    if spent.preemptions > job.spec.max_retries_preemption:
        limit = job.spec.max_retries_preemption
        return _give_up(spent, end, now, f"preempted more often than max_retries_preemption={limit} allows")
    return _requeue(spent, end, now, _backoff(1, settings))


def _not_started(job: JobRecord, end: Exit, now: float, settings: Settings) -> JobRecord:
    tried = replace(_elsewhere(job), start_failures=job.start_failures + 1)
    return _requeue(tried, end, now, _backoff(tried.start_failures, settings))


def _elsewhere(job: JobRecord) -> JobRecord:
    """The job, which avoids its host from now on."""
    host = job.lease.host if job.lease else ""
    return replace(job, avoid=[host, *(h for h in job.avoid if h != host)][:8])


def _failed(job: JobRecord, end: Exit, now: float, settings: Settings, restart: bool = False) -> JobRecord:
    spent = replace(job, failures=job.failures + 1, start_failures=0, agent_deaths=0, avoid=[])
    if spent.failures > job.spec.max_retries_failure or _gave_up(job, end):
        return _give_up(spent, end, now, "")
    if restart:
        return _restart(spent, end, now)
    return _requeue(spent, end, now, _backoff(spent.failures, settings))


def _gave_up(job: JobRecord, end: Exit) -> bool:
    """Whether an actor ended itself: it could not be made, or says that it failed. Its process did not crash."""
    return job.spec.actor and end.kind == "exception"


def _give_up(job: JobRecord, end: Exit, now: float, why: str) -> JobRecord:
    message = "; ".join(part for part in (end.message, why) if part)
    return move(job, Event.FAIL, ended_at=now, exit=replace(end, message=message))


def _requeue(job: JobRecord, end: Exit, now: float, wait: float) -> JobRecord:
    history = _history(job, end, now)
    return move(job, Event.REQUEUE, lease=None, started_at=None, not_before=now + wait, history=history)


def _restart(job: JobRecord, end: Exit, now: float) -> JobRecord:
    """The next attempt in the same hands; it may be started after `not_before`."""
    history, ready = _history(job, end, now), now + restart_wait(job, now)
    assert job.lease is not None, "only a running job is restarted"
    return move(
        job, Event.RESTART, lease=replace(job.lease, since=now), started_at=now, not_before=ready, history=history
    )


def restart_wait(job: JobRecord, now: float) -> float:
    """Seconds before a job that failed now is started again: they double with each quick failure in a row.

    The record keeps few past attempts, so they are never more than 1.6: callers wait for the actor.
    """
    lives = [now - (job.started_at or now), *(past.ended_at - past.started_at for past in reversed(job.history))]
    quick = 0
    while quick < len(lives) and lives[quick] < QUICK_FAILURE:
        quick += 1
    return RESTART_BACKOFF * 2.0 ** min(max(quick - 1, 0), HISTORY)


def _history(job: JobRecord, end: Exit, now: float) -> list[Attempt]:
    """The past attempts, the one that ends now among them."""
    lease = job.lease
    assert lease is not None, "only a running attempt ends"
    past = Attempt(
        attempt=job.attempt,
        agent=lease.agent,
        host=lease.host,
        started_at=job.started_at or lease.since,
        ended_at=now,
        exit=end,
    )
    return [*job.history, past][-HISTORY:]


def _backoff(nth: int, settings: Settings) -> float:
    return min(settings.requeue_backoff * 2.0 ** (nth - 1), settings.requeue_backoff_max)
