"""The controller of Fray's jobs on one Ray: an actor that keeps every job's record, starts the job and retries it.

The first program that needs it creates it, and it lives as long as the Ray. It alone has the jobs, so a name has one
unfinished job at most, and a program that submits the name again finds that job. It never unpickles what users send;
only the tasks do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fray.backends.ray import attempts
from fray.backends.ray.attempt_run import EnvironmentUnavailable, JobAttempt, error_text
from fray.backends.ray.connection import NAMESPACE, import_ray
from fray.workspace.choice import inherited
from fray_coordinator.clock import system_random
from fray_coordinator.concurrency import start_task
from fray_coordinator.errors import ParentNotRunning
from fray_coordinator.jobs.logs import LogLine, parse_chunk
from fray_coordinator.protocol.job_identity import identify
from fray_coordinator.protocol.stopping import request_stop, stop_now
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.object_keys import JobIds
from fray_layouts.records import AttemptExit, JobRecord, JobResult, ReplicaExit
from fray_layouts.spec import JobSpec
from fray_layouts.states import ExitKind, StopOrigin

NAME = "fray-jobs"
"""Name of the actor, in Ray's namespace "fray"."""

RETENTION = 86400.0
"""Seconds that a job is kept after its end: a day, in which programs can still ask for its result."""

MAX_FINISHED = 10_000
"""Finished jobs that are kept at most, which bounds the memory: some kilobytes each, and their logs."""

_LOG_BYTES = 1024**2
"""Bytes of each job's output that are kept; older output is dropped."""

_CONCURRENT_CALLS = 10_000
"""Calls that run at once. Most of them wait for jobs to end, so they cost little."""

log = logging.getLogger("fray")


@dataclass(frozen=True)
class JobOutput:
    """Lines of a job's output. next: the number of the line after them; over: whether the job has ended."""

    lines: list[LogLine]
    next: int
    over: bool


@dataclass
class KnownJob:
    """A job that the controller keeps.

    Attributes:
        call: base64 of its callable's pickle; "" for a command.
        results: each replica's result, with a Ray reference to its bytes, once all have ended.
        dropped: number of lines that are not kept any more; the others are in `lines`.
    """

    record: JobRecord
    call: str
    attempt: JobAttempt | None = None
    task: asyncio.Task[None] | None = None
    results: list[tuple[JobResult | None, Any]] = field(default_factory=list)
    lines: deque[LogLine] = field(default_factory=deque)
    line_bytes: int = 0
    dropped: int = 0

    def append(self, lines: Sequence[LogLine]) -> None:
        self.lines.extend(lines)
        self.line_bytes += sum(len(line.data) for line in lines)
        while self.line_bytes > _LOG_BYTES and len(self.lines) > 1:
            self.line_bytes -= len(self.lines.popleft().data)
            self.dropped += 1


