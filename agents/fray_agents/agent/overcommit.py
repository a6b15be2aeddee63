"""Room beyond the slots of a private cluster, for children and servers that its jobs wait for.

A private cluster has a few slots, and nobody adds any. Programs that are tried out there were written for clusters that
grow: their steps wait for jobs of their own, and their servers wait for calls. A shared cluster does not overcommit.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fray_agents.agent.held import HeldLease
from fray_agents.agent.membership import Membership
from fray_agents.tasks.environment import CHILDREN_MARKER, ENDPOINTS_FILE
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.claiming import back_off_until
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.states import HoldingPhase


@dataclass(slots=True)
class Overcommit:
    """Two rules that keep jobs from waiting for room for ever.

    A job that has published an endpoint takes no room, as it waits for calls. And each job may have one of its children
    run in its own room, whatever else runs. So a job that waits for a child makes progress, however deep they nest.

    Attributes:
        member: the agent's membership.
        claim: claims an entry even if there is no room.
    """

    member: Membership
    claim: Callable[[PendingKey], Awaitable[bool]]

    async def run(self) -> None:
        """Claim jobs that may run beyond the slots, for ever."""
        core = self.member.core
        while True:
            with self.member.problems.tolerated("lend room to children"):
                await self._poll()
            await core.clock.sleep(core.settings.poll_interval)

    async def _poll(self) -> None:
        leases = self.member.leases.held.values()
        running = [lease for lease in leases if lease.phase == HoldingPhase.RUNNING and lease.task is not None]
        for lease in running:
            lease.serves = lease.serves or _has_file(lease, ENDPOINTS_FILE)
        have_one = {parent for lease in leases if (parent := _parent_whose_room_it_uses(lease))}
        for lease in running:
            if lease.entry.job not in have_one and self.member.may_claim() and _has_file(lease, CHILDREN_MARKER):
                await self._start_child_of(lease.entry.job)

    async def _start_child_of(self, parent: str) -> None:
        """Claim the first child that waits to start; delete the entries of children that have ended."""
        core = self.member.core
        for row in await core.store.list(ChildKey.prefix(parent)):
            child = ChildKey.parse(row.key)
            job = await self._read(child.child) if child is not None else None
            if job is None:
                continue
            if is_terminal(job):
                await core.store.delete(row.key)
            elif _is_due(job, core.now()) and await self.claim(entry_of(job)):
                return

    async def _read(self, job_id: str) -> JobRecord | None:
        """The job's record; None if it cannot be read or the agent holds the job."""
        if job_id in self.member.leases.held:
            return None
        try:
            found = await self.member.core.records.read(JobKeys.key(job_id), JobRecord)
        except BadRecord:  # the repair reports it
            return None
        return found.record if found is not None and job_id not in self.member.leases.held else None


def _parent_whose_room_it_uses(lease: HeldLease) -> str:
    """The job in whose room it may run; "" if there is none, or it takes no room."""
    link = lease.job.record.parent if lease.job is not None and not lease.serves else None
    return link.job if link is not None and not link.detached else ""


def _is_due(job: JobRecord, now: float) -> bool:
    return job.status == Status.PENDING and back_off_until(job, now) <= now


def _has_file(lease: HeldLease, name: str) -> bool:
    """Whether the task's directory has something of that name."""
    try:
        return lease.task is not None and lease.task.read_file(name) is not None
    except OSError:  # it is there, but not a file
        return True
