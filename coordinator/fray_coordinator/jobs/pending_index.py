"""Keeps the pending index in agreement with the records. `protocol.claiming` decides what to do."""

from fray_coordinator.core import Core
from fray_coordinator.jobs import notifications
from fray_coordinator.protocol.claiming import IndexAction, action_for
from fray_coordinator.protocol.commit import requeue_lost
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ABSENT, ANY
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord, PendingEntry


async def create_entry(core: Core, job: JobRecord, again: bool = False) -> None:
    """Create the entry of the job's current attempt; `again` writes it as a new version even if it exists."""
    entry = PendingEntry(job=job.id, attempt=job.attempt)
    await core.records.put(entry_of(job).key(), entry, ANY if again else ABSENT)


async def delete_entry(core: Core, entry: PendingKey) -> None:
    """Delete an entry whose attempt has ended, or whose job an applied heartbeat lists."""
    await core.store.delete(entry.key())


async def finish_requeue(core: Core, job: JobRecord, before: PendingKey | None) -> None:
    """Finish a requeue: create the new attempt's entry, delete the old one if there is one, then ring the doorbell."""
    await create_entry(core, job)
    if before is not None:
        await delete_entry(core, before)
    await notifications.ring(core, job.spec.pool)


async def requeue_if_orphaned(core: Core, known: Stored[JobRecord]) -> Stored[JobRecord] | None:
    """Requeue the job if its holder is dead or absent, and make the index follow; returns the present record."""
    lease = known.record.lease
    if known.record.status != Status.RUNNING or lease is None:
        return known
    holder = await core.records.read(AgentKeys.key(lease.agent), AgentRecord, one_of_many=True)
    if not is_fenced(record_of(holder)):
        return known
    return await requeue_lost_job(core, known, lease.agent)


async def requeue_lost_job(core: Core, known: Stored[JobRecord], agent: str) -> Stored[JobRecord] | None:
    """Requeue the job if `agent`, which is dead or absent, holds it."""
    before = entry_of(known.record)
    update = await core.records.change(
        known.key, JobRecord, lambda job: requeue_lost(job, agent, core.now(), core.settings), known
    )
    if update.wrote and update.stored is not None:
        await _update_index(core, update.stored.record, before)
    return update.stored


async def requeue_dropped(core: Core, known: Stored[JobRecord]) -> None:
    """Requeue a job that its live holder has dropped, if the record is still the version that showed this."""
    lease = known.record.lease
    why = "lives, but has dropped it"
    wanted = requeue_lost(known.record, lease.agent, core.now(), core.settings, why) if lease is not None else None
    if wanted is not None and (written := await core.records.write(known.key, JobRecord, wanted, known)).wrote:
        assert written.stored is not None, "it was just written"
        await _update_index(core, written.stored.record, entry_of(known.record))


async def _update_index(core: Core, job: JobRecord, before: PendingKey) -> None:
    """Make the index follow a record that was taken from its agent."""
    if job.status == Status.PENDING:
        await finish_requeue(core, job, before)
    else:
        await delete_entry(core, before)


async def reconcile_entry(core: Core, key: str, entry: PendingKey) -> None:
    """Judge one entry by the records that it refers to: delete it, renew it, or requeue its job."""
    present = await core.store.get(key)
    if present is None:
        return
    job = await core.records.read(JobKeys.key(entry.job), JobRecord, one_of_many=True)
    lease = job.record.lease if job and job.record.status == Status.RUNNING else None  # else nobody holds it
    holder = await core.records.read(AgentKeys.key(lease.agent), AgentRecord, one_of_many=True) if lease else None
    action = action_for(entry, record_of(job), record_of(holder), core.now(), core.settings)
    match action:
        case IndexAction.DELETE:
            await core.store.delete(key, present.version)
        case IndexAction.RENEW if job is not None:
            await create_entry(core, job.record)
            await core.store.delete(key, present.version)
        case IndexAction.REQUEUE if job is not None and lease is not None:
            await requeue_lost_job(core, job, lease.agent)
