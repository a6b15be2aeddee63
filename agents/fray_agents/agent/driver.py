"""This program as a driver: the lease on everything that it owns. `fray_coordinator.protocol.drivers` has the rules."""

import asyncio
import contextlib
import logging
import socket
from typing import Protocol
from weakref import WeakSet

from fray_agents.agent.held import HeldLease
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Heartbeat, Membership
from fray_agents.agent.problems import is_set_within, run_until_first_ends
from fray_coordinator.concurrency import start_task
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, ParentNotRunning, StaleAttempt, StoreError
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.persist import persist
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT, DRIVER_NAME, driver_records
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys, JobIds, JobKeys
from fray_layouts.records import AgentRecord, AttemptExit, JobRecord, Resources
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")

LEAVE_TIMEOUT = 10.0
"""Seconds that a driver which ends waits for the storage, a few slow requests; other agents end the rest later."""


class HostedService(Protocol):
    """Something that this program serves to others, for example an actor."""

    async def announce(self, job: str) -> None:
        """Publish it as the service of this job."""

    async def withdraw(self) -> None:
        """Remove what was published."""


class DriverLease:
    """One agent id and one job of this program, from before they are created until they have ended.

    Attributes:
        agent, job: their ids.
        member: the membership of the agent id.
        stopped: the reason if somebody asked it to stop; "" otherwise.
        over: it holds nothing any more.
    """

    def __init__(self, core: Core, namespace: str, user: str, program: str) -> None:
        host, now = socket.gethostname(), core.now()
        ids = AgentKeys.fresh(host, now, core.rng.token()), JobIds.fresh(DRIVER_NAME, now, core.rng.token())
        agent, record = driver_records(*ids, host, namespace, user, program, now, core.settings.beat_interval)
        self._core = core
        self._record = record
        self._stored: Stored[JobRecord] | None = None
        self._lease = HeldLease(entry_of(record))
        self.member = Membership(core, agent, Leases(Resources(), {record.id: self._lease}))
        self._mail = asyncio.Event()
        self._heartbeat = Heartbeat(self.member, on_listed=lambda _: None, on_mail=self._mail.set)
        self.agent = agent.id
        self.job = record.id
        self.stopped = ""
        self.over = False
        self._ending = False

    async def begin(self) -> None:
        """Create both records, first the agent's, which lists the job. Raises StoreError: call again."""
        await self._heartbeat.register()
        created = await self._core.records.write(JobKeys.key(self.job), JobRecord, self._record, None)
        self._stored, self._lease.phase = created.stored, HoldingPhase.RUNNING

    async def hold(self) -> None:
        """Beat until the lease has ended, or is lost."""
        try:
            await run_until_first_ends(self._heartbeat.run(), self._watch_job())
        finally:
            self.over = True

    async def is_valid(self) -> bool:
        """Whether it may own more. If no beat was written for long (the host may have slept), this asks the storage."""
        if self.over or self.member.trusts():
            return not self.over
        await self._core.store.confirm_root()
        with contextlib.suppress(BadRecord):  # a record that cannot be read does not declare it dead
            found = record_of(await self._core.records.read(AgentKeys.key(self.agent), AgentRecord))
            self.over = is_fenced(found)
        return not self.over

    async def end(self, kind: str) -> None:
        """End the job, what it owns, and then the lease; `hold` returns once that is written. Raises StoreError."""
        self._ending = True
        if self._stored is not None:
            end = AttemptEnd(AttemptExit(kind=kind, log_chunks=0))
            await end_attempt(self._core, self._stored, self.agent, end, None)
            await stopping.stop_children(self._core, self.job)
        self.member.leaving = True
        self.member.leases.remove(self._lease)

    async def _watch_job(self) -> None:
        """Read the job's record on mail and every repair interval; return once it is not held any more."""
        while self._stored is not None:
            await is_set_within(self._mail, self._core.jittered(self._core.settings.repair_interval))
            self._mail.clear()
            with self.member.problems.tolerated("look at its job"):
                job = record_of(await self._core.records.reread(self._stored))
                if job is not None and job.stop is not None:
                    self.stopped = job.stop.reason or "asked for"
                    await self.end(ExitKind.STOPPED)
                elif not holds_attempt(job, DRIVER_ATTEMPT, self.agent) and not self._ending:
                    return


class Driver:
    """This program on one cluster; it gets a lease with the first thing that it owns. Lives in the background loop.

    program: what runs, as text for people.
    """

    def __init__(self, core: Core, namespace: str, user: str, program: str) -> None:
        self._core = core
        self._namespace = namespace
        self._user = user
        self._program = program
        self._lease: DriverLease | None = None
        self._holding: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._hosted: WeakSet[HostedService] = WeakSet()

    @property
    def present_job(self) -> str:
        """Id of the job that stands for this program now; "" if it owns nothing yet."""
        return self._lease.job if self._lease is not None else ""

    async def job(self) -> str:
        """Id of the job whose children end with this program; a new job's if the program was declared dead meanwhile.

        Raises:
            StoreError: it is not known whether the lease is valid, or there is none yet; call again.
            ParentNotRunning: somebody has stopped this driver.
        """
        async with self._changing:
            if self._lease is None or not await self._lease.is_valid():
                await self._begin()
            assert self._lease is not None, "it has begun"
            return self._lease.job

    async def host(self, hosted: HostedService) -> None:
        """Announce what this program serves, now and again whenever it gets a new lease. Raises as `job`."""
        self._hosted.add(hosted)
        await hosted.announce(await self.job())

    async def leave(self) -> None:
        """End what this program owns, as far as the storage allows within `LEAVE_TIMEOUT`."""
        lease = self._lease
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT), self._changing:
                lease, self._lease = self._lease, None
                if lease is not None and self._holding is not None:
                    await lease.end(ExitKind.SUCCESS)
                    for hosted in list(self._hosted):
                        await hosted.withdraw()
                    await asyncio.shield(self._holding)
        except (StoreError, BadRecord, TimeoutError) as error:
            log.warning("other agents end later what driver %s owns: %s", lease.job if lease else "", error)
        await self.close()

    async def close(self) -> None:
        """Stop writing to the storage."""
        self._lease = None
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])

    async def _begin(self) -> None:
        lost = self._lease
        if lost is not None and lost.stopped:
            raise ParentNotRunning(f"this program, driver {lost.job}, was stopped ({lost.stopped}); start it again")
        lease = DriverLease(self._core, self._namespace, self._user, self._program)
        await lease.begin()
        if lost is not None:
            log.error(
                "driver %s counted as dead because this program wrote no heartbeat for too long: the actors that it "
                "owned have ended; create those again that it needs. It goes on as driver %s",
                lost.job,
                lease.job,
            )
        self._lease, self._holding = lease, start_task(self._hold(lease, is_first=lost is None))

    async def _hold(self, lease: DriverLease, is_first: bool) -> None:
        holding = asyncio.create_task(lease.hold())
        try:
            if not is_first:
                await persist(self._core, lambda: self._announce(lease.job))
            await holding
        except Exception:
            log.exception("driver %s has lost its lease by an error", lease.job)
        finally:
            holding.cancel()
        if lease is self._lease and not lease.stopped and self._hosted:
            await persist(self._core, self.job)

    async def _announce(self, job: str) -> None:
        for hosted in list(self._hosted):
            try:
                await hosted.announce(job)
            except (BadRecord, StaleAttempt) as error:
                log.warning("an object that this program serves cannot be announced: %s", error)
