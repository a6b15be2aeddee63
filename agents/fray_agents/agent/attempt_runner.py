"""Carrying one job's attempt from its claim to its end."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fray_agents.agent.leases import HeldLease, Leases
from fray_agents.agent.log_throttle import LogThrottle
from fray_agents.host.network import NetworkSettings
from fray_agents.tasks import health_check
from fray_agents.tasks.callable_main import exception_fields
from fray_agents.tasks.environment import (
    CHILDREN_MARKER,
    ENDPOINTS_FILE,
    job_variables,
    noted_endpoints,
    task_environment,
)
from fray_agents.tasks.handle import StartTask, TaskHandle
from fray_agents.tasks.process_task import StartFailed, TaskExit, TaskSpec
from fray_agents.tasks.upload import upload_logs, upload_result
from fray_coordinator.actors.discovery import withdraw_all
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.jobs import cascade
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.persist import is_no_outage, persist
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.store.records import Stored
from fray_layouts.errors import InvalidInput
from fray_layouts.records import AttemptExit, JobRecord
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")


class CallableUnavailable(Exception):
    """There is no callable where the job says that it is."""


@dataclass(slots=True)
class AttemptRunner:
    """How this agent runs tasks.

    Attributes:
        ledger: everything that this agent holds.
        start_task: starts a task's processes.
        deadline: boot time until which tasks may run unless the deadline is renewed.
        started: told after each start whether it worked.
        trusts: whether this agent's leases may be relied on now.
        may_restart: whether this agent is the one to start a failed actor again.
        leaving: whether this agent ends once nothing is left to do.
        warnings: of this agent.
        reach: where its servers listen and are reached.
        cwd: where tasks start; None: a fresh directory each.
    """

    core: Core
    agent: str
    ledger: Leases
    work_dir: Path
    lock_fd: int | None
    start_task: StartTask
    deadline: Callable[[JobRecord], float]
    started: Callable[[bool], None]
    trusts: Callable[[], bool]
    may_restart: Callable[[], bool]
    leaving: Callable[[], bool]
    warnings: LogThrottle
    reach: NetworkSettings
    cwd: str | None = None

    async def carry(self, held: HeldLease) -> None:
        """Run the attempt, and those by which the job is restarted here, until nothing is left to do about it.

        Raises:
            Exception: an attempt's end could not be written. The job is still held: its agent must end.
        """
        while (job := await self._carry_attempt(held)) is not None:
            held.restart(job)
            self.ledger.use_again(held)
            await self.core.clock.sleep(max(0.0, job.record.not_before - self.core.now()))

    async def _carry_attempt(self, held: HeldLease) -> Stored[JobRecord] | None:
        """Run one attempt and write how it ended; the record, if the job is to be started here again."""
        assert held.job is not None, "a carried job was claimed"
        job = held.job
        ending = await self._outcome(held, job)
        held.phase = HoldingPhase.ENDING
        after = await self._commit(held, job, ending)
        await self._tidy(held, job.record)
        return after if after is not None and holds_attempt(after.record, held.attempt + 1, self.agent) else None

    async def _outcome(self, held: HeldLease, job: Stored[JobRecord]) -> AttemptEnd:
        """How the attempt ended, whatever went wrong on the way; nothing of its task is left then."""
        try:
            return await self._run(held, job.record)
        except Exception as error:
            if held.task is not None:
                held.task.kill()
                await held.task.gone()
            return _host_failed("the attempt", held, error)

    async def _run(self, held: HeldLease, job: JobRecord) -> AttemptEnd:
        if held.stop is not None:
            return _not_started(held.stop[1])
        try:
            held.task = await self._started(held, job)
        except (StartFailed, OSError) as error:
            self.started(False)
            return AttemptEnd(
                AttemptExit(kind=ExitKind.START_FAILED, message=f"the host could not start the task: {error}")
            )
        except CallableUnavailable as error:
            return AttemptEnd(AttemptExit(kind=ExitKind.EXCEPTION, message=f"{error}; submit it again"))
        if held.task is None:
            return _not_started(held.stop[1] if held.stop else ExitKind.PREEMPTED)
        self.started(True)
        if held.stop is not None:
            held.task.stop(*held.stop)
        return await self._see_through(held, job, held.task)

    async def _started(self, held: HeldLease, job: JobRecord) -> TaskHandle | None:
        """The task; None if it is not to run, because a stop came first or this agent's leases may be others'."""
        starting = held.starting = asyncio.create_task(self._start(held, job))
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:  # the agent ends
            starting.cancel()
            for late in await asyncio.gather(starting, return_exceptions=True):
                if late is not None and not isinstance(late, BaseException):
                    late.kill()
                    await late.gone()
            raise
        return None if starting.cancelled() else starting.result()

    async def _start(self, held: HeldLease, job: JobRecord) -> TaskHandle | None:
        if held.attempt > 1:
            await persist(self.core, lambda: cascade.stop_children(self.core, job.id))
        spec = await self._task_spec(held, job)
        if not self.trusts():  # frozen since the claim, perhaps: the job may be someone else's
            return None
        return await self.start_task(spec, self.deadline(job), self.lock_fd)

    async def _see_through(self, held: HeldLease, job: JobRecord, task: TaskHandle) -> AttemptEnd:
        is_gone = False

        def gives_up(error: StoreError) -> bool:
            held.idle |= is_gone  # others may have its room
            return held.stop is not None and task.exit.done() and is_no_outage(error)

        logs = asyncio.create_task(upload_logs(self.core, job, task, gives_up))
        watch = asyncio.create_task(self._watch_health(held, job))
        try:
            end = await _task_exit(task, logs, watch)
            await task.gone()
            is_gone = True
            end.exit.log_chunks = await logs
            return await self._ending(held, job, end, gives_up)
        finally:
            logs.cancel()
            watch.cancel()

    async def _ending(
        self, held: HeldLease, job: JobRecord, end: TaskExit, gives_up: Callable[[StoreError], bool]
    ) -> AttemptEnd:
        if held.unhealthy:
            end.exit.message = held.unhealthy
        if end.exit.kind == ExitKind.LOST:
            # Something killed its runner; a frozen agent that wakes may trust itself again.
            end.exit.kind = ExitKind.SIGNALLED if self.trusts() else ExitKind.PREEMPTED
        if end.exit.kind != ExitKind.SUCCESS or end.result is None:
            return AttemptEnd(end.exit, None, end.complete_before_stop)
        return AttemptEnd(end.exit, await upload_result(self.core, job, end.result, gives_up), end.complete_before_stop)

    async def _watch_health(self, held: HeldLease, job: JobRecord) -> None:
        def fail(why: str) -> None:
            held.unhealthy = why
            held.ask_to_stop(job.spec.grace, ExitKind.UNHEALTHY)

        if job.spec.health_check is not None:
            await health_check.watch_health(job.spec.health_check, self.core.clock, fail)

    async def _task_spec(self, held: HeldLease, job: JobRecord) -> TaskSpec:
        directory = self.work_dir / f"{job.id}~{job.attempt}"
        call = job.spec.entrypoint.callable
        pickle = None
        if call is not None:
            pickle = _decoded_pickle(call.pickle) if call.pickle else await self._blob(call.blob)
        return TaskSpec(
            directory=directory,
            command=job.spec.entrypoint.command or None,
            callable_pickle=pickle,
            env=task_environment(job, self.core.root, self.agent, directory, self.reach),
            variables=job_variables(job),
            timeout=job.spec.timeout,
            grace=job.spec.grace,
            cwd=self.cwd,
        )

    async def _blob(self, key: str) -> bytes:
        try:
            found = await persist(self.core, lambda: self.core.store.get(key))
        except InvalidInput as error:
            raise CallableUnavailable(f"the job's callable cannot be read: {error}") from error
        if found is None:
            raise CallableUnavailable(f"the job's callable is gone: there is no object {key}")
        return found.data

    async def _commit(self, held: HeldLease, job: Stored[JobRecord], ending: AttemptEnd) -> Stored[JobRecord] | None:
        """Write how the attempt ended, until that is known; the record as it is then.

        What cannot be written is replaced by the reason. When that cannot be written either, the agent has to end.
        """
        try:
            return await self._write(held, job, ending)
        except Exception as error:
            return await self._write(held, job, _host_failed("the attempt, while its end was written,", held, error))

    async def _write(self, held: HeldLease, job: Stored[JobRecord], ending: AttemptEnd) -> Stored[JobRecord] | None:
        """Write the end, however long the store is away or the job's record is not one.

        An agent that leaves waits for an outage to end, but for no single record: it abandons the job.
        """

        async def end() -> Stored[JobRecord] | None:
            decided = replace(ending, restart=self._restarts(held, job.record))
            try:
                return await end_attempt(self.core, job, self.agent, decided, held.entry_in_index)
            except (StoreError, BadRecord):
                held.idle = True
                raise

        while True:
            try:
                return await persist(self.core, end, lambda error: self.leaving() and is_no_outage(error))
            except StoreError as error:
                self.warnings.warn("%s has ended, which is left unwritten: %s", job.record.id, error)
                held.abandoned = True
                return None
            except BadRecord as error:  # an object that someone may repair; until then it names no other holder
                self.warnings.warn("%s has ended, which cannot be written: %s", job.record.id, error)
                retry_at = self.core.clock.boottime() + self.core.settings.repair_interval
                while self.core.clock.boottime() < retry_at:
                    if self.leaving():
                        held.abandoned = True
                        return None
                    await self.core.clock.sleep(1.0)

    async def _tidy(self, held: HeldLease, job: JobRecord) -> None:
        """Take away what the attempt leaves behind; its end is written, whatever comes of this.

        What the store refuses, or never answers, is left to the repair: nobody's slot waits for it.
        """
        task = held.task
        if task is None:
            return
        for step in (partial(self._withdraw, task, job), partial(self._end_children, task, job), task.discard):
            try:
                await step()
            except Exception:
                log.exception("what attempt %d of %s left behind was not all taken away", held.attempt, job.id)

    async def _withdraw(self, task: TaskHandle, job: JobRecord) -> None:
        listed = task.left(ENDPOINTS_FILE)
        if listed is not None:
            published = noted_endpoints(listed)
            await persist(self.core, lambda: withdraw_all(self.core, published, job), is_no_outage)

    async def _end_children(self, task: TaskHandle, job: JobRecord) -> None:
        if task.left(CHILDREN_MARKER) is not None:
            await persist(self.core, lambda: cascade.stop_children(self.core, job.id), is_no_outage)

    def _restarts(self, held: HeldLease, job: JobRecord) -> bool:
        """Whether a failure is followed by another attempt here, and not by one wherever there is room."""
        wanted = held.stop is None or held.stop[1] == ExitKind.UNHEALTHY
        return job.spec.actor and wanted and self.may_restart()


async def _task_exit(task: TaskHandle, *helpers: asyncio.Task[Any]) -> TaskExit:
    """How the task ended; raises as soon as one of the helpers that accompany it does."""
    waited: set[asyncio.Future[Any]] = {task.exit, *helpers}
    while not task.exit.done():
        done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    return task.exit.result()


def _decoded_pickle(pickle: str) -> bytes:
    try:
        return base64.b64decode(pickle, validate=True)
    except ValueError as error:
        raise CallableUnavailable(f"the job's callable is not base64: {error}") from error


def _not_started(why: str) -> AttemptEnd:
    kind = ExitKind.PREEMPTED if why == ExitKind.PREEMPTED else ExitKind.STOPPED
    return AttemptEnd(AttemptExit(kind=kind, message=f"{why} before it was started", log_chunks=0), None, False)


def _host_failed(what: str, held: HeldLease, error: Exception) -> AttemptEnd:
    """The end of an attempt that an exception in its agent ended: not the job's failure, for all that is known."""
    log.error("%s %d of %s failed", what, held.attempt, held.entry.job, exc_info=error)
    told = exception_fields(error)
    message = f"{what} failed in its agent: {told['message']}"
    return AttemptEnd(
        AttemptExit(
            kind=ExitKind.HOST_FAILED, message=message, exception=told["exception"], traceback=told["traceback"]
        )
    )
