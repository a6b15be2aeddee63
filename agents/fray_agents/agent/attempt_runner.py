"""Runs a claimed job's attempts on this host, from the claim to the write of each attempt's end.

A watch reads the records of held jobs meanwhile, and stops tasks whose job was stopped or lost to another holder.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from fray_agents.agent.held import HeldLease
from fray_agents.agent.membership import Membership
from fray_agents.agent.replica_runner import LeftUnwritten, ReplicaRunner, host_failed, until_written
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.escaping import one_line
from fray_layouts.records import AttemptExit, JobRecord
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


log = logging.getLogger("fray")


@dataclass(slots=True)
class AttemptRunner:
    """Runs the attempts of claimed jobs on this host, and writes how each ended.

    Attributes:
        member: the agent's membership.
        replicas: runs their tasks.
    """

    member: Membership
    replicas: ReplicaRunner

    @property
    def _core(self) -> Core:
        return self.member.core

    async def run(self, lease: HeldLease) -> None:
        """Run the attempt, and the attempts that restart the job here, until nothing is left to do for it.

        Raises:
            Exception: an attempt's end could not be written. The job is still held, so the agent must exit.
        """
        while (job := await self._run_attempt(lease)) is not None:
            lease.restart(job)
            self.member.leases.use_again(lease)
            await self._core.clock.sleep(max(0.0, job.record.not_before - self._core.now()))

    async def _run_attempt(self, lease: HeldLease) -> Stored[JobRecord] | None:
        """Run one attempt and write its end; the record, if the next attempt is to start here."""
        assert lease.job is not None, "an attempt that runs was claimed"
        job = lease.job
        try:
            end = await self.replicas.run(lease, job.record)
            lease.phase = HoldingPhase.ENDING
            log.info("%s: attempt %d has ended: %s", job.record.id, lease.attempt, describe_exit(end.exit))
            after = await self._commit(lease, job, end)
            await self.replicas.clean_up(lease, job.record)
        finally:
            await self.replicas.let_go(lease, job.record)
        return after if after is not None and holds_attempt(after.record, lease.attempt + 1, self.member.id) else None

    async def _commit(self, lease: HeldLease, job: Stored[JobRecord], end: AttemptEnd) -> Stored[JobRecord] | None:
        """Write the attempt's end, and retry until the outcome is known; the job's record after that.

        If the end cannot be written, the reason is written in its place. If that fails too, the agent has to exit.
        """
        try:
            return await self._write(lease, job, end)
        except Exception as error:
            return await self._write(
                lease, job, host_failed("the attempt, while its end was written,", job.record, error)
            )

    async def _write(self, lease: HeldLease, job: Stored[JobRecord], end: AttemptEnd) -> Stored[JobRecord] | None:
        """Write the end, which is decided anew at each try; None: the agent leaves and has abandoned the job."""

        async def write() -> Stored[JobRecord] | None:
            decided = replace(end, restart=self._restarts(lease, job.record))
            try:
                return await end_attempt(self._core, job, self.member.id, decided, lease.entry_in_index)
            except (StoreError, BadRecord):
                lease.idle = True
                raise

        try:
            return await until_written(self.member, job.record.id, write)
        except LeftUnwritten:
            lease.abandoned = True
            return None

    def _restarts(self, lease: HeldLease, job: JobRecord) -> bool:
        """Whether the next attempt after a failure starts here, and not on whichever agent has room."""
        unasked = lease.stop is None or lease.stop[1] == ExitKind.UNHEALTHY
        return job.spec.actor and unasked and self.member.may_claim()


def describe_exit(end: AttemptExit) -> str:
    """How an attempt ended, for the agent's log."""
    return f"{end.kind}{': ' * bool(end.message)}{one_line(end.message)}"
