"""Removing a finished job and all that belongs to it. When it may go is decided in `protocol.retention`."""

from __future__ import annotations

from collections.abc import Set

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.protocol.retention import is_removable, mark_expiring, unneeded_blobs
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import BlobKeys, WorkKeys
from fray_layouts.records import JobRecord


async def remove_job(core: Core, job: Stored[JobRecord]) -> None:
    """Mark the record expiring, delete the job's data, then the record on condition of the marked version.

    The job has no children left; while the inbox still names it, nothing is removed.
    """
    origin = job.record.inbox
    present = await core.store.get(origin.current_key) if origin is not None else None
    in_inbox = present.version if present is not None else None
    if not is_removable(job.record, core.now(), core.settings, has_children=False, version_in_inbox=in_inbox):
        return
    update = await core.records.change(job.key, JobRecord, mark_expiring, job)
    if update.stored is None:
        return
    data = await core.store.list(WorkKeys.prefix(job.record.id))
    await map_concurrently(data, lambda row: core.store.delete(row.key))
    await core.store.delete(job.key, update.stored.version)


async def remove_blobs(core: Core, used: Set[str], since: str, problems: dict[str, str]) -> None:
    """Delete the blobs of the months before `since` that are not among the `used` ones."""
    blobs = [row.key for row in await core.store.list(BlobKeys.area)]
    await map_noting_problems(unneeded_blobs(blobs, used, since), core.store.delete, problems)
