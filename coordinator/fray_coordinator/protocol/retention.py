"""Retention and archiving: when what has ended moves to the archive, and when it is removed.

**Retention** of finished jobs, unused pools, blobs and the records of ended agents.

**Invariant.** A job's record outlives everything that belongs to it. A waiter that finds the record gone raises an
error and never hangs.

**Unsafe sequence.**

1. The repair deletes a job's record first and dies. The logs and children of the job stay for ever.
2. A record lies under `jobs/` and `archive/`, because its mover died. The job is removed, and one of the two is left.

Or: a submitter with the same id creates the job again while a file in the inbox still names it.

**Why this cannot happen.** The record is marked expiring, then its data is deleted, and then the record is deleted on
condition of the marked version. Only a record under `archive/` is removed: it has moved there after its children, and
if a second one is left under `jobs/`, that moves first. A record stays while the inbox holds its version. A job is kept
for at least the quarantine plus the time after which a submitter gives up.

**Archiving.** The record of a job that ended long ago moves from `jobs/` to `archive/`, so that `jobs/` stays short.

**Invariant.** From its creation to its removal by retention, a job has a record under `jobs/` or under `archive/`, and
the one under `archive/` has ended. A reader that looks under `jobs/` first and then under `archive/` finds it. No job
runs again because its record has moved.

**Unsafe sequences.**

1. The record under `jobs/` is deleted, and the process that moves it dies before it has written the copy.
2. The record is copied, then it changes, then it is deleted: the change is lost. Or a slow mover, which has read the
   record before the change, writes its copy over the one that another mover has made since.
3. A submitter with an `id` of its own, or an agent that admits a dropped file, looks for the job, sleeps while the job
   runs, ends and is archived, then creates the record again; and the job runs a second time.
4. A parent is archived, and a child of it is never stopped, because nothing lists its parent's end any more.
5. A job is submitted again after months, with the blob of its first submission, ends and is archived. The sweep of
   blobs, which reads no archived records, deletes the blob, and the job cannot be submitted once more.

**Why this cannot happen.** The copy is written first, and the record is deleted on condition of the version that was
copied; a record never moves back. So who finds nothing under `jobs/` and then nothing under `archive/` knows that the
job does not exist yet or was removed. A mover that dies between copy and deletion leaves both: readers take the one
under `jobs/`, and the next move replaces a copy that differs, on condition of that copy's version, by what it has read
after it. Only records that have ended move, and these change no more; one there that has not ended was put there by
somebody, and counts as unreadable. Of two records the one under `jobs/` counts, so retention leaves both. A record
moves only when no submitter still tries to create it; an admission that creates it late looks under `archive/` before
it admits, and deletes what it has created. A parent moves only after its children have ended, and a child whose parent
has no record under `jobs/` is judged as if the parent had ended. Before a record moves, a `KeptBlobKey` is written for
each blob that is older than the sweep allows for; the sweep lists `blobs/` after it has read `jobs/`, so it sees the
record or the key.
"""

from collections.abc import Collection, Mapping, Set
from math import inf

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.object_keys import BlobKeys, JobKeys, KeptBlobKey
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of

SUBMITTER_TIMEOUT = 3600.0
"""Seconds after which no submitter still tries to create a record."""

BLOB_SPARE_SECONDS = 31 * 86400.0
"""Seconds from the end of a blob's month in which a job may be archived, and have the blob, without saying so.

The sweep of blobs does not read the archive. So it keeps each blob for as long as a job is kept that was archived in
this time; for a job that is archived later, a `KeptBlobKey` is written before its record moves.
"""

ARCHIVE_SPARE_SECONDS = 2 * 86400.0
"""Seconds for which an archived record may be kept longer than it must be, since the archive is swept only at times."""

ENDED_AGENTS_KEPT = 1000
"""Records of ended agents that are kept, for people to read. Each pass lists them all, so there are not more."""


def recreation_seconds(settings: ClusterSettings) -> float:
    """Seconds after a job's end in which some submitter, or a late write of one, may still create its record again."""
    return settings.quarantine + SUBMITTER_TIMEOUT


def retention_seconds(settings: ClusterSettings) -> float:
    """Seconds for which a finished job is kept."""
    return max(settings.retention, recreation_seconds(settings))


