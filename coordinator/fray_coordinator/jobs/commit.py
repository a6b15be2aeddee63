"""Ends attempts, of single jobs and of gangs: writes the commit, then updates the index.

`protocol.commit` decides what is written for a single job.

The member that ran a replica of a gang creates the replica's exit once. An unreadable exit only shows that the replica
has ended; `unreadable_exit` says how it is counted.

The end of a gang's attempt is one write that follows from the exits, and `protocol.placements.gang_end` decides it. The
end of one replica ends them all, so every member of a large gang would write it. Therefore a member first waits for a
random time, and mostly finds that another has written it.
"""

from collections.abc import Callable, Iterable, Mapping

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import notifications, pending_index
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt
from fray_coordinator.protocol.placements.gang_end import (
    end_of_gang,
    gang_left,
    gang_without,
    is_whole,
    replicas_of,
    runs_gang,
    unreadable_exit,
)
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import JobRecord, ReplicaExit
from fray_layouts.states import ExitKind
from fray_layouts.work_keys import WorkKeys


async def end_attempt(
    core: Core, held: Stored[JobRecord], agent: str, ending: AttemptEnd, entry: PendingKey | None
) -> Stored[JobRecord] | None:
    """Commit the end of an attempt, if its lease still stands. A large result must be stored before.

    Args:
        held: the record as the claim or the restart wrote it, or as read since.
        entry: the entry by which the job was claimed, if it was not deleted yet. A restart keeps the entry, because
            perhaps no applied heartbeat lists the job so far.

    Returns:
        The present record; None if it is gone. Its status says whether the end was accepted.

    Raises:
        StoreUnavailable: unresolved; call again until it answers.
    """
    attempt = held.record.attempt

    def decide(job: JobRecord | None) -> JobRecord | None:
        return end_of_attempt(job, attempt, agent, ending, core.now(), core.settings)

    stored = (await core.records.update(held.key, JobRecord, decide, known=held)).stored
    if stored is None:
        return None
    if stored.record.status == Status.PENDING and stored.record.attempt > attempt:
        await pending_index.finish_requeue(core, stored.record, entry)
    elif entry is not None and not holds_attempt(stored.record, attempt + 1, agent):
        await pending_index.delete_entry(core, entry)
    return stored


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


WRITES_A_SECOND = 100.0
"""Members of one gang that may start to write its end, per second: about ten do before the others see the end."""

EXITS_READ_A_SECOND = 500.0
"""Exits that one member can read in a second, at least: 64 at a time, each in some 50 ms, on a busy bucket."""


async def end_member(core: Core, held: Stored[JobRecord], agent: str, own: Iterable[ReplicaExit]) -> Stored[JobRecord]:
    """Write the end that follows from the exits of a member's replicas: one failure ends the gang, or all have ended.

    Args:
        held: the record at the attempt that has ended.
        own: the exits of the member's own replicas, which are stored already.

    Returns:
        The record as last read; `held` itself if other members are to end the gang.

    Raises:
        StoreUnavailable: unresolved; call again until it answers.
        BadRecord: an exit, or the job's record, cannot be read.
    """
    job = held.record
    all_well = all(left.exit.kind == ExitKind.SUCCESS for left in own)
    current = await core.records.reread(held)
    if current is None or not runs_gang(current.record, job.attempt, agent):
        return current or held
    ended = await exit_times(core, job)
    if (all_well or current.record.stop is not None) and not is_whole(job, ended):
        return current
    await core.clock.sleep(_turn(core, job, agent, ended))
    current = await core.records.reread(current)

    def decide(now: JobRecord, exits: dict[int, ReplicaExit]) -> JobRecord | None:
        return end_of_gang(now, job.attempt, agent, exits, core.now(), core.settings)

    return await _write_end(core, current, job.attempt, agent, decide) or held


async def end_without(
    core: Core, known: Stored[JobRecord], agent: str, why: str = "died", may_run: bool = False
) -> Stored[JobRecord] | None:
    """End the attempt for a member that is not alive or has lost its replicas; returns the present record.

    Args:
        known: the record with that member in it.
        why: what happened to the agent, for people.
        may_run: whether its replicas may still run; a gang that is to be stopped is not ended then.
    """

    def decide(now: JobRecord, exits: dict[int, ReplicaExit]) -> JobRecord | None:
        return gang_without(now, known.record.attempt, agent, exits, core.now(), core.settings, why, may_run)

    return await _write_end(core, known, known.record.attempt, agent, decide)


async def leave_gang(core: Core, known: Stored[JobRecord], agent: str) -> Stored[JobRecord] | None:
    """End the attempt as preempted, for a member that must leave, before the member ends its replicas."""

    def decide(now: JobRecord, exits: dict[int, ReplicaExit]) -> JobRecord | None:
        return gang_left(now, known.record.attempt, agent, exits, core.now(), core.settings)

    return await _write_end(core, known, known.record.attempt, agent, decide)


async def announce_end(core: Core, job: JobRecord) -> None:
    """Update the index for a gang whose attempt has ended or is to be stopped, and ring the bell for the reconciler."""
    if is_terminal(job):
        await notifications.leave(core, job)
    await notifications.ring_placements_bell(core)


def _turn(core: Core, job: JobRecord, agent: str, ended: Mapping[int, float]) -> float:
    """Seconds that a member waits before it writes the end.

    The member that ends a whole gang reads all exits; in a gang of a thousand, each member would read a thousand. So if
    all have ended, the member with the last exit writes first, and the others wait until it must be done.
    """
    wait = core.rng.uniform(0.0, job.spec.replicas / WRITES_A_SECOND)
    if not is_whole(job, ended):
        return wait
    last = max(ended, key=lambda replica: (ended[replica], replica))
    return 0.0 if last in replicas_of(job, agent) else wait + job.spec.replicas / EXITS_READ_A_SECOND


async def _write_end(
    core: Core,
    current: Stored[JobRecord] | None,
    attempt: int,
    agent: str,
    decide: Callable[[JobRecord, dict[int, ReplicaExit]], JobRecord | None],
) -> Stored[JobRecord] | None:
    """Write what `decide` returns, on condition of the record as read before the exits; returns the present record.

    The order matters: whichever member ends last lists all exits, and sees at least what the earlier ones have seen.
    """
    while current is not None and runs_gang(current.record, attempt, agent):
        exits = await stored_exits(core, current.record)
        wanted = decide(current.record, exits)
        if wanted is None:
            return current
        written = await core.records.write(current.key, JobRecord, wanted, current)
        if written.wrote:
            await announce_end(core, wanted)
        current = written.stored
    return current
