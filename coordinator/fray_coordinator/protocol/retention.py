"""Removing what nobody needs any more.

**Invariant.** A job's record outlives everything that belongs to it; a waiter that finds it gone raises, it never
hangs.

**Unsafe sequence.** The record goes first; its logs and children stay for ever, or a submitter with the same id creates
it again while an inbox file still names it.

**Why this cannot happen.** The record is marked expiring, its data is deleted, then the record on condition of that
version; never before its children; never while the inbox holds its version; and retention is longer than the quarantine
plus the time after which a submitter gives up.
"""

from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.object_keys import BlobKeys
from fray_layouts.records import ClusterSettings, JobRecord

SUBMITTER_TIMEOUT = 3600.0
"""Seconds after which no submitter is still trying to create a record."""

ENDED_AGENTS_KEPT = 1000
"""Records of ended agents that are kept for people at most: each pass lists them all."""


def retention_seconds(settings: ClusterSettings) -> float:
    """Seconds that a finished job is kept."""
    return max(settings.retention, settings.quarantine + SUBMITTER_TIMEOUT)


def is_removable(job: JobRecord, now: float, settings: ClusterSettings, version_in_inbox: str | None) -> bool:
    """Whether the job, which has no children left, and all that belongs to it may be removed."""
    if not is_terminal(job) or (job.inbox is not None and job.inbox.version == version_in_inbox):
        return False
    return may_remove(due_at(job, settings), now, has_children=False)


def may_remove(due: float, now: float, has_children: bool) -> bool:
    """Whether a job that has ended, is due at `due` and is not named by the inbox may be removed."""
    return now > due and not has_children


def due_at(job: JobRecord, settings: ClusterSettings) -> float:
    """The storage's time until which a job that has ended is kept."""
    return (job.ended_at or job.submitted_at) + retention_seconds(settings)


def mark_expiring(job: JobRecord) -> JobRecord | None:
    """The record marked expiring; None if it is already."""
    return None if job.expiring else replace(job, expiring=True)


def is_pool_unused(created: float, used: float, now: float, settings: ClusterSettings) -> bool:
    """Whether the pool was last used so long ago that it may be removed; one without any time stays."""
    last = max(created, used)
    return 0.0 < last < now - retention_seconds(settings)


def oldest_used_month(now: float, settings: ClusterSettings) -> str:
    """The oldest month under which a submitter may still be about to name a blob, which may have existed before."""
    return BlobKeys.month(now - settings.quarantine - SUBMITTER_TIMEOUT)


def unneeded_blobs(blobs: Iterable[str], used: Set[str], since: str) -> list[str]:
    """The blobs that nobody names (`used`) and that are older than the month `since`."""
    months = ((key, BlobKeys.parse(key)) for key in blobs)
    return [key for key, month in months if month is not None and month < since and key not in used]


def removable_agents(ended: Mapping[str, float], now: float, settings: ClusterSettings) -> list[str]:
    """The keys of ended and reaped agents that may be removed: old ones, and the oldest of too many.

    None goes before the quarantine, in which a creation that was sent twice may still land. ended: by key, when the
    record was last written.
    """
    newest_first = sorted(ended, key=lambda key: ended[key], reverse=True)
    kept, surplus = newest_first[:ENDED_AGENTS_KEPT], newest_first[ENDED_AGENTS_KEPT:]
    old = [key for key in kept if now - ended[key] > retention_seconds(settings)]
    return old + [key for key in surplus if now - ended[key] > settings.quarantine]
