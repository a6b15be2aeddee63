"""The pending index: which entries stay, which are deleted, and which must be created.

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
"""

from enum import Enum

from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import AgentRecord, ClusterSettings, JobRecord
from fray_layouts.spec import is_gang


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
