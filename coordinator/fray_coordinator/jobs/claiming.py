"""Claiming jobs for an agent. What may be claimed is decided in `protocol.claiming`."""

from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable, is_outage
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.cascade import child_verdict
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.protocol.cascade import ChildVerdict
from fray_coordinator.protocol.claiming import Skip, claim, holds_attempt
from fray_coordinator.protocol.pythons import python_shortage, some_other_has_python
from fray_coordinator.protocol.scheduling import elsewhere
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import AgentRecord, JobLease, JobRecord
from fray_layouts.spec import JobSpec

RECORD_ARRIVAL_SECONDS = 10.0
"""Seconds after its submission that an entry's record may still be on its way; what is older was left behind.

An entry from so far in the future was made by no submitter."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The agent holds the job."""

    job: Stored[JobRecord]
    rejections: int


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """The agent does not hold the job.

    Attributes:
        until: the storage's time before which it cannot be claimed; None: the entry is stale.
        rejections: claims that somebody else's write beat.
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
        agent, host: who claims.
        in_doubt: an earlier call for this entry ended in `StoreUnavailable`, so its write may still land.
        me: the claimer's record; None: it may run whatever fits it.
        ends_before: as in `claim`.

    Raises:
        BadRecord: the job's record or its parent's cannot be read, or is not answered for while others are.
        StoreUnavailable: unresolved: the claim may have been applied, or may yet be. The agent must keep listing it
            and call this again, in doubt, until it answers.
    """
    rejections, fenced = 0, not in_doubt
    current = await _read(core, entry.job, in_doubt)
    if not in_doubt and current is not None and holds_attempt(current.record, entry.attempt, agent):
        # It dropped the job. Others may have seen that, and take it for free already.
        return NotClaimed(core.now() + core.settings.repair_interval, rejections)
    while True:
        if current is None:
            young = abs(core.now() - entry.time) < RECORD_ARRIVAL_SECONDS
            return NotClaimed(core.now() + core.settings.poll_interval if young else None, rejections)
        if holds_attempt(current.record, entry.attempt, agent):
            return Claimed(current, rejections)
        lease = JobLease(agent=agent, host=host, since=core.now())
        for_others = await _is_for_others(core, current.record.spec, me)
        family = await _verdict(core, current, in_doubt)
        wanted = claim(current.record, entry.attempt, lease, family, for_others, ends_before)
        if isinstance(wanted, Skip):
            if fenced or wanted.until is None:
                return NotClaimed(wanted.until, rejections)
            wanted, fenced = current.record, True  # a new version: what is still on its way is rejected
        written = await core.records.write(current.key, JobRecord, wanted, current)
        if written.wrote and is_terminal(wanted):
            await pending_index.delete_entry(core, entry)
            return NotClaimed(None, rejections)
        rejections += written.rejections
        current = written.stored


async def _is_for_others(core: Core, spec: JobSpec, me: AgentRecord | None) -> bool:
    """Whether the claimer is not where the job must be, or has no Python for it and a live agent of its pool has."""
    if me is None:
        return False
    if elsewhere(spec.resources, me):
        return True
    if not python_shortage(spec, me.software):
        return False
    live = live_agents(await read_agents(core, {}), core.now())
    return some_other_has_python(spec, (other.software for other in live if other.pool == spec.pool))


async def _verdict(core: Core, child: Stored[JobRecord], in_doubt: bool) -> ChildVerdict:
    """Whether the job may run. A parent that cannot be read keeps nobody from resolving a doubt: the job waits."""
    try:
        return await child_verdict(core, child)
    except (BadRecord, StoreRefused, StoreUnavailable) as error:
        if is_outage(error):
            raise
        if in_doubt:
            return ChildVerdict.WAIT
        raise BadRecord(str(error)) from error


async def _read(core: Core, job: str, in_doubt: bool) -> Stored[JobRecord] | None:
    """The job's record. Nothing was written yet, unless `in_doubt`, so one that is not answered for can be left."""
    try:
        return await core.records.read(JobKeys.key(job), JobRecord, one_of_many=not in_doubt)
    except StoreUnavailable as error:
        if in_doubt or is_outage(error):
            raise
        raise BadRecord(str(error)) from error
