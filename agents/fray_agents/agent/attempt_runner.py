"""Runs a claimed job's attempts on this host, from the claim to the record of how each ended."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fray_agents.agent.gpu_watch import GpuWatch
from fray_agents.agent.leases import HeldLease
from fray_agents.agent.membership import Membership
from fray_agents.environments.errors import EnvironmentFailed, HostUnfit, PreparationFailed
from fray_agents.environments.prepare import Preparer
from fray_agents.host.directories import UntrustedDirectory
from fray_agents.host.network import NetworkSettings
from fray_agents.host.ports import held_ports
from fray_agents.runner.exit_report import MESSAGE_LIMIT, shortened
from fray_agents.runner.task_log import LOCAL_SEAL_INTERVAL, SEAL_INTERVAL
from fray_agents.tasks import health_check
from fray_agents.tasks.callable_main import exception_fields
from fray_agents.tasks.environment import (
    CHILDREN_MARKER,
    ENDPOINTS_FILE,
    job_variables,
    noted_endpoints,
    task_environment,
)
from fray_agents.tasks.handle import StartFailed, StartTask, TaskExit, TaskHandle, TaskSpec
from fray_agents.tasks.limits import limits_of
from fray_agents.tasks.outputs import OutputsTooLarge
from fray_agents.tasks.upload import file_chunks, upload_logs, upload_outputs, upload_result
from fray_coordinator.actors.discovery import withdraw_all
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError, StoreRefused
from fray_coordinator.jobs import cascade
from fray_coordinator.jobs.commit import end_attempt
from fray_coordinator.persist import fails_alone, is_no_outage, persist
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.commit import AttemptEnd
from fray_coordinator.store.records import Stored
from fray_layouts.errors import InvalidInput
from fray_layouts.escaping import one_line
from fray_layouts.records import AttemptExit, JobRecord
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")


class EntrypointUnavailable(Exception):
    """The job's callable is not where the job says that it is."""


