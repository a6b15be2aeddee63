"""The index of pending jobs, and the claims of those that agents find in it.

**The pending index**: which entries stay, which are deleted, and which must be created.

**Invariant.** Every PENDING job can be found: it has an entry, or the next repair creates one.

**Unsafe sequence.**

1. Agent A's claim is applied, and the index entry is deleted.
2. A dies before any heartbeat of it lists the job.
3. Nobody runs the job, and nothing leads to it.

Or: an old entry is deleted while its job waits for a later attempt, whose entry was never created.

**Why this cannot happen.** An entry is deleted only after an applied heartbeat lists its job and attempt, or after that
attempt has ended. The entry of the later attempt is created first. An entry without a record is deleted only if its
time is further away than the quarantine: behind, or ahead, since no submitter writes such a time. It is deleted on
condition of the version that was read before the record was found absent.

**Claims.**

**Invariant.** At most one agent runs an attempt, and an agent that might hold one lists it in every heartbeat.

**Unsafe sequence.**

1. Agent A sends a claim, its reply is lost, and A forgets the claim.
2. The claim is applied.
3. The index entry is deleted, and nobody runs the job.

**Why this cannot happen.** A lists the claim in its heartbeat until it knows that the claim was applied or rejected,
and the entry stays until then. A decides whether the claim was applied by the content of the job's record, never by the
id of a write.
"""

import math
from dataclasses import dataclass
from enum import Enum

from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict, cascade_reason, stop_now
from fray_coordinator.protocol.transitions import Event, Status, is_terminal, transition
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import AgentRecord, ClusterSettings, JobLease, JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import StopOrigin


class IndexAction(Enum):
    """The action that an index entry needs."""

    LEAVE = "leave"
    DELETE = "delete"
    RENEW = "create the entry that the record asks for, then delete this one"
    REQUEUE = "its holder is dead or absent: requeue the job"


def action_for(
    entry: PendingKey, job: JobRecord | None, holder: AgentRecord | None, now: float, settings: ClusterSettings
) -> IndexAction:
    """The action that an entry needs, by the records to which it leads.

    Args:
        entry: as parsed; its version was read before `job`.
        job: the record that the entry names; None if there is none.
        holder: the record of the agent in the job's lease; None if there is no such record, or no lease.
        now: the storage's clock.
    """
    if job is None:
        return IndexAction.DELETE if abs(now - entry.time) > settings.quarantine else IndexAction.LEAVE
    if is_terminal(job) or is_gang(job.spec):  # gangs have an index of their own
        return IndexAction.DELETE
    if job.status == Status.PENDING:
        return _action_while_pending(entry, job)
    if job.status == Status.RUNNING:
        return _action_while_running(job, holder)
    return IndexAction.LEAVE


def _action_while_pending(entry: PendingKey, job: JobRecord) -> IndexAction:
    """The action for an entry of a pending job: its name must be the one that follows from the record."""
    return IndexAction.LEAVE if entry.attempt > job.attempt or entry.key() == entry_of(job).key() else IndexAction.RENEW


def _action_while_running(job: JobRecord, holder: AgentRecord | None) -> IndexAction:
    if holder is None or is_fenced(holder):
        return IndexAction.REQUEUE
    holding = holder.holdings.get(job.id)
    return IndexAction.DELETE if holding is not None and holding.attempt >= job.attempt else IndexAction.LEAVE


def is_created_late(job: JobRecord, created_at: float, settings: ClusterSettings) -> bool:
    """Whether the submitter must write the entry again: a repair that found no record may delete it, or has."""
    return created_at - job.submitted_at > settings.quarantine / 2


AVOIDED_HOST_SECONDS = 60.0
"""Seconds for which a host leaves a job to other hosts, after it failed to start the job: long enough for another host
to take it, short enough that the job still runs where there is only one host."""

SET_BACK_SECONDS = 60.0
"""If a job's last attempt ended more than this in the future, the storage's clock was set back since then. All hosts
know that clock to a few seconds."""

