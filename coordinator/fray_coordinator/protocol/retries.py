"""Retries: whether another attempt follows one that did not succeed, and which budget it spends.

**Invariant.** Preemption never spends the failure budget, one failure is counted once, and attempts only grow.

**Unsafe sequence.**

1. A host dies, and its job is counted as failed although the job did nothing wrong.

Or: members A and B of a gang each count the one failure that ended them both, and the gang has no retries left after
its first failure.

**Why this cannot happen.** The kind of the exit decides which budget is spent. The same write spends it and raises the
attempt, on condition of the attempt that has ended, so only one writer spends it.
"""

from typing import Any

from msgspec.structs import replace

from fray_coordinator.backoff import exponential_wait
from fray_coordinator.protocol.transitions import Event, transition
from fray_layouts.records import MAX_HISTORY, AttemptExit, ClusterSettings, JobLease, JobRecord, PastAttempt, Placement
from fray_layouts.spec import is_gang
from fray_layouts.states import ExitKind

FIRST_RESTART_WAIT, MAX_RESTART_WAIT = 0.05, 1.6
"""Seconds, at first and at most, before a restart on the same host, where callers wait for the actor, and before a gang
is gathered again, for which all of its hosts wait. Quick ends are counted by the past attempts in the record, so no
more than `MAX_HISTORY` doublings count."""

MAX_AVOIDED_HOSTS = 8
"""Hosts that a job avoids: those of its last failed starts. Each counts for a minute, so more would not matter."""

QUICK_END_SECONDS = 60.0
"""Seconds. If an attempt ends sooner, the next restart waits longer."""


def after_exit(
    job: JobRecord,
    end: AttemptExit,
    holder: JobLease,
    now: float,
    settings: ClusterSettings,
    restart: bool = False,
) -> JobRecord:
    """The running job after an attempt that neither succeeded nor was stopped by request.

    Args:
        end: how the attempt ended.
        holder: the agent that ran it: the job's holder, or a member of the gang.
        restart: the holder can run the job again at once, after a failure of its own.
    """
    match end.kind:
        # If the record has no stop request, the agent stopped the job, which did nothing wrong.
        case ExitKind.PREEMPTED | ExitKind.STOPPED:
            return _preempted(job, end, holder, now, settings)
        case ExitKind.YIELDED:
            return _requeue(job, end, holder, now, _requeue_wait(job, 1, now, settings))
        case ExitKind.START_FAILED:
            return _not_started(job, end, holder, now, settings)
        case ExitKind.HOST_FAILED:
            return _preempted(_avoiding(job, holder.host), end, holder, now, settings)
    return _failed(job, end, holder, now, settings, restart)


def after_loss(job: JobRecord, lost: AttemptExit, holder: JobLease, now: float, settings: ClusterSettings) -> JobRecord:
    """The running job after an attempt that its holder has lost.

    Such ends are preemptions, but `host_killer_limit` of them in a row count as one failure: a job that kills its
    hosts, or makes every agent drop it, must not be tried for ever.
    """
    limit = settings.host_killer_limit
    if job.agent_deaths + 1 >= limit:
        message = f"{lost.message}; {limit} attempts in a row ended like this: perhaps the job kills its hosts"
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
    """The job with this host first among those that it avoids."""
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
    """Whether an actor ended itself: its constructor raised, or it said that it failed. Its process did not crash."""
    return job.spec.actor and end.kind == ExitKind.EXCEPTION


def fail_for_good(job: JobRecord, end: AttemptExit, now: float, why: str) -> JobRecord:
    """The failed job, whatever is left of its budgets. why: what to add to the message for people, or ""."""
    message = "; ".join(part for part in (end.message, why) if part)
    return transition(job, Event.FAIL, ended_at=now, exit=replace(end, message=message))


def _requeue(job: JobRecord, end: AttemptExit, holder: JobLease, now: float, wait: float) -> JobRecord:
    past = _history_with(job, end, holder, now)
    waiting = {"started_at": None, "not_before": now + wait, **past}
    if is_gang(job.spec):
        return transition(job, Event.REGATHER, placement=_without_members(job.placement or Placement()), **waiting)
    return transition(job, Event.REQUEUE, lease=None, **waiting)


def _without_members(placement: Placement) -> Placement:
    """The placement without members, for the next attempt. Its round is one higher."""
    return Placement(round=placement.round + 1)


def _restart(job: JobRecord, end: AttemptExit, holder: JobLease, now: float) -> JobRecord:
    """The next attempt on the same holder. It may start after `not_before`."""
    past, ready = _history_with(job, end, holder, now), now + restart_wait(job, now)
    return transition(job, Event.RESTART, lease=replace(holder, since=now), started_at=now, not_before=ready, **past)


def restart_wait(job: JobRecord, now: float) -> float:
    """Seconds before a job that failed now is started again. They double with each quick end in a row."""
    return exponential_wait(max(_quick_ends(job, now), 1), FIRST_RESTART_WAIT, MAX_RESTART_WAIT)


def _quick_ends(job: JobRecord, now: float) -> int:
    """The number of attempts in a row that ended quickly, with the one that ends now, as far as the record knows."""
    lives = [now - (job.started_at or now), *(past.ended_at - past.started_at for past in reversed(job.history))]
    quick = 0
    while quick < len(lives) and lives[quick] < QUICK_END_SECONDS:
        quick += 1
    return quick


def _history_with(job: JobRecord, end: AttemptExit, holder: JobLease, now: float) -> dict[str, Any]:
    """The fields of the record about past attempts, with the one that ends now."""
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

    All hosts of a gang stand still until then. So it waits as briefly as an actor does, unless all of its known
    attempts ended quickly.
    """
    usual = exponential_wait(nth, settings.requeue_backoff, settings.requeue_backoff_max)
    if is_gang(job.spec) and _quick_ends(job, now) <= MAX_HISTORY:
        return min(usual, restart_wait(job, now))
    return usual
