"""This program as a driver: the lease on what it owns. What the lease means is decided in `protocol.drivers`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Protocol
from weakref import WeakSet

from fray_agents.agent.heartbeat import Heartbeat
from fray_agents.agent.leases import HeldLease, Leases
from fray_agents.agent.problems import AgentProblems
from fray_coordinator.core import Core
from fray_coordinator.errors import (
    BadRecord,
    ParentNotRunning,
    StaleAttempt,
    StoreError,
)
from fray_coordinator.jobs import cascade
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.persist import persist
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT, DRIVER_NAME, driver_records
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import AgentKeys, JobId, JobKeys
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    JobRecord,
    Resources,
)
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")

LEAVE_TIMEOUT = 10.0
"""Seconds that a driver which ends waits for the storage; what is not done by then is left to others."""


class HostedService(Protocol):
    """What this program serves."""

    async def announce(self, job: str) -> None:
        """Publish it as what this job serves."""
        ...

    async def withdraw(self) -> None:
        """Take back what was published."""
        ...


class DriverLease:
    """One agent id and one job of this program, from before they are created until they have ended.

    Attributes:
        agent, job: their ids.
        stopped: why somebody asked that it end; "" if nobody has.
        over: it holds nothing any more.
    """

    def __init__(self, core: Core, namespace: str, program: str) -> None:
        host, now = socket.gethostname(), core.now()
        ids = AgentKeys.fresh(host, now, core.rng.token()), JobId.fresh(DRIVER_NAME, now, core.rng.token())
        agent, record = driver_records(*ids, host, namespace, program, now, core.settings.beat_interval)
        self._core = core
        self.agent = agent.id
        self._record = record
        self._stored: Stored[JobRecord] | None = None
        self._held = HeldLease(entry_of(record))
        self._ledger = Leases(Resources(), {record.id: self._held})
        self._troubles = AgentProblems(core)
        self._look_now = asyncio.Event()
        self._heart = Heartbeat(core, self._ledger, agent, lambda _: None, self._look_now.set, self._troubles)
        self.job = record.id
        self.stopped = ""
        self.over = False
        self._ending = False

    async def begin(self) -> None:
        """Create both records, that of the agent first, which lists the job. Raises StoreError: call again."""
        await self._heart.register()
        created = await self._core.records.write(JobKeys.key(self.job), JobRecord, self._record, None)
        self._stored, self._held.phase = created.stored, HoldingPhase.RUNNING

    async def hold(self) -> None:
        """Beat until the lease has ended, or is lost."""
        beating, looking = asyncio.create_task(self._heart.run()), asyncio.create_task(self._look_for_ever())
        try:
            for task in (await asyncio.wait((beating, looking), return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
        finally:
            self.over = True
            for task in (beating, looking):
                task.cancel()
            await asyncio.gather(beating, looking, return_exceptions=True)

    async def stands(self) -> bool:
        """Whether it may own more: a program that did not beat for long, as one that slept, asks the storage."""
        if self.over or self._heart.trusts():
            return not self.over
        with contextlib.suppress(BadRecord):  # nobody can have declared it dead
            found = record_of(await self._core.records.read(AgentKeys.key(self.agent), AgentRecord))
            self.over = is_fenced(found)
        return not self.over

    async def end(self, kind: str) -> None:
        """End the job, what it owns, and then the lease: `hold` returns once that is written. Raises StoreError."""
        self._ending = True
        if self._stored is not None:
            await end_attempt(
                self._core, self._stored, self.agent, AttemptEnd(AttemptExit(kind=kind, log_chunks=0)), None
            )
            await cascade.stop_children(self._core, self.job)
        self._heart.leaving = True
        self._ledger.remove(self._held)

    async def _look_for_ever(self) -> None:
        """Look at the job on mail, and now and then; return once it is not held any more."""
        while self._stored is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._core.jittered(self._core.settings.repair_interval)):
                    await self._look_now.wait()
            self._look_now.clear()
            with self._troubles.survived("look at its job"):
                job = record_of(await self._core.records.reread(self._stored))
                if job is not None and job.stop is not None:
                    self.stopped = job.stop.reason or "asked for"
                    await self.end(ExitKind.STOPPED)
                elif not holds_attempt(job, DRIVER_ATTEMPT, self.agent) and not self._ending:
                    return


class Driver:
    """This program on one cluster; it has a lease from the first thing on that it owns. Lives in the background loop.

    Args:
        program: what runs, for people.
    """

    def __init__(self, core: Core, namespace: str, program: str) -> None:
        self._core = core
        self._namespace = namespace
        self._program = program
        self._lease: DriverLease | None = None
        self._holding: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._hosted: WeakSet[HostedService] = WeakSet()

    async def job(self) -> str:
        """Id of the job whose children end with this program; of another one, if it was taken for dead meanwhile.

        Raises:
            StoreError: it is not known whether the lease stands, or there is none yet; call again.
            ParentNotRunning: somebody has stopped this driver.
        """
        async with self._changing:
            if self._lease is None or not await self._lease.stands():
                await self._begin()
            assert self._lease is not None, "it has begun"
            return self._lease.job

    async def host(self, hosted: HostedService) -> None:
        """Announce what this program serves: now, and again whenever its lease is another one. Raises as `job`."""
        self._hosted.add(hosted)
        await hosted.announce(await self.job())

    async def leave(self) -> None:
        """End what this program owns, as far as the storage does that in time."""
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
            log.warning("what driver %s owns is ended later, by others: %s", lease.job if lease else "", error)
        await self.close()

    async def close(self) -> None:
        """Write nothing more."""
        self._lease = None
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])

    async def _begin(self) -> None:
        lost = self._lease
        if lost is not None and lost.stopped:
            raise ParentNotRunning(f"this program, driver {lost.job}, was stopped ({lost.stopped}); start it again")
        lease = DriverLease(self._core, self._namespace, self._program)
        await lease.begin()
        if lost is not None:
            log.error(
                "this program was not heard of for so long that it counted as dead, as driver %s: the actors that it "
                "owned have ended; create those again that it needs. It goes on as driver %s",
                lost.job,
                lease.job,
            )
        self._lease, self._holding = lease, asyncio.create_task(self._hold(lease, is_first=lost is None))

    async def _hold(self, lease: DriverLease, is_first: bool) -> None:
        holding = asyncio.create_task(lease.hold())
        try:
            if not is_first:
                await persist(self._core, lambda: self._announce(lease.job))
            await holding
        finally:
            holding.cancel()
        if lease is self._lease and not lease.stopped and self._hosted:
            await persist(self._core, self.job)

    async def _announce(self, job: str) -> None:
        for hosted in list(self._hosted):
            try:
                await hosted.announce(job)
            except (BadRecord, StaleAttempt) as error:
                log.warning("what this program serves is not announced: %s", error)