@dataclass(slots=True)
class AttemptRunner:
    """Runs the attempts of claimed jobs on this host, and writes how each ended.

    Attributes:
        member: the agent's membership.
        work_dir: where tasks have their directories.
        lock_fd: descriptor of the agent's lock, which runners inherit; None if there is none.
        start_task: starts a task.
        gpus: the GPUs that the agent offers.
        preparer: makes ready what a job brings.
        network: where servers on this host listen and are reached.
        cwd: where tasks start; None: a fresh directory each.
    """

    member: Membership
    work_dir: Path
    lock_fd: int | None
    start_task: StartTask
    gpus: GpuWatch
    preparer: Preparer
    network: NetworkSettings
    cwd: str | None = None

    @property
    def _core(self) -> Core:
        return self.member.core

    async def run(self, lease: HeldLease) -> None:
        """Run the attempt, and those by which the job is restarted here, until nothing is left to do about it.

        Raises:
            Exception: an attempt's end could not be written. The job is still held: its agent must end.
        """
        while (job := await self._run_attempt(lease)) is not None:
            lease.restart(job)
            self.member.leases.use_again(lease)
            await self._core.clock.sleep(max(0.0, job.record.not_before - self._core.now()))

    async def _run_attempt(self, lease: HeldLease) -> Stored[JobRecord] | None:
        """Run one attempt and write how it ended; the record, if the job is to be started here again."""
        assert lease.job is not None, "an attempt that runs was claimed"
        job = lease.job
        try:
            end = await self._end_of(lease, job)
            lease.phase = HoldingPhase.ENDING
            log.info("%s: attempt %d has ended: %s", job.record.id, lease.attempt, _one_line(end.exit))
            after = await self._commit(lease, job, end)
            await self._clean_up(lease, job.record)
        finally:
            await self._let_go(lease)
        return after if after is not None and holds_attempt(after.record, lease.attempt + 1, self.member.id) else None

    async def _end_of(self, lease: HeldLease, job: Stored[JobRecord]) -> AttemptEnd:
        """How the attempt ended, whatever went wrong on the way; nothing of its task is left then."""
        try:
            return await self._start_and_watch(lease, job.record)
        except Exception as error:
            if lease.task is not None:
                lease.task.kill()
                await lease.task.wait()
            return _host_failed("the attempt", lease, error)

    async def _start_and_watch(self, lease: HeldLease, job: JobRecord) -> AttemptEnd:
        if lease.stop is not None:
            return _not_started(lease.stop[1])
        try:
            lease.task = await self._started(lease, job)
        except EnvironmentFailed as error:
            return await self._not_prepared(lease, job, ExitKind.ENVIRONMENT_FAILED, error)
        except HostUnfit as error:  # for this job; the host can start others
            return await self._not_prepared(lease, job, ExitKind.START_FAILED, error)
        except (StartFailed, UntrustedDirectory, OSError) as error:
            self.member.count_start(False)
            return await self._not_prepared(lease, job, ExitKind.START_FAILED, error)
        except StoreError as error:  # an object's own trouble: the host can start others
            message = f"what it needs could not be read here: {error}"
            return AttemptEnd(AttemptExit(kind=ExitKind.START_FAILED, message=message))
        except EntrypointUnavailable as error:
            return AttemptEnd(AttemptExit(kind=ExitKind.EXCEPTION, message=f"{error}; submit it again"))
        if lease.task is None:
            return _not_started(lease.stop[1] if lease.stop else ExitKind.PREEMPTED)
        self.member.count_start(True)
        if lease.stop is not None:
            lease.task.stop(*lease.stop)
        return await self._until_ended(lease, job, lease.task)

    async def _not_prepared(self, lease: HeldLease, job: JobRecord, kind: ExitKind, error: Exception) -> AttemptEnd:
        """The end of an attempt whose task could not be started; what was said on the way becomes its log."""
        chunks = 0
        if isinstance(error, PreparationFailed) and error.log is not None:
            chunks = await upload_logs(self._core, job, file_chunks(error.log), is_no_outage)
        message = str(error) if kind == ExitKind.ENVIRONMENT_FAILED else f"the host could not start the task: {error}"
        return AttemptEnd(AttemptExit(kind=kind, message=shortened(message, MESSAGE_LIMIT), log_chunks=chunks))

    async def _started(self, lease: HeldLease, job: JobRecord) -> TaskHandle | None:
        """The task; None if it is not to run, because a stop came first or this agent's leases may be others'."""
        starting = lease.starting = asyncio.create_task(self._start(lease, job))
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:  # the agent ends
            starting.cancel()
            for late in await asyncio.gather(starting, return_exceptions=True):
                if late is not None and not isinstance(late, BaseException):
                    late.kill()
                    await late.wait()
            raise
        return None if starting.cancelled() else starting.result()

    async def _start(self, lease: HeldLease, job: JobRecord) -> TaskHandle | None:
        if lease.attempt > 1:
            await persist(self._core, lambda: cascade.stop_children(self._core, job.id), fails_alone(self._core))
        spec = await self._task_spec(lease, job)
        await self.gpus.check(lease)
        lease.activity = ""
        if not self.member.trusts():  # frozen since the claim, perhaps: the job may be someone else's
            return None
        return await self.start_task(spec, self.member.task_deadline(job), self.lock_fd)

    async def _until_ended(self, lease: HeldLease, job: JobRecord, task: TaskHandle) -> AttemptEnd:
        is_gone = False

        def on_failure() -> Callable[[StoreError], bool]:
            """Whether an upload is given up: asked to stop, at a refusal, or at its second failure for this object.

            The first may be of a request that this agent sent long ago, before it was frozen.
            """
            failed_since_stop = False

            def gives_up(error: StoreError) -> bool:
                nonlocal failed_since_stop
                lease.idle |= is_gone  # others may have its room
                if lease.stop is None or not task.exit.done() or not is_no_outage(error):
                    return False
                failed_before, failed_since_stop = failed_since_stop, True
                return failed_before or isinstance(error, StoreRefused)

            return gives_up

        logs = asyncio.create_task(upload_logs(self._core, job, task.chunks(), on_failure()))
        watch = asyncio.create_task(self._watch_health(lease, job))
        try:
            end = await _task_exit(task, logs, watch)
            await task.wait()
            is_gone = True
            end.exit.log_chunks = await logs
            return await self._finished(lease, job, task, end, on_failure())
        finally:
            logs.cancel()
            watch.cancel()

    async def _finished(
        self,
        lease: HeldLease,
        job: JobRecord,
        task: TaskHandle,
        end: TaskExit,
        gives_up: Callable[[StoreError], bool],
    ) -> AttemptEnd:
        if lease.unhealthy:
            end.exit.message = lease.unhealthy
        if end.exit.kind == ExitKind.LOST:
            # Something killed its runner; a frozen agent that wakes may trust itself again.
            end.exit.kind = ExitKind.SIGNALLED if self.member.trusts() else ExitKind.PREEMPTED
        ending = AttemptEnd(end.exit, None, end.complete_before_stop)
        if end.exit.kind != ExitKind.SUCCESS:
            return ending
        if end.result is not None:
            ending = replace(ending, result=await upload_result(self._core, job, end.result, gives_up))
        if job.spec.outputs:
            try:
                ending = replace(ending, outputs=await upload_outputs(self._core, job, task, gives_up))
            except OutputsTooLarge as error:
                too_large = msgspec.structs.replace(end.exit, kind=ExitKind.TOO_LARGE, message=str(error))
                return AttemptEnd(too_large, None, end.complete_before_stop)
        return ending

    async def _watch_health(self, lease: HeldLease, job: JobRecord) -> None:
        def fail(why: str) -> None:
            lease.unhealthy = why
            lease.ask_to_stop(job.spec.grace, ExitKind.UNHEALTHY)

        if job.spec.health_check is not None:
            await health_check.watch_health(job.spec.health_check, self._core.clock, fail)

    async def _task_spec(self, lease: HeldLease, job: JobRecord) -> TaskSpec:
        directory = self.work_dir / f"{job.id}~{job.attempt}"
        call, stdin = job.spec.entrypoint.callable, job.spec.entrypoint.stdin
        pickle = None
        if call is not None:
            pickle = _decoded_pickle(call.pickle) if call.pickle else await self._blob(call.blob, "callable")

        def tell(activity: str) -> None:
            lease.activity = activity

        prepared = await self.preparer.prepare(job, directory, lease.resources, tell)
        ports = lease.resources.enter_context(held_ports(job.spec.ports, self._core.rng))
        lease.ports = ports.numbers
        env = task_environment(job, self._core.root, self.member.id, directory, self.network, ports.numbers)
        return TaskSpec(
            directory=directory,
            command=job.spec.entrypoint.command or None,
            callable_pickle=pickle,
            stdin=await self._blob(stdin, "standard input") if stdin else None,
            env=prepared.environment(env) | self.gpus.variables(lease),
            variables=job_variables(job),
            timeout=job.spec.timeout,
            grace=job.spec.grace,
            cwd=str(prepared.start) if prepared.start else None if prepared.container else self.cwd,
            python=prepared.python,
            python_path=prepared.python_path,
            preamble=prepared.log,
            held=ports.descriptors,
            limits=limits_of(job.spec.resources),
            seal_interval=LOCAL_SEAL_INTERVAL if self._core.store.local else SEAL_INTERVAL,
            container=prepared.container,
        )

    async def _blob(self, key: str, part: str) -> bytes:
        try:
            found = await persist(self._core, lambda: self._core.store.get(key), fails_alone(self._core))
        except InvalidInput as error:
            raise EntrypointUnavailable(f"the job's {part} cannot be read: {error}") from error
        if found is None:
            raise EntrypointUnavailable(f"the job's {part} is gone: there is no object {key}")
        return found.data

    async def _commit(self, lease: HeldLease, job: Stored[JobRecord], end: AttemptEnd) -> Stored[JobRecord] | None:
        """Write how the attempt ended, until that is known; the record as it is then.

        What cannot be written is replaced by the reason. When that cannot be written either, the agent has to end.
        """
        try:
            return await self._write(lease, job, end)
        except Exception as error:
            return await self._write(lease, job, _host_failed("the attempt, while its end was written,", lease, error))

    async def _write(self, lease: HeldLease, job: Stored[JobRecord], end: AttemptEnd) -> Stored[JobRecord] | None:
        """Write the end, however long the store is away or the job's record is not one.

        An agent that leaves waits for an outage to end, but for no single record: it abandons the job.
        """

        async def write() -> Stored[JobRecord] | None:
            decided = replace(end, restart=self._restarts(lease, job.record))
            try:
                return await end_attempt(self._core, job, self.member.id, decided, lease.entry_in_index)
            except (StoreError, BadRecord):
                lease.idle = True
                raise

        while True:
            try:
                return await persist(self._core, write, lambda error: self.member.leaving and is_no_outage(error))
            except StoreError as error:
                self.member.problems.warnings.warn("%s has ended, which is left unwritten: %s", job.record.id, error)
                lease.abandoned = True
                return None
            except BadRecord as error:  # an object that someone may repair; until then it names no other holder
                self.member.problems.warnings.warn("%s has ended, which cannot be written: %s", job.record.id, error)
                retry_at = self._core.clock.boottime() + self._core.settings.repair_interval
                while self._core.clock.boottime() < retry_at:
                    if self.member.leaving:
                        lease.abandoned = True
                        return None
                    await self._core.clock.sleep(1.0)

    async def _clean_up(self, lease: HeldLease, job: JobRecord) -> None:
        """Remove what the attempt leaves behind; its end is written, whatever comes of this.

        What the store refuses, or never answers, is left to the repair: nobody's slot waits for it.
        """
        task = lease.task
        if task is None:
            return
        for step in (partial(self._withdraw, task, job), partial(self._stop_children, task, job), task.discard):
            try:
                await step()
            except Exception:
                log.exception("what attempt %d of %s left behind was not all removed", lease.attempt, job.id)

    async def _let_go(self, lease: HeldLease) -> None:
        try:
            await lease.resources.aclose()
        except Exception:
            log.exception("what attempt %d of %s held of this host was not all let go", lease.attempt, lease.entry.job)

    async def _withdraw(self, task: TaskHandle, job: JobRecord) -> None:
        listed = task.read_file(ENDPOINTS_FILE)
        if listed is not None:
            published = noted_endpoints(listed)
            await persist(self._core, lambda: withdraw_all(self._core, published, job), is_no_outage)

    async def _stop_children(self, task: TaskHandle, job: JobRecord) -> None:
        if task.read_file(CHILDREN_MARKER) is not None:
            await persist(self._core, lambda: cascade.stop_children(self._core, job.id), is_no_outage)

    def _restarts(self, lease: HeldLease, job: JobRecord) -> bool:
        """Whether a failure is followed by another attempt here, and not by one wherever there is room."""
        unasked = lease.stop is None or lease.stop[1] == ExitKind.UNHEALTHY
        return job.spec.actor and unasked and self.member.may_claim()


