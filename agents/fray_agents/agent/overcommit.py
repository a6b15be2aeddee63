"""Room beyond the slots of a private cluster, for what its jobs wait for.

A private cluster has a few slots, and nobody adds any. What is tried out there was written for clusters that grow:
steps that wait for jobs of their own, servers that wait for calls. On a shared cluster a job keeps what it reserved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fray_agents.agent.leases import HeldLease, Leases
from fray_agents.agent.problems import AgentProblems
from fray_agents.tasks.environment import CHILDREN_MARKER, ENDPOINTS_FILE
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.object_keys import ChildKey, JobKeys, PendingKey
from fray_layouts.records import JobRecord
from fray_layouts.states import HoldingPhase


@dataclass(slots=True)
class Overcommit:
    """Two rules by which nobody waits for ever for room.

    A job that has published an endpoint takes no room: it waits for calls. And each job may have one of its children
    run in its own room, whatever else runs: so whoever waits for a child gets on, however deep.

    Attributes:
        may_claim: whether the agent may take work right now.
        claim: claims an entry, whether there is room or not.
        troubles: of the agent.
    """

    core: Core
    ledger: Leases
    may_claim: Callable[[], bool]
    claim: Callable[[PendingKey], Awaitable[bool]]
    troubles: AgentProblems

    async def run(self) -> None:
        """Look for what may run beyond the slots, for ever."""
        while True:
            with self.troubles.survived("lend room to children"):
                await self._look()
            await self.core.clock.sleep(self.core.settings.poll_interval)

    async def _look(self) -> None:
        running = [
            held for held in self.ledger.held.values() if held.phase == HoldingPhase.RUNNING and held.task is not None
        ]
        for held in running:
            held.serves = held.serves or _has_file(held, ENDPOINTS_FILE)
        have_one = {parent for held in self.ledger.held.values() if (parent := _parent_whose_room_it_uses(held))}
        for held in running:
            if held.entry.job not in have_one and self.may_claim() and _has_file(held, CHILDREN_MARKER):
                await self._lend_to_a_child(held.entry.job)

    async def _lend_to_a_child(self, parent: str) -> None:
        """Have the first child run that waits to be started; forget those that have ended."""
        for row in await self.core.store.list(ChildKey.prefix(parent)):
            child = ChildKey.parse(row.key)
            job = await self._read(child.child) if child is not None else None
            if job is None:
                continue
            if is_terminal(job):
                await self.core.store.delete(row.key)
            elif _is_due(job, self.core.now()) and await self.claim(entry_of(job)):
                return

    async def _read(self, job_id: str) -> JobRecord | None:
        """The job's record, if it can be read and the job is not in this agent's hands."""
        if job_id in self.ledger.held:
            return None
        try:
            found = await self.core.records.read(JobKeys.key(job_id), JobRecord)
        except BadRecord:  # the repair tells of it
            return None
        return found.record if found is not None and job_id not in self.ledger.held else None


def _parent_whose_room_it_uses(held: HeldLease) -> str:
    """The job whose room it may be in; "" if there is none, or it takes no room."""
    link = held.job.record.parent if held.job is not None and not held.serves else None
    return link.job if link is not None and not link.detached else ""


def _is_due(job: JobRecord, now: float) -> bool:
    return job.status == Status.PENDING and job.not_before <= now


def _has_file(held: HeldLease, name: str) -> bool:
    """Whether there is something of that name in its task's directory."""
    try:
        return held.task is not None and held.task.left(name) is not None
    except OSError:  # it is no file
        return True
