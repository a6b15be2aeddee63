"""Retries: an attempt that did not succeed is followed by another one or by the job's failure, by its budgets.

**Invariant.** Preemption never spends the failure budget, one failure is counted once, and attempts only grow.

**Unsafe sequence.** A host dies and its job is counted as failed; or each of a gang's members counts the one failure
that ended them all, and the gang is out of retries after its first.

**Why this cannot happen.** The kind of the exit says which budget is spent, and it is spent in the same write that
raises the attempt: whoever writes on condition of the attempt that has ended spends it once.
"""

from typing import Any

from msgspec.structs import replace

from fray_coordinator.backoff import exponential_wait
from fray_coordinator.protocol.transitions import Event, transition
from fray_layouts.records import MAX_HISTORY, AttemptExit, ClusterSettings, JobLease, JobRecord, PastAttempt, Placement
from fray_layouts.spec import is_gang
from fray_layouts.states import ExitKind

FIRST_RESTART_WAIT, MAX_RESTART_WAIT = 0.05, 1.6
"""Seconds before a restart on the same host, where callers wait for the actor, and before a gang is gathered anew, for
which all of its hosts wait. Quick ends are counted by the past attempts in the record, so no more than `MAX_HISTORY`
doublings are known of."""

MAX_AVOIDED_HOSTS = 8
"""Hosts that a job avoids, those of its last failed starts: each for a minute, so that more would not matter."""

QUICK_END_SECONDS = 60.0
"""Seconds; an attempt that ends sooner makes the next restart wait longer."""


def after_exit(
    job: JobRecord,
    end: AttemptExit,
    holder: JobLease,
    now: float,
    settings: ClusterSettings,
    restart: bool = False,
) -> JobRecord:
    """The running job after an attempt of it that ended so, and was neither a success nor to be stopped.

    Args:
        holder: who ran what ended: the job's own, or a member of the gang.
        restart: the holder can run the job again at once, after a failure of its own.
    """
    match end.kind:
        # Stopped without a request in the record: its agent's doing, not the job's.
        case ExitKind.PREEMPTED | ExitKind.STOPPED:
            return _preempted(job, end, holder, now, settings)
        case ExitKind.START_FAILED:
            return _not_started(job, end, holder, now, settings)
        case ExitKind.HOST_FAILED:
            return _preempted(_avoiding(job, holder.host), end, holder, now, settings)
    return _failed(job, end, holder, now, settings, restart)


def after_loss(job: JobRecord, lost: AttemptExit, holder: JobLease, now: float, settings: ClusterSettings) -> JobRecord:
    """The running job after an attempt whose holder has lost it.

    Attempts that end so are preemptions, but `host_killer_limit` of them in a row count as one failure: a job that
    kills its hosts, or makes every agent drop it, must not go round for ever.
    """
    limit = settings.host_killer_limit
    if job.agent_deaths + 1 >= limit:
        message = f"{lost.message}, the {limit}. in a row: the job may be what kills its hosts"
        return _failed(job, replace(lost, message=message), holder, now, settings)
    return _preempted(replace(job, agent_deaths=job.agent_deaths + 1), lost, holder, now, settings)


def _preempted(job: JobRecord, end: AttemptExit, holder: JobLease, now: float, settings: ClusterSettings) -> JobRecord:
    deaths = job.agent_deaths if end.kind == ExitKind.LOST else 0
    spent = replace(job, preemptions=job.preemptions + 1, agent_deaths=deaths)
    if spent.preemptions > job.spec.max_retries_preemption:
        limit = job.spec.max_retries_preemption
        return fail_for_good(spent, end, now, f"preempted more often than max_retries_preemption={limit} allows")
    return _requeue(spent, end, holder, now, _requeue_wait(spent, 1, now, settings))


def _not_started(
    job: JobRecord, end: AttemptExit, holder: JobLease, now: float, settings: ClusterSettings
) -> JobRecord:
    tried = replace(_avoiding(job, holder.host), start_failures=job.start_failures + 1)
    return _requeue(tried, end, holder, now, _requeue_wait(tried, tried.start_failures, now, settings))


def _avoiding(job: JobRecord, host: str) -> JobRecord:
    """The job, which avoids the host from now on."""
    return replace(job, avoid_hosts=[host, *(h for h in job.avoid_hosts if h != host)][:MAX_AVOIDED_HOSTS])


