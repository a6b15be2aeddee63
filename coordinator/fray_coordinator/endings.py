"""Ending attempts: the commit, and what follows from it. What is written is decided in `protocol.finish`."""

from __future__ import annotations

from fray_coordinator import index
from fray_coordinator.core import Core
from fray_coordinator.protocol.finish import Ending, Settled, finish
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.records import Stored
from fray_layouts.records import JobRecord


async def end_attempt(
    core: Core, held: Stored[JobRecord], agent: str, ending: Ending, in_index: bool = True
) -> JobRecord | None:
    """Write how the attempt ended, if its lease still stands; what is large was stored before.

    Args:
        held: the record as the claim left it, or as read since.
        in_index: the attempt's entry was not removed yet.

    Returns:
        The record as it is now; None if it is gone. Its status says whether the ending was accepted.

    Raises:
        StoreUnavailable: unresolved; call again until it answers.
    """
    attempt = held.record.attempt

    def decide(job: JobRecord | None) -> JobRecord | None:
        wanted = finish(job, attempt, agent, ending, core.now(), core.settings)
        return None if isinstance(wanted, Settled) else wanted

    update = await core.records.update(held.key, JobRecord, decide, known=held)
    if update.stored is None:
        return None
    job = update.stored.record
    if job.status == Status.PENDING and job.attempt == attempt + 1:
        await index.requeued(core, job, held.record)
    elif in_index:
        await index.leave(core, held.record)
    return job
