"""Data that belongs to nothing: a record exists before its data, and a blob before the record that names it."""

from __future__ import annotations

from collections.abc import Iterator

from fray_coordinator.fsck.index import remove
from fray_coordinator.fsck.picture import Picture
from fray_coordinator.fsck.trouble import BY_HAND, BY_REPAIR, BY_SWEEP, Suspicion, Trouble
from fray_coordinator.protocol.naming import outlived_its_job
from fray_coordinator.protocol.retention import blobs_since, unneeded
from fray_layouts.names import Blobs, Jobs, Work


def work(seen: Picture) -> Iterator[Suspicion]:
    """Logs and results of jobs and attempts that never were, or are gone."""
    for key in seen.keys["work/"]:
        job_id, attempt = Work.parse(key) or ("", 0)
        job = seen.jobs.get(job_id)
        if not seen.has_job(job_id):
            yield Suspicion(Trouble(key, "it belongs to a job that has no record", BY_SWEEP), mend=remove(key))
        elif job is not None and attempt > job.attempt:
            what = f"it belongs to an attempt that never was: the job's record says {job.attempt}"
            yield Suspicion(Trouble(key, what, BY_HAND), seen.versions(Jobs.key(job_id)))


def logs(seen: Picture) -> Iterator[Suspicion]:
    """Chunks of logs that are gone; they are stored before the record says how many, and deleted after it is marked."""
    there = set(seen.keys["work/"])
    for job in seen.jobs.values():
        ends = {past.attempt: past.exit for past in job.history} | {job.attempt: job.exit}
        for attempt, end in ends.items() if not job.expiring else ():
            count = (end.log_chunks or 0) if end is not None else 0
            chunks = (Work.log(job.id, attempt, 0, number + 1) for number in range(count))
            if (gone := next((key for key in chunks if key not in there), None)) is not None:
                what = f"of the {count} parts of the log of attempt {attempt}, {gone} is gone: the log ends before it"
                remedy = "nothing brings it back; run the job again if its log is needed"
                yield Suspicion(Trouble(Jobs.key(job.id), what, remedy), seen.versions(Jobs.key(job.id)))


def blobs(seen: Picture) -> Iterator[Suspicion]:
    """Blobs that no job names; nothing is known while some record is in doubt, which may name any."""
    if any(seen.is_doubtful(key) for key in seen.keys[Jobs.prefix]):
        return
    used = {job.spec.entrypoint.callable.blob for job in seen.jobs.values() if job.spec.entrypoint.callable}
    for key in unneeded(seen.keys[Blobs.prefix], used, blobs_since(seen.now, seen.settings)):
        yield Suspicion(Trouble(key, "no job needs it", BY_SWEEP), mend=remove(key))


def endpoints(seen: Picture) -> Iterator[Suspicion]:
    """Addresses of actors whose job does not run any more."""
    for endpoint in seen.endpoints:
        job = Jobs.key(endpoint.record.job)
        if seen.is_doubtful(job) or not seen.is_settled(endpoint.key, job):
            continue
        if outlived_its_job(endpoint.record, seen.jobs.get(endpoint.record.job)):
            what = "it tells where an actor can be called whose job no longer runs"
            yield Suspicion(Trouble(endpoint.key, what, BY_REPAIR), seen.versions(endpoint.key, job))