def _failed(
    job: JobRecord,
    end: AttemptExit,
    holder: JobLease,
    now: float,
    settings: ClusterSettings,
    restart: bool = False,
) -> JobRecord:
    spent = replace(job, failures=job.failures + 1, start_failures=0, agent_deaths=0, avoid_hosts=[])
    hopeless = end.kind == ExitKind.ENVIRONMENT_FAILED or _actor_ended_itself(job, end)
    if hopeless or spent.failures > job.spec.max_retries_failure:
        return fail_for_good(spent, end, now, "")
    if restart:
        return _restart(spent, end, holder, now)
    return _requeue(spent, end, holder, now, _requeue_wait(spent, spent.failures, now, settings))


def _actor_ended_itself(job: JobRecord, end: AttemptExit) -> bool:
    """Whether an actor ended itself: it could not be made, or says that it failed. Its process did not crash."""
    return job.spec.actor and end.kind == ExitKind.EXCEPTION


def fail_for_good(job: JobRecord, end: AttemptExit, now: float, why: str) -> JobRecord:
    """The job as it ends with this exit, whatever is left of its budgets. why: what to add for people, or ""."""
    message = "; ".join(part for part in (end.message, why) if part)
    return transition(job, Event.FAIL, ended_at=now, exit=replace(end, message=message))


def _requeue(job: JobRecord, end: AttemptExit, holder: JobLease, now: float, wait: float) -> JobRecord:
    past = _past(job, end, holder, now)
    waiting = {"started_at": None, "not_before": now + wait, **past}
    if is_gang(job.spec):
        return transition(job, Event.REGATHER, placement=_cleared(job.placement or Placement()), **waiting)
    return transition(job, Event.REQUEUE, lease=None, **waiting)


def _cleared(placement: Placement) -> Placement:
    """The placement without members, for the next attempt; its round goes on."""
    return Placement(round=placement.round + 1)


def _restart(job: JobRecord, end: AttemptExit, holder: JobLease, now: float) -> JobRecord:
    """The next attempt in the same hands; it may be started after `not_before`."""
    past, ready = _past(job, end, holder, now), now + restart_wait(job, now)
    return transition(job, Event.RESTART, lease=replace(holder, since=now), started_at=now, not_before=ready, **past)


def restart_wait(job: JobRecord, now: float) -> float:
    """Seconds before a job that failed now is started again: they double with each quick end in a row."""
    return exponential_wait(max(_quick_ends(job, now), 1), FIRST_RESTART_WAIT, MAX_RESTART_WAIT)


def _quick_ends(job: JobRecord, now: float) -> int:
    """How many attempts in a row have ended quickly, the one that ends now among them, as far as the record knows."""
    lives = [now - (job.started_at or now), *(past.ended_at - past.started_at for past in reversed(job.history))]
    quick = 0
    while quick < len(lives) and lives[quick] < QUICK_END_SECONDS:
        quick += 1
    return quick


def _past(job: JobRecord, end: AttemptExit, holder: JobLease, now: float) -> dict[str, Any]:
    """What the record says of past attempts, the one that ends now among them."""
    past = PastAttempt(
        attempt=job.attempt,
        agent=holder.agent,
        host=holder.host,
        started_at=job.started_at or holder.since,
        ended_at=now,
        exit=end,
    )
    history = [*job.history, past]
    if len(history) <= MAX_HISTORY:
        return {"history": history}
    forgotten = sum(max(old.ended_at - old.started_at, 0.0) for old in history[:-MAX_HISTORY])
    return {"history": history[-MAX_HISTORY:], "forgotten_seconds": job.forgotten_seconds + forgotten}


def _requeue_wait(job: JobRecord, nth: int, now: float, settings: ClusterSettings) -> float:
    """Seconds before the next attempt may begin, after the `nth` end of its kind.

    All hosts of a gang stand still until then: it waits as an actor does, unless all that is known of it ended quickly.
    """
    usual = exponential_wait(nth, settings.requeue_backoff, settings.requeue_backoff_max)
    if is_gang(job.spec) and _quick_ends(job, now) <= MAX_HISTORY:
        return min(usual, restart_wait(job, now))
    return usual
