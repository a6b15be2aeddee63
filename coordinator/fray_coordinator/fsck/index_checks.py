"""Checks of the derived indexes, of jobs and of placements: entries that nobody needs, and missing entries."""

from collections.abc import Iterator
from functools import partial

from fray_coordinator.core import Core
from fray_coordinator.fsck.job_checks import is_orphan
from fray_coordinator.fsck.report import BY_FSCK, BY_HAND, BY_REPAIR, BY_SWEEP, Fix, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs.submission import create_child_entry
from fray_coordinator.placements.tables import record_key
from fray_coordinator.protocol.claiming import IndexAction, action_for
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.placements.rounds import OwnerRecord, entry_of_gang, is_needed
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import record_of
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import JobRecord


def removal_of(key: str) -> Fix:
    """A fix that deletes an object without an owner."""

    async def delete(core: Core) -> None:
        await core.store.delete(key)

    return delete


def wrong_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find entries of `pending/` whose job is gone or differs from them."""
    for key in seen.keys[PendingKey.area]:
        with seen.judging(key):
            entry = PendingKey.parse(key)
            if entry is None or seen.is_doubtful(JobKeys.key(entry.job)):
                continue
            job = seen.jobs.get(entry.job)
            if job is not None and not is_terminal(job) and entry.attempt > job.attempt:
                what = (
                    f"the index has an entry of attempt {entry.attempt}, but by its record the job is at {job.attempt}"
                )
                yield SuspectedProblem(Problem(key, what, BY_HAND), seen.versions(JobKeys.key(job.id)))
            elif problem := _unneeded(seen, key, entry, job):
                yield SuspectedProblem(problem, seen.versions(JobKeys.key(entry.job)))


def _unneeded(seen: Snapshot, key: str, entry: PendingKey, job: JobRecord | None) -> Problem | None:
    agent = job.lease.agent if job is not None and job.lease is not None else ""
    if not seen.is_settled(JobKeys.key(entry.job)) or seen.is_doubtful(AgentKeys.key(agent)):
        return None
    match action_for(entry, job, seen.agents.get(agent), seen.now - seen.patience, seen.settings):
        case IndexAction.DELETE:
            return Problem(key, "the index has an entry that nobody needs any more", BY_REPAIR)
        case IndexAction.RENEW if job is not None and entry.attempt < job.attempt:
            return Problem(key, "the index has the entry of an earlier attempt", BY_REPAIR)
        case IndexAction.RENEW:
            what = "the index has a second entry of this job, with a pool, priority, time or size that is not the job's"
            return Problem(key, f"{what}: it may start where or when it should not", BY_REPAIR)
    return None


def wrong_child_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find entries of `children/` that nobody needs, and children without an entry."""
    for key in seen.keys[ChildKey.area]:
        with seen.judging(key):
            entry = ChildKey.parse(key)
            if entry is None:
                continue
            child = seen.jobs.get(entry.child)
            if not seen.has_job(entry.parent) and not seen.has_job(entry.child):
                what = "neither this parent nor this child has a record"
                yield SuspectedProblem(Problem(key, what, BY_SWEEP), fix=removal_of(key))
            elif child is not None and seen.is_settled(JobKeys.key(child.id)) and _is_over(child, entry):
                what = "this child has ended, or belongs to a later attempt of its parent"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(JobKeys.key(child.id)))
    yield from _unlisted(seen)


def _is_over(child: JobRecord, entry: ChildKey) -> bool:
    return is_terminal(child) or (child.parent is not None and child.parent.attempt > entry.attempt)


def _unlisted(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find children without an entry; it is created before the child's record and stays until the child has ended."""
    listed = set(seen.keys[ChildKey.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            link, key = job.parent, JobKeys.key(job.id)
            if link is None or link.detached or is_terminal(job) or is_orphan(seen, job):
                continue
            entry = ChildKey(link.job, link.attempt, job.id).key()
            if entry not in listed:
                what = f"it has no entry {entry}, so it is ended only some time after its parent"
                yield SuspectedProblem(
                    Problem(key, what, BY_FSCK), seen.versions(key), partial(_create_child_entry, key=key)
                )


async def _create_child_entry(core: Core, key: str) -> None:
    job = record_of(await core.records.read(key, JobRecord))
    if job is not None and not is_terminal(job):
        await create_child_entry(core, job)


def missing_gang_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find gangs without an entry. Submitters create it before the record, and it stays until the gang has ended."""
    entries = set(seen.keys[PlacementKey.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            key, entry = JobKeys.key(job.id), entry_of_gang(job)
            if entry is not None and entry.key() not in entries and (job.inbox is None or seen.is_settled(key)):
                what = "it is a gang without an entry in placements/, so nobody gathers its members"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key))


def unneeded_owner_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find entries of `placements/` whose owners ended long ago or never existed."""
    for key in seen.keys[PlacementKey.area]:
        with seen.judging(key):
            entry = PlacementKey.parse(key)
            owner = record_key(entry) if entry is not None else ""
            if entry is None or seen.is_doubtful(owner) or not seen.is_settled(owner):
                continue
            of_kind = seen.jobs if entry.kind == GANG else seen.reservations
            record: OwnerRecord | None = of_kind.get(entry.owner)
            if not is_needed(entry, record, seen.now - seen.patience, seen.settings):
                what = "the index has an entry of an owner that has ended, or never existed"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(owner))
