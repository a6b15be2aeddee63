"""Runs the checks and the repair.

A live cluster changes while a snapshot is taken, so every suspicion is checked again. A problem is what two consecutive
snapshots show of the same versions of the records concerned, after the time in which the protocol lets others correct
it.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.fsck import index_checks, job_checks, object_checks, queue_checks
from fray_coordinator.fsck.report import Moved, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot, take_snapshot
from fray_coordinator.reconcile import reaper
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.failure_detector import FailureDetector
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.store.file_tree import FULL_REMEDY, lack_of_room
from fray_coordinator.store.opening import folder_of_root
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import (
    AgentKeys,
    ArchiveKeys,
    BlobKeys,
    CoordinatorKeys,
    EndpointKey,
    JobKeys,
    NameKeys,
    PoolKeys,
    ReservationKeys,
)
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.work_keys import InboxKeys, WorkKeys

MAX_PROBLEMS_NAMED = 1000
"""Problems that are listed one by one; further ones are only counted, because nobody reads more."""

CHECKS: tuple[tuple[Callable[[Snapshot], Iterator[SuspectedProblem]], tuple[str, ...]], ...] = (
    (object_checks.unusable_objects, ()),
    (object_checks.skipped_by_reconciler, (CoordinatorKeys.area, AgentKeys.area)),
    (job_checks.missing_entries, (PendingKey.area, JobKeys.area)),
    (job_checks.stuck_admissions, (JobKeys.area,)),
    (job_checks.missing_blobs, (BlobKeys.area, JobKeys.area)),
    (job_checks.jobs_without_lease, (JobKeys.area,)),
    (job_checks.abandoned_jobs, (PendingKey.area, AgentKeys.area, JobKeys.area)),
    (job_checks.abandoned_gangs, (WorkKeys.area, AgentKeys.area, JobKeys.area)),
    (job_checks.records_in_both_places, (ArchiveKeys.area, JobKeys.area)),
    (job_checks.archived_before_their_end, (ArchiveKeys.area,)),
    (job_checks.orphans, (JobKeys.area,)),
    (job_checks.missing_results, (WorkKeys.area, JobKeys.area, ArchiveKeys.area)),
    (job_checks.contradictory_agents, (AgentKeys.area, JobKeys.area)),
    (job_checks.unnoticed_silence, (CoordinatorKeys.area, AgentKeys.area)),
    (job_checks.reported_problems, (AgentKeys.area,)),
    (object_checks.stuck_drops, (InboxKeys.area, CoordinatorKeys.area, AgentKeys.area)),
    (index_checks.wrong_entries, (PendingKey.area, AgentKeys.area, JobKeys.area)),
    (index_checks.wrong_child_entries, (ChildKey.area, JobKeys.area, ArchiveKeys.area)),
    (index_checks.missing_gang_entries, (PlacementKey.area, JobKeys.area)),
    (index_checks.unneeded_owner_entries, (PlacementKey.area, ReservationKeys.area, JobKeys.area)),
    (object_checks.ownerless_work, (WorkKeys.area, JobKeys.area, ArchiveKeys.area)),
    (object_checks.missing_log_chunks, (WorkKeys.area, JobKeys.area, ArchiveKeys.area)),
    (object_checks.ownerless_blobs, (BlobKeys.area, PoolKeys.area, JobKeys.area, ArchiveKeys.area)),
    (object_checks.stale_endpoints, (EndpointKey.area, JobKeys.area)),
    (queue_checks.leftovers, (NameKeys.area, QueueKeys.area, TaskKeys.area)),
    (queue_checks.unfinished_queues, (NameKeys.area, QueueKeys.area, TaskKeys.area)),
    (queue_checks.orphan_leases, (NameKeys.area, QueueKeys.area)),
    (queue_checks.unreadable_segments, (NameKeys.area, QueueKeys.area)),
    (queue_checks.orphan_large_items, (NameKeys.area, QueueKeys.area)),
    (queue_checks.unused_pools, (NameKeys.area, QueueKeys.area, TaskKeys.area, JobKeys.area, ArchiveKeys.area)),
)
"""Each check, with the areas that it needs: without one of them it would report problems that do not exist."""


async def check(core: Core) -> list[Problem]:
    """The cluster's present problems, at most `MAX_PROBLEMS_NAMED`; if there are more, a last one counts the rest."""
    found = await _confirmed(core)
    folder = folder_of_root(core.root)
    lack = lack_of_room(folder) if folder is not None else ""
    named = [Problem("/", lack, FULL_REMEDY)] if lack else []
    named += [suspicion.problem for suspicion in islice(found, MAX_PROBLEMS_NAMED)]
    if omitted := sum(1 for _ in found):
        named.append(Problem("/", f"there are {omitted} more problems", "deal with these first, then look again"))
    return named


async def repair(core: Core) -> list[Moved]:
    """Reap dead agents, repair indexes, stop orphans, admit the inbox, and remove data without a record.

    Returns the unreadable objects that it set aside. It declares no agent dead, because that takes longer than one
    observation. If a step fails, the others still run; `check` reports what is left.
    """
    watch, mended = FailureDetector(core), Repair(core, Admission(core))
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: watch.observe_agents({}),
        lambda: map_noting_problems(watch.unreaped(), lambda dead: reaper.reap(core, dead), {}, lambda dead: dead.key),
        lambda: mended.run(watch.watched()),
        mended.archive.run,
    ]
    await map_noting_problems(steps, lambda step: step(), {}, at_once=1)
    fixes = ((found.problem.key, found.fix) for found in await _confirmed(core) if found.fix is not None)
    moved: list[Moved] = []
    while batch := list(islice(fixes, MAX_PROBLEMS_NAMED)):
        done = await map_noting_problems(batch, lambda one: one[1](core), {}, lambda one: one[0], at_once=1)
        moved += [result for result in done if isinstance(result, Moved)]
    return moved


async def _confirmed(core: Core) -> Iterator[SuspectedProblem]:
    """The problems that two snapshots agree on. Only hashes of the first are kept, because there may be any number."""
    first = await take_snapshot(core)
    before = {_sign(suspicion) for suspicion in _suspected(first)}
    again = await take_snapshot(core, first) if before else None
    return (found for found in _suspected(again) if _sign(found) in before) if again else iter(())


def _sign(suspicion: SuspectedProblem) -> int:
    """What two snapshots must agree on. A remedy may change meanwhile: it depends on what else is at work."""
    return hash((suspicion.problem.key, suspicion.problem.what, suspicion.versions))


def _suspected(seen: Snapshot) -> Iterator[SuspectedProblem]:
    for find, needs in CHECKS:
        if any(area in seen.unlisted for area in needs):
            continue
        with seen.judging("/"):
            yield from find(seen)
        for key, error in seen.failed().items():
            what = f"one of the checks ({find.__name__}) could not judge this: {error}"
            remedy = "this is a fault of Fray: please report it with what `fray doctor` says"
            yield SuspectedProblem(Problem(key, what, remedy))