CLAIM_RETRY_SECONDS = 60.0
"""Seconds after which an agent tries again to claim a job that it may not run yet, because the job's parent has not
started its next attempt, the job is for other hosts, or the room is kept for an owner. None of these shows when it
ends. A try costs a few reads, so once a minute is seldom enough for many such jobs."""

WAITING_TO_START = frozenset({Status.PENDING, Status.GATHERING})
"""The statuses of admitted jobs whose attempt has not started yet."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision not to claim.

    until: the storage's time before which another try is useless; None: the index entry is stale.
    """

    until: float | None


def claim(
    job: JobRecord,
    attempt: int,
    lease: JobLease,
    family: ChildVerdict,
    for_others: bool = False,
    ends_before: float | None = None,
) -> JobRecord | Skip:
    """The write that claims `attempt`, or that stops a job that must not start, or the decision not to claim.

    Args:
        job: the record, read before its parent's record.
        attempt: the attempt that the index entry names.
        lease: the claimer, with the storage's present time as `since`.
        family: what `cascade.judge_child` says of the job and its parent.
        for_others: the claimer's host is not where the job must run, or it lacks a Python for the job that other hosts
            have.
        ends_before: the storage's time by which the job must have ended, because the room is kept for an owner of a
            placement.
    """
    now = lease.since
    if job.status != Status.PENDING or job.attempt != attempt:
        return Skip(None)
    if family is ChildVerdict.STOP:
        return stop_now(job, now, cascade_reason(job), by=StopOrigin.PARENT)
    if (too_late := expired(job, now)) is not None:
        return too_late
    if family is ChildVerdict.WAIT or for_others:
        return Skip(now + CLAIM_RETRY_SECONDS)
    if ends_before is not None and not _has_ended_by(job, now, ends_before):
        return Skip(min(ends_before, now + CLAIM_RETRY_SECONDS))
    if now < (ready := avoided_until(job, lease.host, now)):
        return Skip(ready)
    return transition(job, Event.CLAIM, lease=lease, started_at=now)


def avoided_until(job: JobRecord, host: str, now: float) -> float:
    """The storage's time from which an agent of this host may claim the job; later where it could not be started."""
    return back_off_until(job, now) + (AVOIDED_HOST_SECONDS if host in job.avoid_hosts else 0.0)


def back_off_until(job: JobRecord, now: float) -> float:
    """The storage's time until which the job waits after the end of its last attempt.

    If the clock was set back since that end, the job would wait as long as the clock was ahead; it does not wait then.
    """
    is_set_back = bool(job.history) and now < job.history[-1].ended_at - SET_BACK_SECONDS
    return 0.0 if is_set_back else job.not_before


def _has_ended_by(job: JobRecord, now: float, until: float) -> bool:
    return job.spec.timeout is not None and now + job.spec.timeout + job.spec.grace <= until


def is_pending_too_long(job: JobRecord, now: float) -> bool:
    """Whether a pending job, or a gang that gathers, has waited longer than its limit."""
    return job.status in WAITING_TO_START and now > waits_until(job)


def waits_until(job: JobRecord) -> float:
    """The storage's time until which a pending job may wait. Each attempt has the full `pending_timeout`."""
    since = job.history[-1].ended_at if job.history else job.submitted_at
    return since + job.spec.pending_timeout if job.spec.pending_timeout is not None else math.inf


def expired(job: JobRecord, now: float) -> JobRecord | None:
    """The stopped record of a job that has waited too long; None if it has not."""
    if not is_pending_too_long(job, now):
        return None
    reason = f"not started within its pending_timeout of {job.spec.pending_timeout:g} s"
    return stop_now(job, now, reason, by=StopOrigin.EXPIRED)


def holds_attempt(job: JobRecord | None, attempt: int, agent: str) -> bool:
    """Whether `agent` holds `attempt` of the job, by the record's content."""
    if job is None or job.status != Status.RUNNING or job.attempt != attempt:
        return False
    return job.lease is not None and job.lease.agent == agent
