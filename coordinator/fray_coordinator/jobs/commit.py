"""Ends attempts: writes the commit, then updates the index. `protocol.commit` decides what is written."""

from fray_coordinator.core import Core
from fray_coordinator.jobs import pending_index
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd, end_of_attempt
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import JobRecord


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
