"""Archiving: the record of a job that ended long ago moves from `jobs/` to `archive/`, so that `jobs/` stays short.

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
moves only when no submitter still tries to create it; an admission that creates it late looks under `archive/`
before it admits, and deletes what it has created. A parent moves only after its children have ended, and a child whose
parent has no record under `jobs/` is judged as if the parent had ended. Before a record moves, a `KeptBlobKey` is
written for each blob that is older than the sweep allows for; the sweep lists `blobs/` after it has read `jobs/`, so it
sees the record or the key.
"""

from math import inf

from fray_coordinator.protocol.retention import BLOB_SPARE_SECONDS, recreation_seconds
from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.object_keys import BlobKeys, JobKeys, KeptBlobKey
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of


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
