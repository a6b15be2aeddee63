"""Runs one replica of a job on this host, from its preparation to its cleanup, through every failure on the way.

What remains of an attempt, its uploads and its end in the job's record, is written through outages of the store.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fray_agents.agent.devices import ChipWatch, GpuWatch
from fray_agents.agent.held import HeldTask
from fray_agents.agent.membership import Membership
from fray_agents.environments.cache import EnvironmentFailed, HostUnfit, PreparationFailed
from fray_agents.environments.prepare import Preparer
from fray_agents.runner.exit_report import MESSAGE_LIMIT, shortened
from fray_agents.runner.task_log import LOCAL_SEAL_INTERVAL, SEAL_INTERVAL
from fray_agents.tasks import health_check
from fray_agents.tasks.callable_main import exception_fields
from fray_agents.tasks.environment import job_variables, limits_of, task_environment
from fray_agents.tasks.output_files import OutputsTooLarge
from fray_agents.tasks.task_handle import StartFailed, StartTask, TaskExit, TaskHandle, TaskSpec
from fray_agents.tasks.upload import KeepTrying, file_chunks, upload_logs, upload_outputs, upload_result
from fray_coordinator.actors.naming import withdraw_all
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError, StoreRefused
from fray_coordinator.jobs import stopping
from fray_coordinator.persist import fails_alone, is_no_outage, persist
from fray_coordinator.protocol.commit import AttemptEnd
from fray_layouts.errors import InvalidInput
from fray_layouts.records import AttemptExit, JobRecord
from fray_layouts.spec import ends_with_trust, is_gang
from fray_layouts.states import ExitKind
from fray_runtime.current_task import CHILDREN_MARKER, ENDPOINTS_FILE, noted_endpoints
from fray_runtime.directories import UntrustedDirectory
from fray_runtime.network import NetworkSettings, held_ports

log = logging.getLogger("fray")


_WHY_AT_ONCE = (
    "actors and gangs have no outage grace, unless the actor has outage='run': another agent may start the next "
    "attempt as soon as this one's leases may not be relied on"
)


class EntrypointUnavailable(Exception):
    """The job's callable or standard input is not where the job's record says."""


@dataclass(slots=True)
class ReplicaRunner:
    """Runs replicas of jobs on this host, each as a task; other parts write what the task's end means for the job.

    Attributes:
        member: the agent's membership.
        work_dir: the parent of the tasks' directories.
        lock_fd: descriptor of the agent's lock, which runners inherit; None if there is none.
        start_task: starts a task.
        gpus: the GPUs that the agent offers.
        chips: the TPU chips of its host.
        preparer: prepares the workspace and environment that a job brings.
        network: where servers on this host listen, and the address at which they are reached.
        cwd: the working directory of tasks; None: a new directory for each.
    """

    member: Membership
    work_dir: Path
    lock_fd: int | None
    start_task: StartTask
    gpus: GpuWatch
    chips: ChipWatch
    preparer: Preparer
    network: NetworkSettings
    cwd: str | None = None

    @property
    def _core(self) -> Core:
        return self.member.core

    async def run(self, held: HeldTask, job: JobRecord, ports: Sequence[int] = ()) -> AttemptEnd:
        """Run the task; its end, even if something fails on the way. No process of it is left when this returns.

        ports: descriptors of ports that it holds besides its own.
        """
        try:
            return await self._start_and_watch(held, job, ports)
        except Exception as error:
            if held.task is not None:
                held.task.kill()
                await held.task.wait()
            return host_failed("the attempt", job, error)

    async def _start_and_watch(self, held: HeldTask, job: JobRecord, ports: Sequence[int]) -> AttemptEnd:
        if held.stop is not None:
            return _not_started(held.stop[1])
        try:
            held.task = await self._started(held, job, ports)
        except EnvironmentFailed as error:
            return await self._not_prepared(held, job, ExitKind.ENVIRONMENT_FAILED, error)
        except HostUnfit as error:  # unfit for this job only: the host may be able to start others
            return await self._not_prepared(held, job, ExitKind.START_FAILED, error)
        except (StartFailed, UntrustedDirectory, OSError) as error:
            self.member.count_start(False)
            return await self._not_prepared(held, job, ExitKind.START_FAILED, error)
        except StoreError as error:  # trouble with one object: the host can start other tasks
            message = f"its workspace, callable or input could not be read from storage here: {error}"
            return AttemptEnd(AttemptExit(kind=ExitKind.START_FAILED, message=message))
        except EntrypointUnavailable as error:
            return AttemptEnd(AttemptExit(kind=ExitKind.EXCEPTION, message=f"{error}; submit it again"))
        if held.task is None:
            return _not_started(held.stop[1] if held.stop else ExitKind.PREEMPTED)
        self.member.count_start(True)
        if held.stop is not None:
            held.task.stop(*held.stop)
        return await self._watch_until_end(held, job, held.task)

    async def _not_prepared(self, held: HeldTask, job: JobRecord, kind: ExitKind, error: Exception) -> AttemptEnd:
        """The end of an attempt whose task could not be started; output of the preparation becomes its log."""
        chunks = 0
        if isinstance(error, PreparationFailed) and error.log is not None:
            keep_trying = partial(persist, self._core, gives_up=is_no_outage)
            chunks = await upload_logs(self._core, job, held.replica, file_chunks(error.log), keep_trying)
        message = str(error) if kind == ExitKind.ENVIRONMENT_FAILED else f"the host could not start the task: {error}"
        return AttemptEnd(AttemptExit(kind=kind, message=shortened(message, MESSAGE_LIMIT), log_chunks=chunks))

    async def _started(self, held: HeldTask, job: JobRecord, ports: Sequence[int]) -> TaskHandle | None:
        """The started task; None if it must not run: a stop came first, or this agent may have lost its leases."""
        starting = held.starting = asyncio.create_task(self._start(held, job, ports))
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:  # the agent exits
            starting.cancel()
            for late in await asyncio.gather(starting, return_exceptions=True):
                if late is not None and not isinstance(late, BaseException):
                    late.kill()
                    await late.wait()
            raise
        return None if starting.cancelled() else starting.result()

    async def _start(self, held: HeldTask, job: JobRecord, ports: Sequence[int]) -> TaskHandle | None:
        if job.attempt > 1 and held.replica == 0:
            await persist(self._core, lambda: stopping.stop_children(self._core, job.id), fails_alone(self._core))
        spec = await self._task_spec(held, job, ports)
        await self.gpus.check(held)
        await self.chips.check(held)
        held.activity = ""
        if not self.member.trusts():  # perhaps frozen since the claim: the job may have another holder
            return None
        return await self.start_task(spec, self.member.task_deadline(job), self.lock_fd)

    async def _watch_until_end(self, held: HeldTask, job: JobRecord, task: TaskHandle) -> AttemptEnd:
        for_log, for_rest = UploadRetries(self._core, held, task), UploadRetries(self._core, held, task)
        logs = asyncio.create_task(upload_logs(self._core, job, held.replica, task.chunks(), for_log.keep_trying))
        watch = asyncio.create_task(self._watch_health(held, job))
        try:
            end = await _task_exit(task, logs, watch)
            await task.wait()
            for_log.is_gone = for_rest.is_gone = True
            end.exit.log_chunks = await logs
            return await self._attempt_end(held, job, task, end, for_rest.keep_trying)
        finally:
            logs.cancel()
            watch.cancel()

    async def _attempt_end(
        self,
        held: HeldTask,
        job: JobRecord,
        task: TaskHandle,
        end: TaskExit,
        keep_trying: KeepTrying,
    ) -> AttemptEnd:
        if held.unhealthy:
            end.exit.message = held.unhealthy
        if end.exit.kind == ExitKind.LOST and (held.stop is None or held.stop[1] != ExitKind.LOST):
            # Something killed its runner, or the agent was frozen and now trusts its leases again.
            end.exit.kind = ExitKind.SIGNALLED if self.member.trusts() else ExitKind.PREEMPTED
        if end.exit.kind == ExitKind.PREEMPTED and held.stop is None and ends_with_trust(job.spec):
            end.exit.message = f"{end.exit.message}; {_WHY_AT_ONCE}".removeprefix("; ")
        ending = AttemptEnd(end.exit, None, end.complete_before_stop)
        if end.exit.kind != ExitKind.SUCCESS:
            return ending
        if end.result is not None:
            ending = replace(ending, result=await upload_result(self._core, job, held.replica, end.result, keep_trying))
        if job.spec.outputs:
            try:
                ending = replace(ending, outputs=await upload_outputs(self._core, job, held.replica, task, keep_trying))
            except OutputsTooLarge as error:
                too_large = msgspec.structs.replace(end.exit, kind=ExitKind.TOO_LARGE, message=str(error))
                return AttemptEnd(too_large, None, end.complete_before_stop)
        return ending

    async def _watch_health(self, held: HeldTask, job: JobRecord) -> None:
        def fail(why: str) -> None:
            held.unhealthy = why
            held.ask_to_stop(job.spec.grace, ExitKind.UNHEALTHY)

        if job.spec.health_check is not None:
            await health_check.watch_health(job.spec.health_check, self._core.clock, fail)

    async def _task_spec(self, held: HeldTask, job: JobRecord, more_ports: Sequence[int]) -> TaskSpec:
        replica = f"~{held.replica}" if is_gang(job.spec) else ""
        directory = self.work_dir / f"{job.id}~{job.attempt}{replica}"
        call, stdin = job.spec.entrypoint.callable, job.spec.entrypoint.stdin
        pickle = None
        if call is not None:
            pickle = _decoded_pickle(call.pickle) if call.pickle else await self._blob(call.blob, "callable")

        def on_activity(activity: str) -> None:
            held.activity = activity

        prepared = await self.preparer.prepare(job, directory, held.resources, on_activity)
        ports = held.resources.enter_context(held_ports(job.spec.ports, self._core.rng))
        held.ports = ports.numbers
        env = task_environment(
            job, self._core.root, self.member.id, directory, self.network, ports.numbers, held.replica
        )
        return TaskSpec(
            directory=directory,
            command=job.spec.entrypoint.command or None,
            callable_pickle=pickle,
            stdin=await self._blob(stdin, "standard input") if stdin else None,
            env=prepared.environment(env) | self.gpus.variables(held),
            variables=job_variables(job),
            secrets=list(job.spec.environment.secret_env_vars.values()),
            timeout=job.spec.timeout,
            grace=job.spec.grace,
            cwd=str(prepared.start) if prepared.start else None if prepared.container else self.cwd,
            python=prepared.python,
            python_path=prepared.python_path,
            preamble=prepared.log,
            held=(*ports.descriptors, *more_ports),
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

    async def clean_up(self, held: HeldTask, job: JobRecord) -> None:
        """Remove what the task leaves behind. Its end is already written and stays, whether this succeeds or not.

        Writes that the store refuses or does not answer are left to the repair, so that they occupy no slot.
        """
        task = held.task
        if task is None:
            return
        for step in (partial(self._withdraw, task, job), partial(self._stop_children, task, job), task.discard):
            try:
                await step()
            except Exception:
                log.exception("attempt %d of %s could not be cleaned up completely", job.attempt, job.id)

    async def let_go(self, held: HeldTask, job: JobRecord) -> None:
        """Release what the task held of the host."""
        try:
            await held.resources.aclose()
        except Exception:
            log.exception("attempt %d of %s still holds resources of this host", job.attempt, job.id)

    async def _withdraw(self, task: TaskHandle, job: JobRecord) -> None:
        listed = task.read_file(ENDPOINTS_FILE)
        if listed is not None:
            published = noted_endpoints(listed)
            await persist(self._core, lambda: withdraw_all(self._core, published, job), is_no_outage)

    async def _stop_children(self, task: TaskHandle, job: JobRecord) -> None:
        if task.read_file(CHILDREN_MARKER) is not None:
            await persist(self._core, lambda: stopping.stop_children(self._core, job.id), is_no_outage)


async def _task_exit(task: TaskHandle, *companions: asyncio.Task[Any]) -> TaskExit:
    """The end of the task; raises the error of a companion as soon as one fails."""
    waited: set[asyncio.Future[Any]] = {task.exit, *companions}
    while not task.exit.done():
        done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    return task.exit.result()


def _decoded_pickle(pickle: str) -> bytes:
    try:
        return base64.b64decode(pickle, validate=True)
    except ValueError as error:
        raise EntrypointUnavailable(f"the job's callable is not base64: {error}") from error


def _not_started(why: str) -> AttemptEnd:
    kind = ExitKind(why) if why in (ExitKind.PREEMPTED, ExitKind.YIELDED) else ExitKind.STOPPED
    return AttemptEnd(AttemptExit(kind=kind, message=f"{why} before it was started", log_chunks=0), None, False)


def host_failed(what: str, job: JobRecord, error: Exception) -> AttemptEnd:
    """The end of an attempt that an exception in its agent ended; as far as is known, the job itself did not fail."""
    log.error("%s %d of %s failed", what, job.attempt, job.id, exc_info=error)
    fields = exception_fields(error)
    message = f"{what} failed in its agent: {fields['message']}"
    return AttemptEnd(
        AttemptExit(
            kind=ExitKind.HOST_FAILED, message=message, exception=fields["exception"], traceback=fields["traceback"]
        )
    )


T = TypeVar("T")


@dataclass(slots=True)
class UploadRetries:
    """The retries of an attempt's log, or of its result and outputs; after a stop there are only a few.

    After the stop an upload is given up at a refusal, or at the second failure of requests that were sent since. The
    failure of an earlier request says little, because it may have been sent long ago, before this agent was frozen.

    is_gone: whether the task's last process has ended; other jobs may use its room while an upload fails.
    """

    core: Core
    held: HeldTask
    task: TaskHandle
    is_gone: bool = False
    _has_failed: bool = False

    async def keep_trying(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat the request until it succeeds.

        Raises:
            StoreError: the last failure of an upload that was given up.
        """
        since_stop = False

        async def send() -> T:
            nonlocal since_stop
            since_stop = self.held.stop is not None
            return await request()

        return await persist(self.core, send, lambda error: self._gives_up(error, since_stop))

    def _gives_up(self, error: StoreError, since_stop: bool) -> bool:
        self.held.idle |= self.is_gone
        if self.held.stop is None or not self.task.exit.done() or not is_no_outage(error):
            return False
        failed_before, self._has_failed = self._has_failed, self._has_failed or since_stop
        return failed_before or isinstance(error, StoreRefused)


