"""The exits of a gang's replicas in the store; the member that ran a replica creates its exit once.

An unreadable exit only shows that the replica has ended; `unreadable_exit` says how it is counted.
"""

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.placements.gang_end import unreadable_exit
from fray_layouts.records import JobRecord, ReplicaExit
from fray_layouts.work_keys import WorkKeys


async def store_exit(core: Core, job: JobRecord, replica: int, left: ReplicaExit) -> ReplicaExit:
    """Create the exit of a replica of the job's attempt; returns the stored exit, which may be an earlier one.

    Raises StoreUnavailable: unresolved; call again until it answers.
    """
    key = WorkKeys.exit(job.id, job.attempt, replica)
    try:
        stored = (await core.records.write(key, ReplicaExit, left, None)).stored
    except BadRecord as error:
        return unreadable_exit(job, replica, str(error), core.now())
    return stored.record if stored is not None else left


async def exit_times(core: Core, job: JobRecord) -> dict[int, float]:
    """By replica: when its exit was stored, on the storage's clock; 0.0 where the storage does not say."""
    rows = await core.store.list(WorkKeys.exits(job.id, job.attempt), versions=True)
    found = {WorkKeys.parse_exit(row.key): row.updated or 0.0 for row in rows}
    return {replica: found[replica] for replica in range(job.spec.replicas) if replica in found}


async def ended_replicas(core: Core, job: JobRecord) -> set[int]:
    """The replicas of the job's attempt whose exits are stored."""
    return set(await exit_times(core, job))


async def stored_exits(core: Core, job: JobRecord) -> dict[int, ReplicaExit]:
    """The stored exits of the job's attempt, by replica. Raises BadRecord: an exit was listed but is gone."""

    async def read(replica: int) -> ReplicaExit:
        key = WorkKeys.exit(job.id, job.attempt, replica)
        try:
            found = await core.records.read(key, ReplicaExit, one_of_many=True)
        except BadRecord as error:
            return unreadable_exit(job, replica, str(error), core.now())
        if found is None:
            raise BadRecord(f"{key} was listed, but is gone")
        return found.record

    numbers = sorted(await ended_replicas(core, job))
    return dict(zip(numbers, await map_concurrently(numbers, read), strict=True))