class JobController:
    """The Ray actor that keeps the jobs. All of its methods are coroutines of one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[str, KnownJob] = {}
        self._changed = asyncio.Event()
        self._random = system_random()

    async def submit(self, spec: JobSpec, call: str, attempt_of_parent: int | None, by_name: bool) -> tuple[str, bool]:
        """Create a job and start to run it. Returns its id, and whether the job existed before.

        Args:
            call: base64 of the callable's pickle; "" for a command.
            attempt_of_parent: number of the parent's attempt that submits it; None: the current one.
            by_name: whether to return an unfinished job of the same name and namespace, if there is one.

        Raises:
            ParentNotRunning: the parent has ended, or another attempt of it runs.
        """
        self._forget_old()
        parent = self._running_parent(spec.parent, attempt_of_parent) if spec.parent else None
        fresh = JobIds.fresh(spec.name, time.time(), self._random.token())
        job_id, spec = identify(spec, parent, fresh)
        if by_name:
            job_id = self._unfinished(spec) or job_id
        if job_id in self._jobs:
            return job_id, True
        if parent is not None:
            spec = replace(spec, environment=inherited(spec.environment, parent.spec.environment))
        known = self._jobs[job_id] = KnownJob(attempts.admitted(spec, job_id, parent, time.time()), call)
        known.task = start_task(self._run(known))
        return job_id, False

    async def records(self, job_ids: Sequence[str] | None = None) -> dict[str, JobRecord]:
        """The records of those of these jobs that exist; without ids, of all jobs in order of submission."""
        wanted = self._jobs if job_ids is None else job_ids
        return {job: self._jobs[job].record for job in wanted if job in self._jobs}

    async def wait(self, job_ids: Sequence[str], any_failure: bool, seconds: float) -> dict[str, JobRecord]:
        """Wait until all jobs have ended, with `any_failure` until one has failed, at most so many seconds.

        Returns their records.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not all_settled(await self.records(job_ids), any_failure):
                    await self._changed.wait()
        return await self.records(job_ids)

    async def results(self, job_id: str) -> list[tuple[JobResult | None, Any]]:
        """Each replica's result: its encoding, and a Ray reference to its bytes."""
        return self._jobs[job_id].results if job_id in self._jobs else []

    async def output(self, job_id: str, after: int, seconds: float) -> JobOutput | None:
        """The lines from number `after` on. None if there is no such job.

        While the job runs and there are none, it waits for some, at most `seconds`.
        """
        known = self._jobs.get(job_id)
        if known is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while known.dropped + len(known.lines) <= after and not is_terminal(known.record):
                    await self._changed.wait()
        first = max(after - known.dropped, 0)
        lines = list(known.lines)[first:]
        return JobOutput(lines, known.dropped + len(known.lines), is_terminal(known.record))

    async def append_output(self, job_id: str, attempt: int, replica: int, chunk: bytes) -> None:
        """Store a chunk of a replica's output."""
        if job_id in self._jobs:
            self._jobs[job_id].append(parse_chunk(job_id, chunk, attempt, replica))
            self._notify()

    async def stop(self, job_id: str, reason: str) -> bool:
        """Ask a job and its children to end. Returns whether there is such a job."""
        known = self._jobs.get(job_id)
        if known is not None:
            self._stop(known, reason, StopOrigin.USER)
        return known is not None

    # --- running a job

    async def _run(self, known: KnownJob) -> None:
        while not is_terminal(known.record):
            await asyncio.sleep(max(0.0, known.record.not_before - time.time()))
            before = known.record
            if before.attempt > 1:
                self._stop_children(before, "its parent was tried again")
            controller = import_ray().get_runtime_context().current_actor
            known.attempt = JobAttempt(before, known.call, controller)
            try:
                known.record = await self._attempt(known, known.attempt)
            except Exception as error:
                log.exception("attempt %d of %s failed in the controller", before.attempt, before.id)
                known.record = self._not_run(known.record, ExitKind.HOST_FAILED, error)
            finally:
                known.results = known.attempt.results
                known.attempt.close()
                known.attempt = None
                self._notify()
        known.call = ""
        self._stop_children(known.record, f"its parent {known.record.id} has {known.record.status}")

    async def _attempt(self, known: KnownJob, attempt: JobAttempt) -> JobRecord:
        """Run one attempt, and return the record after it, whether it succeeded or not."""
        try:
            async with asyncio.timeout(self._pending_seconds(known.record)):
                members = await attempt.place()
        except TimeoutError:
            waited = f"not started within its pending_timeout of {known.record.spec.pending_timeout:g} s"
            return stop_now(known.record, time.time(), waited, StopOrigin.EXPIRED)
        except (EnvironmentUnavailable, import_ray().exceptions.RayError) as error:
            failed = isinstance(error, EnvironmentUnavailable)
            return self._not_run(known.record, ExitKind.ENVIRONMENT_FAILED if failed else ExitKind.LOST, error)
        known.record = attempts.started(known.record, members, time.time())
        self._notify()
        exits = await attempt.run(known.record)
        return attempts.ended(known.record, exits, time.time())

    def _not_run(self, job: JobRecord, kind: str, error: Exception) -> JobRecord:
        end = AttemptExit(kind=kind, message=error_text(error))
        has_begun = job.status == Status.RUNNING
        begun = job if has_begun else attempts.started(job, attempts.nowhere(job.spec), time.time())
        left = ReplicaExit(agent="", host="", exit=end, ended_at=time.time())
        return attempts.ended(begun, dict.fromkeys(range(job.spec.replicas), left), time.time())

    def _pending_seconds(self, job: JobRecord) -> float | None:
        """Seconds that are left of the job's pending_timeout; None if it has none."""
        if job.spec.pending_timeout is None:
            return None
        return max(0.0, job.submitted_at + job.spec.pending_timeout - time.time())

    def _stop(self, known: KnownJob, reason: str, by: str) -> None:
        wished = request_stop(known.record, time.time(), reason, by)
        if wished is None:
            return
        known.record = wished
        if is_terminal(wished):
            if known.task is not None:
                known.task.cancel()
            self._stop_children(wished, f"its parent {wished.id} has {wished.status}")
        elif known.attempt is not None:
            known.attempt.stop(wished.spec.grace, ExitKind.STOPPED)
        self._notify()

    def _stop_children(self, parent: JobRecord, reason: str) -> None:
        for known in list(self._jobs.values()):
            link = known.record.parent
            if link is None or link.job != parent.id or link.detached:
                continue
            if is_terminal(parent) or link.attempt < parent.attempt:
                self._stop(known, reason, StopOrigin.PARENT)

    def _running_parent(self, job_id: str, attempt: int | None) -> JobRecord:
        known = self._jobs.get(job_id)
        status = known.record.status if known is not None else "unknown"
        if known is None or status != Status.RUNNING or attempt not in (None, known.record.attempt):
            remedy = "a child needs a running parent; without one, leave parent out"
            raise ParentNotRunning(f"the parent {job_id} is {status}; {remedy}")
        return known.record

    def _unfinished(self, spec: JobSpec) -> str | None:
        for job_id, known in self._jobs.items():
            same = (known.record.spec.namespace, known.record.spec.name) == (spec.namespace, spec.name)
            if same and not is_terminal(known.record):
                return job_id
        return None

    def _forget_old(self) -> None:
        ended = [job for job, known in self._jobs.items() if is_terminal(known.record)]
        now = time.time()
        for number, job in enumerate(ended):
            if len(ended) - number > MAX_FINISHED or now - (self._jobs[job].record.ended_at or now) > RETENTION:
                del self._jobs[job]

    def _notify(self) -> None:
        """Wake all calls that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()


def all_settled(found: dict[str, JobRecord], any_failure: bool) -> bool:
    """Whether all of these jobs have ended, or with `any_failure` one of them has ended without success."""
    ended = [is_terminal(job) for job in found.values()]
    failed = any(is_terminal(job) and job.status != Status.SUCCEEDED for job in found.values())
    return all(ended) or (any_failure and failed)


def controller() -> Any:
    """The handle of the controller on the Ray that this process is connected to. It is created if there is none."""
    ray = import_ray()
    at_head = {"node:__internal_head__": 0.001} if "node:__internal_head__" in ray.cluster_resources() else None
    made = ray.remote(JobController).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=at_head,
        max_concurrency=_CONCURRENT_CALLS,
    )
    return made.remote()
