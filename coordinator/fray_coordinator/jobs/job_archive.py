"""Records of jobs in their two places, `jobs/` and `archive/`; `protocol.retention` says why two reads find any job."""

from collections.abc import AsyncIterator

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.retention import archive_time, blobs_to_keep, may_archive, why_unusable
from fray_coordinator.store.interface import ABSENT, Applied, Listed
from fray_coordinator.store.paging import list_pages
from fray_coordinator.store.records import Stored
from fray_layouts import codec
from fray_layouts.object_keys import ArchiveKeys, JobKeys
from fray_layouts.records import JobRecord


async def find_record(core: Core, job_id: str, one_of_many: bool = False) -> Stored[JobRecord] | None:
    """The record of a job, wherever it lies; None if there is none. Raises BadRecord: it cannot be read.

    Code that acts only on jobs that have not ended reads `jobs/` alone. one_of_many: as in `Store.get`.
    """
    found = await core.records.read(JobKeys.key(job_id), JobRecord, one_of_many)
    return found if found is not None else await find_archived(core, job_id, one_of_many)


async def reread_record(core: Core, known: Stored[JobRecord]) -> Stored[JobRecord] | None:
    """Read a record again: `known` itself if it has not changed (a cheap request), None if there is none any more."""
    found = await core.records.reread(known)
    return found if found is not None else await find_archived(core, known.record.id)


async def find_archived(core: Core, job_id: str, one_of_many: bool = False) -> Stored[JobRecord] | None:
    """The archived record of a job; None if there is none. Raises BadRecord: it cannot be read, or has not ended."""
    found = await _copy_of(core, job_id, one_of_many)
    if found is not None and (why := why_unusable(found.record)) is not None:
        raise BadRecord(f"{found.key} {'; '.join(why)}")
    return found


async def _copy_of(core: Core, job_id: str, one_of_many: bool) -> Stored[JobRecord] | None:
    return await core.records.read(ArchiveKeys.key(job_id), JobRecord, one_of_many)


async def archive(core: Core, job_id: str) -> None:
    """Move the record of a job that ended long ago: copy it, then delete it on condition of the version copied.

    Before that, what keeps the old blobs that it names is written.

    The caller has checked that the job has no children. A copy may be there already, from a mover that died before the
    record changed. Then the record is read again after that copy, and replaces it on condition of its version. So a
    mover that was slow never puts an older copy over a newer one.
    """
    copy, job = ArchiveKeys.key(job_id), await _movable(core, job_id)
    if job is None:
        return
    for kept in blobs_to_keep(job.record, core.now()):
        await core.store.put(kept.key(), b"", ABSENT, one_of_many=True)
    written = await core.store.put(copy, codec.encode(job.record, job.raw), ABSENT, one_of_many=True)
    if not isinstance(written, Applied):
        old, job = await _copy_of(core, job_id, one_of_many=True), await _movable(core, job_id)
        if old is None or job is None:
            return
        update = await core.records.write(copy, JobRecord, job.record, replace(old, raw=job.raw), one_of_many=True)
        if not update.wrote:
            return
    await core.store.delete(job.key, job.version)


async def _movable(core: Core, job_id: str) -> Stored[JobRecord] | None:
    job = await core.records.read(JobKeys.key(job_id), JobRecord, one_of_many=True)
    if job is None or not may_archive(archive_time(job.record, core.settings), core.now(), has_children=False):
        return None
    return job


async def archived_rows(
    core: Core, submitted_until: float | None = None, text: str = "", versions: bool = False
) -> AsyncIterator[list[Listed]]:
    """Yield pages of the rows of archived records. A listing of a bucket skips what is not asked for.

    Args:
        submitted_until: only jobs submitted until the day of this time, and those whose ids have no time; None: all.
        text: only ids that begin with it.
        versions: as for `Store.list`.
    """
    last_day = ArchiveKeys.own_ids if submitted_until is None else ArchiveKeys.folder(submitted_until)

    def is_too_late(folder: str) -> bool:
        return last_day < folder < ArchiveKeys.own_ids

    def skip(key: str) -> str:
        folder = key[: key.rindex("/") + 1]
        if is_too_late(folder):
            return ArchiveKeys.own_ids
        if key < folder + text:
            return folder + text
        is_past = not key.startswith(folder + text) and folder != ArchiveKeys.area
        return f"{folder}~" if is_past else key

    async for page in list_pages(core.store, ArchiveKeys.area, next_after=skip, versions=versions):
        jobs = [(row, ArchiveKeys.parse(row.key)) for row in page]
        yield [
            row
            for row, job in jobs
            if job is not None and job.startswith(text) and not is_too_late(row.key[: row.key.rindex("/") + 1])
        ]
