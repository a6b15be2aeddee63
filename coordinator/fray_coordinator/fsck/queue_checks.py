"""Checks of queues and worker pools for leftovers without an owner. Of items, only the keys are read."""

from collections.abc import Iterator
from functools import partial

from fray_coordinator import worker_pools
from fray_coordinator.core import Core
from fray_coordinator.fsck.index_checks import removal_of
from fray_coordinator.fsck.report import BY_SWEEP, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.protocol import queue_segments
from fray_coordinator.protocol.queue_lease import is_complete, restored, undone_items
from fray_coordinator.protocol.queue_segments import all_creates_landed, is_collection_overdue
from fray_coordinator.protocol.retention import is_pool_unused
from fray_coordinator.queue.collector import SWEEP_INTERVAL
from fray_coordinator.queue.held_segment import read_segment
from fray_coordinator.queue.open_queue import find_queue
from fray_coordinator.reconcile.repair import POOL_SWEEP_INTERVAL
from fray_layouts.object_keys import NameKeys
from fray_layouts.queue_keys import QueueKeys, SegmentName, TaskKeys, owner_of
from fray_layouts.queue_records import QueueLease
from fray_layouts.records import NameRecord
from fray_layouts.states import NameState

QueueOwner = tuple[str, str, int]
"""Namespace, name and incarnation of a queue or pool."""


