"""Submits jobs, and submits jobs that have ended again.

The index entry is written first, then the record, then the doorbell. An entry without a record is ignored, and the
repair finds a record without an entry. A child's `children/` entry is written before both, so that no child can be
missed.

A job that has ended is submitted again as a new job; `protocol.job_identity` decides which can be. The new job names
the old one. It has no parent and no id of its submitter's own. An actor that owns its name takes the name anew, for the
new job, so its next incarnation is the new job's.
"""

import hashlib
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.actors import naming
from fray_coordinator.concurrency import MAX_CONCURRENT_FOR_PEOPLE, map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import ParentNotRunning
from fray_coordinator.jobs import notifications, pending_index
from fray_coordinator.jobs.job_archive import find_record
from fray_coordinator.protocol import stopping
from fray_coordinator.protocol.claiming import is_created_late
from fray_coordinator.protocol.job_identity import check_resubmission, identify, retry_obstacle
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import BlobKeys, JobIds, JobKeys
from fray_layouts.records import ChildEntry, JobRecord, ParentLink, ancestors_of_child
from fray_layouts.spec import MAX_INLINE_BYTES, JobSpec, is_gang


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job of a submission. found: whether a job with this id existed before."""

    job: JobRecord
    found: bool


async def submit(
    core: Core,
    specs: Sequence[JobSpec],
    attempt_of_parent: int | None = None,
    ids: Sequence[str] = (),
    ancestors: Sequence[str] = (),
) -> list[Submitted]:
    """Submit jobs, with one read of each parent and one ring of each pool's doorbell.

    Args:
        specs: checked specs. If one has an `id`, and a job was submitted before with that id, the same name and the
            same namespace, it finds that job.
        attempt_of_parent: the parent's attempt that submits, from FRAY_ATTEMPT; None: its current one.
        ids: job ids that `JobIds.fresh` made a moment ago for these specs, if they must be known in advance; then no
            spec has an `id`.
        ancestors: with `attempt_of_parent`, those of the parent, from FRAY_ANCESTORS; otherwise, of jobs without a
            parent: the driver that submits them, if there is one.

    Raises:
        ParentNotRunning: a spec names a parent that has ended or never existed.
        InvalidInput: a job was submitted before under a spec's `id` and runs something else.
        StoreUnavailable: some may have been submitted; specs with an `id` can be submitted again.
    """
    named = sorted({spec.parent for spec in specs if spec.parent and attempt_of_parent is None})
    parents = dict(zip(named, await map_concurrently(named, lambda parent: running_parent(core, parent)), strict=True))

    async def one(numbered: tuple[int, JobSpec]) -> Submitted:
        number, spec = numbered
        parent = parents.get(spec.parent)
        attempt = parent.attempt if parent else attempt_of_parent if spec.parent else None
        complete = await _with_blob(core, spec)
        job = new_record(core, complete, parent, attempt, ids[number] if ids else "")
        if attempt is None:
            job.ancestors = list(ancestors)
        else:
            job.ancestors = ancestors_of_child(parent.ancestors if parent else ancestors, spec.parent)
        return await submit_one(core, job)

    done = await map_concurrently(enumerate(specs), one, MAX_CONCURRENT_FOR_PEOPLE)
    if done:  # nobody is told of jobs that were written into another cluster
        await core.store.confirm_root()
    await ring(core, [submitted.job for submitted in done])
    return done


async def ring(core: Core, jobs: Sequence[JobRecord]) -> None:
    """Ring the doorbell of each pool in which one of the jobs waits, and that of placements if one is a gang."""
    pools = {job.spec.pool for job in jobs if job.status == Status.PENDING}
    await map_concurrently(sorted(pools), lambda pool: notifications.ring(core, pool))
    if any(job.status == Status.GATHERING for job in jobs):
        await notifications.ring_placements_bell(core)


async def running_parent(core: Core, parent: str) -> JobRecord:
    """The record of the running job `parent`. Raises ParentNotRunning."""
    found = await find_record(core, JobIds.checked(parent, "parent"))
    if found is None or found.record.status != Status.RUNNING:
        raise not_running(parent, record_of(found))
    return found.record


def not_running(parent: str, found: JobRecord | None) -> ParentNotRunning:
    """The error for a child of `parent`, whose record is `found`."""
    state = "unknown" if found is None else found.status
    return ParentNotRunning(f"the parent {parent} is {state}; a child needs a running parent, or leave parent out")


async def put_blob(core: Core, data: bytes) -> str:
    """Store bytes under their digest; returns the key."""
    key = BlobKeys.key(core.now(), hashlib.sha256(data).hexdigest())
    await core.store.put(key, data, ABSENT)
    return key


async def _with_blob(core: Core, spec: JobSpec) -> JobSpec:
    """The spec, with a large callable moved to a separate object."""
    call = spec.entrypoint.callable
    if call is None or len(call.pickle) <= MAX_INLINE_BYTES * 4 // 3:  # the text is base64
        return spec
    try:
        data = b64decode(call.pickle, validate=True)
    except ValueError as error:
        raise InvalidInput("entrypoint.callable.pickle", "...", f"give base64 of a pickle ({error})") from None
    key = await put_blob(core, data)
    return replace(spec, entrypoint=replace(spec.entrypoint, callable=replace(call, pickle="", blob=key)))


async def submit_one(core: Core, job: JobRecord) -> Submitted:
    """Submit a job of `new_record`, without ringing a doorbell. Raises as `submit`."""
    spec = job.spec
    if spec.id and (earlier := await find_record(core, job.id)) is not None:
        return Submitted(await _adopt(core, earlier, job), True)
    await create_child_entry(core, job)
    await create_index_entry(core, job)
    written = await core.records.write(JobKeys.key(job.id), JobRecord, job, None)
    if not written.wrote and written.stored is not None:  # under a fresh id it is this job, and somebody has changed it
        return Submitted(await _adopt(core, written.stored, job), bool(spec.id))
    if is_created_late(job, core.now(), core.settings):
        await create_index_entry(core, job, again=True)
    return Submitted(job, False)


def new_record(
    core: Core, spec: JobSpec, parent: JobRecord | None, parent_attempt: int | None, fresh: str
) -> JobRecord:
    """The record of a new job. fresh: its id if the spec has none; "" makes one."""
    now = core.now()
    job_id, spec = identify(spec, parent, fresh or JobIds.fresh(spec.name, now, core.rng.token()))
    return JobRecord(
        id=job_id,
        spec=spec,
        status=str(Status.GATHERING if is_gang(spec) else Status.PENDING),
        submitted_at=now,
        parent=ParentLink(job=spec.parent, attempt=parent_attempt, detached=spec.detached) if parent_attempt else None,
    )


async def create_index_entry(core: Core, job: JobRecord, again: bool = False) -> None:
    """Create the index entry of a waiting job: gangs are found by the reconciler, other jobs by agents."""
    if is_gang(job.spec):
        await notifications.enter(core, job, again)
    else:
        await pending_index.create_entry(core, job, again)


async def create_child_entry(core: Core, job: JobRecord) -> None:
    """Create the `children/` entry of a job that has a parent; this comes before the record."""
    if job.parent is not None and not job.parent.detached:
        entry = ChildKey(job.parent.job, job.parent.attempt, job.id)
        await core.records.write(entry.key(), ChildEntry, ChildEntry(child=job.id), None)


async def _adopt(core: Core, earlier: Stored[JobRecord], wanted: JobRecord) -> JobRecord:
    """Move a child of the parent's earlier attempt to the present one: first the entry, then the attempt in the record.

    Raises InvalidInput: the job that was submitted before under this id runs something else.
    """
    check_resubmission(earlier.record, wanted)
    link = wanted.parent
    if link is None or stopping.adopted(earlier.record, link.job, link.attempt) is None:
        return earlier.record
    await create_child_entry(core, wanted)
    update = await core.records.change(
        earlier.key, JobRecord, lambda job: stopping.adopted(job, link.job, link.attempt), earlier
    )
    return update.stored.record if update.stored else earlier.record


async def retry(core: Core, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Submit jobs that have ended again: each as a new job that names the old one, without parent and without own id.

    Raises:
        InvalidInput: one cannot be submitted again (`retry_obstacles`); none was.
        NameTaken: another actor has the name of one of them now; others may have been submitted.
        StoreUnavailable: some may have been submitted.
    """
    for job, why in (await retry_obstacles(core, jobs)).items():
        raise InvalidInput("job", job, why)
    done = await map_concurrently(jobs, lambda job: _retry_one(core, job), MAX_CONCURRENT_FOR_PEOPLE)
    await ring(core, done)
    return done


async def retry_obstacles(core: Core, jobs: Sequence[JobRecord]) -> dict[str, str]:
    """By id, those of these jobs that cannot be submitted again, and why."""

    async def obstacle(job: JobRecord) -> tuple[str, str]:
        name = job.spec.actor and await naming.read_name(core, job.spec.namespace, "actor", _actor_name(job))
        return job.id, retry_obstacle(job, name or None)

    found = await map_concurrently(jobs, obstacle, MAX_CONCURRENT_FOR_PEOPLE)
    return {job: why for job, why in found if why}


async def _retry_one(core: Core, job: JobRecord) -> JobRecord:
    spec, new_id = replace(job.spec, id="", parent="", detached=False), ""
    if spec.actor:
        new_id = JobIds.unique(spec.namespace, spec.name, core.now(), core.rng.token())
        await naming.take_name(core, spec.namespace, "actor", _actor_name(job), new_id)
    new = replace(new_record(core, spec, None, None, new_id), retry_of=job.id)
    return (await submit_one(core, new)).job


def _actor_name(job: JobRecord) -> str:
    """The name of the actor that a job serves: the job's name without the actor's number in its group."""
    return job.spec.name.rpartition("-")[0]