async def _task_exit(task: TaskHandle, *companions: asyncio.Task[Any]) -> TaskExit:
    """How the task ended; raises as soon as one of its companions does."""
    waited: set[asyncio.Future[Any]] = {task.exit, *companions}
    while not task.exit.done():
        done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    return task.exit.result()


def _one_line(end: AttemptExit) -> str:
    """How an attempt ended, for the agent's log."""
    return f"{end.kind}{': ' * bool(end.message)}{one_line(end.message)}"


def _decoded_pickle(pickle: str) -> bytes:
    try:
        return base64.b64decode(pickle, validate=True)
    except ValueError as error:
        raise EntrypointUnavailable(f"the job's callable is not base64: {error}") from error


def _not_started(why: str) -> AttemptEnd:
    kind = ExitKind.PREEMPTED if why == ExitKind.PREEMPTED else ExitKind.STOPPED
    return AttemptEnd(AttemptExit(kind=kind, message=f"{why} before it was started", log_chunks=0), None, False)


def _host_failed(what: str, lease: HeldLease, error: Exception) -> AttemptEnd:
    """The end of an attempt that an exception in its agent ended: as far as is known, not the job's failure."""
    log.error("%s %d of %s failed", what, lease.attempt, lease.entry.job, exc_info=error)
    fields = exception_fields(error)
    message = f"{what} failed in its agent: {fields['message']}"
    return AttemptEnd(
        AttemptExit(
            kind=ExitKind.HOST_FAILED, message=message, exception=fields["exception"], traceback=fields["traceback"]
        )
    )
