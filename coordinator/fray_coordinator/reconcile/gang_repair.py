"""Repairs running gangs that have lost a member: its agent is dead, or lives and has dropped its replicas.

A member may drop replicas that have ended, since the member that ends last writes the gang's end. If all have ended,
and the record says for long that the gang runs (a backup of it was restored, for example), the repair writes the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.gang_commit import end_without
from fray_coordinator.jobs.gang_exits import ended_replicas
from fray_coordinator.protocol.dropped_jobs import is_unlisted
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.protocol.placements.gang_end import is_whole, replicas_of, runs_gang
from fray_coordinator.reconcile.job_summary import OpenJob
from fray_coordinator.reconcile.missed_jobs import MissedJobs
from fray_coordinator.reconcile.unreadable_holders import UnreadableHolders
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord


@dataclass(slots=True)
class GangRepair:
    """Ends the attempts of running gangs that have lost a member.

    Attributes:
        holders: handles members whose own records cannot be read.
        missed: remembers members that did not list their replicas.
    """

    core: Core
    holders: UnreadableHolders
    missed: MissedJobs

    async def check_members(self, job_id: str, known: OpenJob, live: Mapping[str, Stored[AgentRecord]]) -> None:
        """Check the members of a running gang.

        Args:
            known: the gang as last read.
            live: by id, the agents that have not ended, from a moment ago.
        """
        doubtful = [agent for agent in known.shared.members if self._is_doubtful(job_id, known, live.get(agent))]
        job = await self.core.records.read(JobKeys.key(job_id), JobRecord, one_of_many=True) if doubtful else None
        if job is None or job.version != known.version:
            return
        ended = await ended_replicas(self.core, job.record)
        for agent in doubtful:
            holder = await self._member(agent)
            if holder is None or is_fenced(holder):
                await end_without(self.core, job, agent)
            elif is_whole(job.record, ended) or not ended.issuperset(replicas_of(job.record, agent)):
                await self._check_unlisted(job, known, with_bounded_interval(holder, self.core.settings))

    async def _member(self, agent: str) -> AgentRecord | None:
        try:
            return record_of(await self.core.records.read(AgentKeys.key(agent), AgentRecord, one_of_many=True))
        except BadRecord:
            await self.holders.check(agent)
            raise

    def _is_doubtful(self, job_id: str, known: OpenJob, member: Stored[AgentRecord] | None) -> bool:
        return member is None or is_unlisted(job_id, known.held_since, member.record, self.core.now())

    async def _check_unlisted(self, job: Stored[JobRecord], known: OpenJob, member: AgentRecord) -> None:
        """End the attempt once its member has not listed it for long enough."""
        if not is_unlisted(job.record.id, known.held_since, member, self.core.now()):
            return
        dropped = self.missed.is_dropped(job.record.id, known.version, member)
        if dropped and runs_gang(job.record, job.record.attempt, member.id):
            await end_without(self.core, job, member.id, "lives, but has dropped it")
