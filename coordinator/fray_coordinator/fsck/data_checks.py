"""Checks for data without an owner: a record is written before its data, and a blob before the record that names it."""

from collections.abc import Iterator

from fray_coordinator.fsck.index_checks import removal_of
from fray_coordinator.fsck.report import BY_HAND, BY_REPAIR, BY_SWEEP, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs.logs import may_lack_middle
from fray_coordinator.protocol.naming import is_stale
from fray_coordinator.protocol.pool_environments import blobs_named
from fray_coordinator.protocol.retention import oldest_kept_month, unneeded_blobs
from fray_layouts.object_keys import ArchiveKeys, BlobKeys, JobKeys, PoolKeys
from fray_layouts.spec import blobs_of
from fray_layouts.work_keys import WorkKeys


def ownerless_work(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find logs and results of jobs and attempts that never existed or are gone."""
    for key in seen.keys[WorkKeys.area]:
        with seen.judging(key):
            job_id, attempt = WorkKeys.parse(key) or ("", 0)
            job = seen.jobs.get(job_id)
            if not seen.has_job(job_id):
                yield SuspectedProblem(
                    Problem(key, "it belongs to a job that has no record", BY_SWEEP), fix=removal_of(key)
                )
            elif job is not None and attempt > job.attempt:
                what = f"it belongs to an attempt that never existed: the job's record says {job.attempt}"
                yield SuspectedProblem(Problem(key, what, BY_HAND), seen.versions(JobKeys.key(job_id)))


def missing_log_chunks(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find missing log chunks. Chunks are stored before the record counts them, and deleted after it is marked.

    Those behind the first part of a log are missing if it was above its limit.
    """
    existing = set(seen.keys[WorkKeys.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            ends = {past.attempt: past.exit for past in job.history} | {job.attempt: job.exit}
            for attempt, end in ends.items() if not job.expiring else ():
                count = (end.log_chunks or 0) if end is not None else 0
                chunks = (WorkKeys.log(job.id, attempt, 0, number + 1) for number in range(count))
                if may_lack_middle(job.spec.log_limit, count) and WorkKeys.log(job.id, attempt, 0, count) in existing:
                    continue
                if (gone := next((key for key in chunks if key not in existing), None)) is not None:
                    what = (
                        f"of the {count} parts of the log of attempt {attempt}, {gone} is gone: the log ends before it"
                    )
                    remedy = "nothing brings it back; run the job again if its log is needed"
                    yield SuspectedProblem(
                        Problem(JobKeys.key(job.id), what, remedy), seen.versions(JobKeys.key(job.id))
                    )


def ownerless_blobs(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find blobs that no job and no pool names; only if all records can be read, because any record may name one."""
    pools = [key for key in seen.keys[PoolKeys.area] if PoolKeys.parse_record(key)]
    if any(seen.is_doubtful(key) for key in (*pools, *seen.keys[JobKeys.area], *seen.keys[ArchiveKeys.area])):
        return
    used: set[str] = set()
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            used.update(blobs_of(job.spec))
    for key in pools:
        with seen.judging(key):
            used.update(blobs_named(seen.stored[key].record) if key in seen.stored else ())
    if not seen.judged_all:
        return
    for key in unneeded_blobs(seen.keys[BlobKeys.area], used, oldest_kept_month(seen.now, seen.settings)):
        yield SuspectedProblem(Problem(key, "no job needs it", BY_SWEEP), fix=removal_of(key))


def stale_endpoints(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find endpoints of actors whose jobs no longer run."""
    for endpoint in seen.endpoints:
        with seen.judging(endpoint.key):
            job = JobKeys.key(endpoint.record.job)
            if seen.is_doubtful(job) or not seen.is_settled(endpoint.key, job):
                continue
            if is_stale(endpoint.record, seen.jobs.get(endpoint.record.job)):
                what = "it is the address of an actor whose job no longer runs"
                yield SuspectedProblem(Problem(endpoint.key, what, BY_REPAIR), seen.versions(endpoint.key, job))