def is_removable(job: JobRecord, now: float, settings: ClusterSettings, version_in_inbox: str | None) -> bool:
    """Whether the job, which has no children left, may be removed with all that belongs to it."""
    if not is_terminal(job) or (job.inbox is not None and job.inbox.version == version_in_inbox):
        return False
    return now > (job.ended_at or job.submitted_at) + retention_seconds(settings)


def mark_expiring(job: JobRecord) -> JobRecord | None:
    """The record marked expiring; None if it is marked already."""
    return None if job.expiring else replace(job, expiring=True)


def is_pool_unused(created: float, used: float, now: float, settings: ClusterSettings) -> bool:
    """Whether the pool was last used so long ago that it may be removed. A pool without any time stays."""
    last = max(created, used)
    return 0.0 < last < now - retention_seconds(settings)


def oldest_kept_month(now: float, settings: ClusterSettings) -> str:
    """The oldest month of blobs that archived jobs, or submitters that are about to name a blob, may need."""
    kept = recreation_seconds(settings) + retention_seconds(settings)
    return BlobKeys.month(max(now - kept - BLOB_SPARE_SECONDS - ARCHIVE_SPARE_SECONDS, 0.0))


def is_archived_record_due(written: float, now: float, settings: ClusterSettings) -> bool:
    """Whether an archived record that was written at this time may be removed: then its job ended even earlier."""
    return now - written > retention_seconds(settings)


def unneeded_blobs(keys: Collection[str], used: Set[str], since: str) -> list[str]:
    """The blobs older than the month `since` that no job and no pool needs, and what said until then that jobs do.

    Args:
        keys: all keys of blobs, and of what archived jobs keep.
        used: the blobs that records under `jobs/` and pools name.
    """
    archived = [kept for kept in map(KeptBlobKey.parse, keys) if kept is not None]
    needed = used | {kept.blob for kept in archived if kept.month >= since}
    months = ((key, BlobKeys.parse(key)) for key in keys)
    blobs = [key for key, month in months if month is not None and month < since and key not in needed]
    return blobs + [kept.key() for kept in archived if kept.month < since]


def removable_agents(ended: Mapping[str, float], now: float, settings: ClusterSettings) -> list[str]:
    """The keys of ended and reaped agents that may be removed: old ones, and the oldest if there are too many.

    None is removed before the quarantine is over, since a create of its record that was sent twice may still be
    applied.

    ended: by key, when the record was last written.
    """
    newest_first = sorted(ended, key=lambda key: ended[key], reverse=True)
    kept, surplus = newest_first[:ENDED_AGENTS_KEPT], newest_first[ENDED_AGENTS_KEPT:]
    old = [key for key in kept if now - ended[key] > retention_seconds(settings)]
    return old + [key for key in surplus if now - ended[key] > settings.quarantine]


def archive_time(job: JobRecord, settings: ClusterSettings) -> float:
    """The storage's time from which the record may move to the archive; infinity before the job has ended."""
    return (job.ended_at or job.submitted_at) + recreation_seconds(settings) if is_terminal(job) else inf


def may_archive(at: float, now: float, has_children: bool) -> bool:
    """Whether the record may move now. at: as `archive_time` gives it. has_children: a child is still under `jobs/`."""
    return now > at and not has_children


def why_unusable(archived: JobRecord) -> tuple[str, str] | None:
    """What is wrong with a record in the archive, as words after its key, and the remedy; None if it has ended."""
    if is_terminal(archived):
        return None
    what = f"says that the job is {archived.status}, but nobody looks after archived jobs"
    return what, f"move it to {JobKeys.key(archived.id)} if nothing lies there, otherwise remove it"


def blobs_to_keep(job: JobRecord, now: float) -> list[KeptBlobKey]:
    """The keys to write before the record of an ended job moves, so that the sweep keeps the blobs that it names.

    The sweep keeps each blob for `BLOB_SPARE_SECONDS` longer than the jobs that move in the blob's month, so only the
    older ones are among them.

    now: the storage's time. A job that ended long before is in the archive for as long as one that has just ended.
    """
    oldest = BlobKeys.month(max(now - BLOB_SPARE_SECONDS, 0.0))
    old = (blob for blob in blobs_of(job.spec) if (BlobKeys.parse(blob) or oldest) < oldest)
    return [KeptBlobKey(BlobKeys.month(now), blob) for blob in old]
