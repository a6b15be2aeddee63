"""The derived indexes: entries that nobody needs, and those that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fray_coordinator.core import Core
from fray_coordinator.fsck.jobs import is_orphan
from fray_coordinator.fsck.picture import Picture
from fray_coordinator.fsck.trouble import BY_HAND, BY_REPAIR, BY_SWEEP, BY_US, Mend, Suspicion, Trouble
from fray_coordinator.protocol.index import Care, care_for
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.records import record_of
from fray_coordinator.submit import enter_child
from fray_layouts.names import Agents, Child, Jobs, Pending
from fray_layouts.records import JobRecord


def remove(key: str) -> Mend:
    """Deletes what was found to belong to nobody."""

    async def delete(core: Core) -> None:
        await core.store.delete(key)

    return delete


def entries(seen: Picture) -> Iterator[Suspicion]:
    """Entries of `pending/` that point at nothing, or not at what they should."""
    for key in seen.keys["pending/"]:
        entry = Pending.parse(key)
        if entry is None or seen.is_doubtful(Jobs.key(entry.job)):
            continue
        job = seen.jobs.get(entry.job)
        if job is not None and not is_terminal(job) and entry.attempt > job.attempt:
            what = f"the index has an entry of attempt {entry.attempt}, but by its record the job is at {job.attempt}"
            yield Suspicion(Trouble(key, what, BY_HAND), seen.versions(Jobs.key(job.id)))
        elif trouble := _unneeded(seen, key, entry, job):
            yield Suspicion(trouble, seen.versions(Jobs.key(entry.job)))


def _unneeded(seen: Picture, key: str, entry: Pending, job: JobRecord | None) -> Trouble | None:
    agent = job.lease.agent if job is not None and job.lease is not None else ""
    if not seen.is_settled(Jobs.key(entry.job)) or seen.is_doubtful(Agents.key(agent)):
        return None
    match care_for(entry, job, seen.agents.get(agent), seen.now - seen.patience, seen.settings):
        case Care.DELETE:
            return Trouble(key, "the index has an entry that nobody needs any more", BY_REPAIR)
        case Care.RENEW if job is not None and entry.attempt < job.attempt:
            return Trouble(key, "the index has the entry of an earlier attempt", BY_REPAIR)
        case Care.RENEW:
            what = "the index has a second entry of this job, with a pool, priority, time or size that is not the job's"
            return Trouble(key, f"{what}: it may start where or when it should not", BY_REPAIR)
    return None


def children(seen: Picture) -> Iterator[Suspicion]:
    """Entries of `children/` that nobody needs, and children that have none."""
    for key in seen.keys["children/"]:
        entry = Child.parse(key)
        if entry is None:
            continue
        child = seen.jobs.get(entry.child)
        if not seen.has_job(entry.parent) and not seen.has_job(entry.child):
            what = "neither this parent nor this child has a record"
            yield Suspicion(Trouble(key, what, BY_SWEEP), mend=remove(key))
        elif child is not None and seen.is_settled(Jobs.key(child.id)) and _is_over(child, entry):
            what = "this child has ended, or belongs to a later attempt of its parent"
            yield Suspicion(Trouble(key, what, BY_REPAIR), seen.versions(Jobs.key(child.id)))
    yield from _unlisted(seen)


def _is_over(child: JobRecord, entry: Child) -> bool:
    return is_terminal(child) or (child.parent is not None and child.parent.attempt > entry.attempt)


def _unlisted(seen: Picture) -> Iterator[Suspicion]:
    """An entry is made before its child's record, and stays until the child has ended."""
    listed = set(seen.keys["children/"])
    for job in seen.jobs.values():
        link, key = job.parent, Jobs.key(job.id)
        if link is None or link.detached or is_terminal(job) or is_orphan(seen, job):
            continue
        entry = Child(link.job, link.attempt, job.id).key()
        if entry not in listed:
            what = f"it has no entry {entry}, so it is ended only some time after its parent"
            yield Suspicion(Trouble(key, what, BY_US), seen.versions(key), partial(_enter, key=key))


async def _enter(core: Core, key: str) -> None:
    job = record_of(await core.records.read(key, JobRecord))
    if job is not None and not is_terminal(job):
        await enter_child(core, job)
