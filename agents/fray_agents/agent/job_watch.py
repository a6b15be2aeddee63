"""Watches the records of held jobs, and stops tasks whose job was stopped or lost to another holder."""

from dataclasses import dataclass

from fray_agents.agent.held import HeldLease
from fray_agents.agent.membership import Membership
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.store.records import record_of
from fray_layouts.states import ExitKind, HoldingPhase


@dataclass(slots=True)
class JobWatch:
    """Reads the records of held jobs, and stops their tasks where the record says so."""

    member: Membership

    async def run(self) -> None:
        """Check them every repair interval, for ever, because mail about them may be lost."""
        core = self.member.core
        while True:
            await core.clock.sleep(core.jittered(core.settings.repair_interval))
            with self.member.problems.tolerated("look at what it holds"):
                await self.check()

    async def check(self) -> None:
        """Read the records of all running jobs now."""
        await map_concurrently(self.member.leases.held.values(), self._check)

    async def _check(self, lease: HeldLease) -> None:
        attempt = lease.attempt
        if lease.job is None or lease.phase != HoldingPhase.RUNNING:
            return
        try:
            job = record_of(await self.member.core.records.reread(lease.job, one_of_many=True))
        except (StoreError, BadRecord) as error:  # its task goes on, as nothing says otherwise
            self.member.problems.warnings.warn("the record of %s cannot be read: %s", lease.entry.job, error)
            return
        if lease.phase != HoldingPhase.RUNNING or lease.attempt != attempt:  # it ended meanwhile
            return
        if not holds_attempt(job, attempt, self.member.id):
            lease.ask_to_stop(0.0, ExitKind.LOST)
        elif job is not None and job.stop is not None:
            lease.ask_to_stop(job.spec.grace, ExitKind.STOPPED)
