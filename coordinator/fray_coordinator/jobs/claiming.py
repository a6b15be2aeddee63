"""Claims jobs for an agent. `protocol.claiming` decides what may be claimed."""

from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable, is_outage
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.jobs.stopping import child_verdict
from fray_coordinator.protocol.claiming import Skip, claim, holds_attempt
from fray_coordinator.protocol.environments import python_shortage, some_other_has_python
from fray_coordinator.protocol.scheduling import elsewhere
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AgentRecord, JobLease, JobRecord
from fray_layouts.spec import JobSpec

RECORD_ARRIVAL_SECONDS = 10.0
"""Seconds after an entry's time in which the submitter may still write the record; an older entry without a record is
left over. An entry from as far in the future was not made by a submitter either."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The agent holds the job."""

    job: Stored[JobRecord]
    rejections: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """The agent does not hold the job.

    Attributes:
        until: time on the storage's clock before which it cannot be claimed; None if the entry is stale.
        rejections: number of claims that were rejected because somebody else had written the record.
    """

    until: float | None
    rejections: int


async def try_claim(
    core: Core,
    entry: PendingKey,
    agent: str,
    host: str,
    in_doubt: bool = False,
    me: AgentRecord | None = None,
    ends_before: float | None = None,
) -> Claimed | NotClaimed:
    """Claim the attempt that the entry names.

    Args:
        agent, host: the claimer.
        in_doubt: an earlier call for this entry ended in `StoreUnavailable`, so its write may still be applied.
        me: the claimer's record; None: it may run any job that fits it.
        ends_before: as in `claim`.
    Raises:
        BadRecord: the job's or its parent's record cannot be read, or the store answers others but not for that record.
        StoreUnavailable: unresolved, or the root holds another cluster now: the claim may have been applied, or may
            yet be. The agent must keep listing it and call this again with `in_doubt`, until it returns.
    """
    rejections, fenced = 0, not in_doubt
    current = await _read(core, entry.job, in_doubt)
    if not in_doubt and current is not None and holds_attempt(current.record, entry.attempt, agent):
        # The agent has dropped the job. Others may have seen that, and may be about to requeue it.
        return NotClaimed(core.now() + core.settings.repair_interval, rejections)
    while True:
        if current is None:
            young = abs(core.now() - entry.time) < RECORD_ARRIVAL_SECONDS
            return NotClaimed(core.now() + core.settings.poll_interval if young else None, rejections)
        if holds_attempt(current.record, entry.attempt, agent):
            return Claimed(current, rejections)
        lease = JobLease(agent=agent, host=host, since=core.now())
        for_others = await _is_for_others(core, current.record.spec, me)
        verdict = await _verdict(core, current, in_doubt)
        wanted = claim(current.record, entry.attempt, lease, verdict, for_others, ends_before)
        if isinstance(wanted, Skip):
            if fenced or wanted.until is None:
                return NotClaimed(wanted.until, rejections)
            wanted, fenced = current.record, True  # a new version, so that the earlier write, if still under way, fails
        await core.store.confirm_root()  # after the read: a version that was read in another cluster is not written on
        written = await core.records.write(current.key, JobRecord, wanted, current)
        if written.wrote and is_terminal(wanted):
            await pending_index.delete_entry(core, entry)
            return NotClaimed(None, rejections)
        rejections += written.rejections
        current = written.stored


async def _is_for_others(core: Core, spec: JobSpec, me: AgentRecord | None) -> bool:
    """Whether the job must run elsewhere: the claimer is in the wrong place, or has no Python for the job while a live
    agent of its pool has.
    """
    if me is None:
        return False
    if elsewhere(spec.resources, me):
        return True
    if not python_shortage(spec, me.software):
        return False
    live = live_agents(await read_agents(core, {}), core.now())
    return some_other_has_python(spec, (other.software for other in live if other.pool == spec.pool))


async def _verdict(core: Core, child: Stored[JobRecord], in_doubt: bool) -> ChildVerdict:
    """Judge the job by its parent. If the parent cannot be read, a claim in doubt is still resolved: the job waits."""
    try:
        return await child_verdict(core, child)
    except (BadRecord, StoreRefused, StoreUnavailable) as error:
        if is_outage(error):
            raise
        if in_doubt:
            return ChildVerdict.WAIT
        raise BadRecord(str(error)) from error


async def _read(core: Core, job: str, in_doubt: bool) -> Stored[JobRecord] | None:
    """Read the job's record. A failure for this record alone raises BadRecord, unless an earlier write is in doubt."""
    try:
        return await core.records.read(JobKeys.key(job), JobRecord, one_of_many=not in_doubt)
    except StoreUnavailable as error:
        if in_doubt or is_outage(error):
            raise
        raise BadRecord(str(error)) from error