def leftovers(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find leftovers of removed queues and pools, and objects that no name leads to.

    A name is taken before anything else is created, and freed before anything is removed.
    """
    for owner, keys in _by_owner(seen).items():
        with seen.judging(_name_key(owner)):
            namespace, name, incarnation = owner
            key, record = _name_key(owner), _name(seen, owner)
            if seen.is_doubtful(key):
                continue
            if record is None or incarnation > record.incarnation:
                what = (
                    f"{len(keys)} objects of a queue or pool of this name lie under {name}~{incarnation}, but the "
                    f"name's record {f'says {record.incarnation}' if record else 'is gone'}: no process finds them "
                    "now, but the next holder of the name may"
                )
                remedy = f"write the record back with incarnation {incarnation}, or remove them if nobody needs them"
                yield SuspectedProblem(Problem(key, what, remedy), seen.versions(key))
            elif not _lives(seen, owner) and seen.is_settled(key):
                what = (
                    f"of the queue or pool that was removed as incarnation {incarnation}, {len(keys)} objects are left"
                )
                fix = partial(worker_pools.remove, namespace=namespace, name=name, incarnation=incarnation)
                yield SuspectedProblem(Problem(key, what, BY_SWEEP), seen.versions(key), fix)


def unfinished_queues(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find names that were taken for queues and pools whose creation was interrupted, or whose records are gone."""
    existing = {*seen.keys[QueueKeys.area], *seen.keys[TaskKeys.area]}
    for key in seen.keys[NameKeys.area]:
        with seen.judging(key):
            namespace, kind, name = NameKeys.parse(key) or ("", "", "")
            if kind != worker_pools.NAME_KIND or key not in seen.stored or not seen.is_settled(key):
                continue
            owner = (namespace, name, seen.stored[key].record.incarnation)
            settings = QueueKeys.of(*owner).settings
            if _lives(seen, owner) and settings not in existing:
                what = f"the name is taken, but there is no {settings}: the creation of this queue was interrupted"
                remedy = (
                    f"create it again under this name, which completes it; or free the name: `fray queue rm {name} "
                    f"--namespace {namespace}`"
                )
                yield SuspectedProblem(Problem(key, what, remedy), seen.versions(key))


def orphan_leases(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find leases whose segments are gone; consumers delete such leases, many at a time."""
    for queue, keys in _living(seen):
        with seen.judging(queue.settings):
            for segment in queue_segments.parse_listing(queue, keys).orphans:
                key = queue.lease(segment)
                with seen.judging(key):
                    if key in seen.stored and seen.is_settled(key) and _is_old(seen, queue, segment, seen.patience):
                        what = _of_a_lost_segment(seen.stored[key].record, SegmentName.items_of(segment))
                        fix = partial(_discard, queue=queue, segment=segment)
                        yield SuspectedProblem(Problem(key, what, BY_SWEEP), seen.versions(key), fix)


def unreadable_segments(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find segments that consumers set aside because they could not read them."""
    for queue, keys in _living(seen):
        for key in keys:
            with seen.judging(key):
                segment, is_lease = queue.parse(key) or ("", False)
                if is_lease and key in seen.stored and (problem := seen.stored[key].record.problem):
                    what = f"nobody gets its items, {SegmentName.items_of(segment)} by its name: {problem}"
                    remedy = (
                        "put back what belongs there, then `fray fsck --repair` gives it to consumers again; if nobody "
                        f"needs it, remove this and {key}"
                    )
                    fix = partial(_give_back, queue=queue, segment=segment)
                    yield SuspectedProblem(Problem(queue.segment(segment), what, remedy), seen.versions(key), fix)


def orphan_large_items(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find large items without a segment; they are stored before it and deleted before it."""
    for queue, keys in _living(seen):
        existing = set(keys)
        for key in keys:
            with seen.judging(key):
                segment, _ = queue.parse_large(key) or ("", 0)
                if not segment or queue.segment(segment) in existing:
                    continue
                quarantine = seen.stored[queue.settings].record.quarantine
                if all_creates_landed(
                    SegmentName.time_of(segment), seen.now - seen.patience - SWEEP_INTERVAL, quarantine
                ):
                    what = "it is an item whose segment was never created or is gone, so no consumer gets it"
                    yield SuspectedProblem(Problem(key, what, BY_SWEEP), fix=removal_of(key))


def unused_pools(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find worker pools that nobody has used or shut down for longer than finished jobs are kept."""
    for owner, keys in _by_owner(seen).items():
        with seen.judging(_name_key(owner)):
            pool = seen.stored.get(TaskKeys.of(*owner).pool)
            if pool is None or not _lives(seen, owner) or any(seen.has_job(job) for job in pool.record.jobs):
                continue
            record, now = pool.record, seen.now - seen.patience - POOL_SWEEP_INTERVAL
            if is_pool_unused(record.created_at, record.used_at, now, seen.settings):
                namespace, name, _ = owner
                what = (
                    "no driver and no worker has used this pool for longer than jobs are kept, and nobody has shut it "
                    f"down: its {len(keys)} objects are left"
                )
                fix = partial(worker_pools.remove_if_unused, namespace=namespace, name=name)
                yield SuspectedProblem(Problem(pool.key, what, BY_SWEEP), seen.versions(pool.key), fix)


def _by_owner(seen: Snapshot) -> dict[QueueOwner, list[str]]:
    """All keys of queues and pools, by owner."""
    found: dict[QueueOwner, list[str]] = {}
    for key in (*seen.keys[QueueKeys.area], *seen.keys[TaskKeys.area]):
        with seen.judging(key):
            if (owner := owner_of(key)) is not None:
                found.setdefault(owner, []).append(key)
    return found


def _living(seen: Snapshot) -> list[tuple[QueueKeys, list[str]]]:
    """The queues that can be opened, with their keys in order; dead letters count as a queue of their own."""
    found: dict[QueueKeys, list[str]] = {}
    for key in seen.keys[QueueKeys.area]:
        with seen.judging(key):
            if (queue := QueueKeys.around(key)) is not None:
                found.setdefault(queue, []).append(key)
    return [(queue, keys) for queue, keys in found.items() if _can_open(seen, queue)]


def _can_open(seen: Snapshot, queue: QueueKeys) -> bool:
    owner = owner_of(queue.settings)
    return owner is not None and _lives(seen, owner) and queue.settings in seen.stored


def _name_key(owner: QueueOwner) -> str:
    namespace, name, _ = owner
    return NameKeys.key(namespace, worker_pools.NAME_KIND, name)


def _name(seen: Snapshot, owner: QueueOwner) -> NameRecord | None:
    stored = seen.stored.get(_name_key(owner))
    return stored.record if stored is not None else None


def _lives(seen: Snapshot, owner: QueueOwner) -> bool:
    record = _name(seen, owner)
    return record is not None and record.state == NameState.HELD and record.incarnation == owner[2]


def _is_old(seen: Snapshot, queue: QueueKeys, segment: str, seconds: float) -> bool:
    """Whether the segment's collection has been overdue for more than `seconds`, and for three quarantines.

    Other consumers collect it once they have seen it for a quarantine, and wait for another one for other segments to
    collect together with it; one of them may end meanwhile.
    """
    quarantine = seen.stored[queue.settings].record.quarantine
    return is_collection_overdue(SegmentName.time_of(segment), seen.now - seconds - 3 * quarantine, quarantine)


def _of_a_lost_segment(lease: QueueLease, items: int) -> str:
    left = len(undone_items(lease, items))
    if left in (0, items):
        return "it is the lease of a deleted segment; the process that deleted the segment died before it deleted this"
    return f"its segment is gone, though {left} of its {items} items were not done: push them again, they are lost"


async def _give_back(core: Core, queue: QueueKeys, segment: str) -> None:
    """Return a segment that was set aside to the consumers. Raises BadRecord if it still cannot be read."""
    home = await find_queue(core, queue)
    if home is not None and await read_segment(home, segment) is not None:
        await core.records.change(queue.lease(segment), QueueLease, restored)


async def _discard(core: Core, queue: QueueKeys, segment: str) -> None:
    """Delete a lease on condition of its version from before the segment was found to be absent."""
    lease = await core.records.read(queue.lease(segment), QueueLease)
    home = await find_queue(core, queue)
    if home is not None and lease is not None and await core.store.get(queue.segment(segment)) is None:
        owner = lease.record.owner
        receipted = bool(owner) and await home.receipts.names(segment, owner)
        if receipted or is_complete(lease.record, SegmentName.items_of(segment)):
            await home.finished.note([segment])
        await core.store.delete(lease.key, lease.version)
