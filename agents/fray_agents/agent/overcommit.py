"""Room beyond what an agent offers, for jobs that would otherwise wait for each other for ever.

On any host, for a job that waits to run again while its children use the room. A child with an id of its own runs on
while its parent waits for its next attempt, which may adopt it. If the child uses the room that the parent needs, and
ends only with the parent, both wait for ever. So the child is put back. It is claimed again once its parent runs, and
spends no budget.

On a private cluster, for children and servers that its jobs wait for. A private cluster has a few slots, and nobody
adds any. Programs that are tried out there were written for clusters that grow: their steps wait for jobs of their own,
and their servers wait for calls. A shared cluster does not overcommit.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_agents.agent.membership import Membership
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.claiming import back_off_until
from fray_coordinator.protocol.scheduling import entry_of, shortage
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import record_of
from fray_layouts.index_keys import ChildKey, PendingKey, Shape
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.states import ExitKind, HoldingPhase
from fray_runtime.current_task import CHILDREN_MARKER, ENDPOINTS_FILE

log = logging.getLogger("fray")


async def make_room_for_parents(member: Membership, keys: Sequence[str], room: HeldPlacement | None = None) -> None:
    """Put back the children here of waiting jobs that would fit without them.

    Args:
        keys: entries of the pending index.
        room: the reservation in which the jobs would run; None: the host's own room.

    Raises StoreUnavailable: such a job cannot be read now.
    """
    parents = member.leases.parents()
    for entry in (PendingKey.parse(key) for key in keys if parents and any(f"-{parent}~" in key for parent in parents)):
        if entry is None or not shortage(entry.shape, member.leases.free(room), member.host_kind):
            continue
        if not member.leases.orphans_in_the_way(entry.job, [entry.shape], member.host_kind, room):
            continue
        try:
            job = record_of(await member.core.records.read(JobKeys.key(entry.job), JobRecord, one_of_many=True))
        except BadRecord:  # its claimer reports it
            continue
        if job is not None and job.status == Status.PENDING and job.attempt == entry.attempt:
            put_back_orphans(member, entry.job, [entry.shape], room)


def put_back_orphans(member: Membership, parent: str, wants: Sequence[Shape], room: HeldPlacement | None) -> None:
    """Put back children of a waiting job that use the room for which it waits. wants: what it waits for here."""
    for orphan in member.leases.orphans_in_the_way(parent, wants, member.host_kind, room):
        log.info("%s is put back: its parent %s waits for its room", _name(orphan), parent)
        orphan.ask_to_stop(_grace(orphan), ExitKind.YIELDED)


def _name(orphan: HeldLease | HeldPlacement) -> str:
    return orphan.owner.id if isinstance(orphan, HeldPlacement) else orphan.entry.job


def _grace(orphan: HeldLease | HeldPlacement) -> float:
    if isinstance(orphan, HeldPlacement):
        return orphan.grace
    return orphan.job.record.spec.grace if orphan.job is not None else 0.0


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