LEAVING_CHECK_SECONDS = 1.0
"""Seconds between two checks whether the agent leaves, while a record is damaged: it leaves at most that much later."""


class LeftUnwritten(Exception):
    """The end of an attempt stays unwritten: the agent leaves, and other agents find that it did."""


async def until_written(member: Membership, job: str, write: Callable[[], Awaitable[T]]) -> T:
    """Call `write` until it succeeds, however long the store is away or the job's record is damaged.

    Args:
        job: id of the job, for log lines.
        write: may raise StoreError and BadRecord.

    Raises:
        LeftUnwritten: the agent leaves. It then waits for an outage to end, but not for one damaged record.
    """
    core, warnings = member.core, member.problems.warnings
    while True:
        try:
            return await persist(core, write, lambda error: member.leaving and is_no_outage(error))
        except StoreError as error:
            warnings.warn("%s has ended, but its end is left unwritten: %s", job, error)
            raise LeftUnwritten(job) from error
        except BadRecord as error:  # somebody may repair the object; until then it names no other holder
            warnings.warn("%s has ended, but its end cannot be written yet: %s", job, error)
            retry_at = core.clock.boottime() + core.settings.repair_interval
            while core.clock.boottime() < retry_at:
                if member.leaving:
                    raise LeftUnwritten(job) from error
                await core.clock.sleep(LEAVING_CHECK_SECONDS)
