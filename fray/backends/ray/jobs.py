"""`RayJobs`: the jobs of the Ray that this process is connected to, as a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fray.backends.ray.connection import AUTO, asked_inside, connected, works_on_ray
from fray.backends.ray.controller import all_settled, controller
from fray.backends.ray.demands import checked_spec, warn_if_too_large, without_call
from fray.backends.ray.submission_api import with_workspace
from fray.backends.without_storage import ClusterWithoutStorage
from fray.call_forms import says_form
from fray.cluster.arguments import LAUNCH, checked_id, checked_request
from fray.cluster.current_job import current_job_on, made_up_namespace
from fray.cluster.job_info import decode_result, info_of, no_result, waited_infos
from fray.cluster.launching import as_children
from fray.errors import FrayError, JobNotFound, NoResult
from fray.items import Items, LoopItems
from fray.types import JobId, JobInfo, JobRequest, JobStatus, Namespace
from fray_coordinator.jobs.logs import LogLine
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.errors import InvalidInput
from fray_layouts.records import JobRecord, JobResult, ResourceUsage
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import check_namespace
from fray_layouts.units import first_names
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable

_LONG_POLL_SECONDS = 10.0
"""Seconds that one waiting request to the controller lasts at most. An interrupt takes effect within that time."""


class RayJobs(ClusterWithoutStorage):
    """A cluster whose jobs run on Ray. The first call connects to it. It pickles as its root and namespace.

    Args:
        root: "ray:auto", "ray:host:6379" or "ray://host:10001"; see `fray.backends.ray.connection`. A process that is
            already connected to a Ray uses that one.
        namespace: the scope of names of the jobs that are launched here; for the default see `Cluster.namespace`.

    Raises:
        InvalidInput: `namespace` is not a valid namespace.
    """

    _scheduler = "Ray"

    def __init__(self, root: str = AUTO, namespace: str | None = None) -> None:
        self.root = AUTO if works_on_ray() else root
        self._namespace = namespace
        self._own_namespace = read_variable("FRAY_NAMESPACE", task_environ()) or made_up_namespace()
        check_namespace(namespace or self._own_namespace)
        self._controller: tuple[str, Any] = ("", None)

    @property
    def namespace(self) -> Namespace:
        mine = current_job_on(self.root)
        return Namespace(self._namespace or (mine.namespace if mine else self._own_namespace))

    @property
    def gcs_address(self) -> str:
        """The address of this Ray's head, in the form of RAY_ADDRESS."""
        address: str = connected(self.root).get_runtime_context().gcs_address
        return address

    @says_form(LAUNCH)
    def launch(self, request: JobRequest) -> JobId:
        return self._submit(checked_request(request), by_name=False)[0]

    def launch_spec(self, spec: JobSpec) -> JobId:
        """Launch a job from a checked spec."""
        return self._submit_spec(spec, by_name=False)[0]

    def submit_named(self, request: JobRequest) -> tuple[JobId, bool]:
        """Launch a job, or find the unfinished one that has its name. Returns its id, and whether it was found."""
        return self._submit(checked_request(request), by_name=request.id is None)

    def poll(self, job_id: str) -> JobInfo:
        return info_of(self.root, self._record(checked_id(job_id)))

    def logs(self, job_id: str, follow: bool = False, replica: int | None = None) -> Items[LogLine]:
        job = checked_id(job_id)
        record = self._record(job)
        if replica is not None and not 0 <= replica < record.spec.replicas:
            raise InvalidInput("replica", replica, f"{job} has replicas 0 to {record.spec.replicas - 1}")
        return LoopItems(self._followed(job, replica) if follow else self._lines_so_far(job, replica))

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        return self._values(checked_id(job_id), timeout, first_only=True)[0]

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        return self._values(checked_id(job_id), timeout, first_only=False)

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        await self.wait_async(checked_id(job_id), raise_on_failure=True, timeout=timeout)
        return await asyncio.to_thread(self.result, job_id)

    def usage(self, job_id: str) -> ResourceUsage | None:
        record = self._record(checked_id(job_id))
        return record.exit.usage if record.exit is not None else None

    def terminate(self, job_id: str) -> None:
        if not self._ask("stop", checked_id(job_id), "terminated by a program"):
            raise _not_found(job_id)

    def list_jobs(self) -> list[JobInfo]:
        return [info_of(self.root, job) for job in self._ask("records").values()]

    def available_slices(self, tpu_type: str, job: str = "") -> int:
        """The number of whole TPU slices of a type that a job has or could have at once."""
        from fray.backends.ray.attempt_run import free_slices

        connected(self.root)
        own = self._record(job).spec.slices if job and self.poll(job).status is JobStatus.RUNNING else 0
        return own + len(asked_inside(free_slices, tpu_type))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.root, self._namespace, self._own_namespace)

    def __repr__(self) -> str:
        return f"RayJobs({self.root!r})"

    # --- requests to the controller

    def _check(self, request: JobRequest) -> None:
        connected(self.root)
        checked_spec(request)

    def _submit(self, request: JobRequest, by_name: bool) -> tuple[JobId, bool]:
        connected(self.root)
        in_job = current_job_on(self.root) is not None
        return self._submit_spec(with_workspace(checked_spec(request), request, in_job), by_name)

    def _submit_spec(self, spec: JobSpec, by_name: bool) -> tuple[JobId, bool]:
        mine = current_job_on(self.root)
        (spec,) = as_children([spec], mine, self.namespace)
        bare, call = without_call(spec)
        attempt = mine.attempt if mine is not None and spec.parent == mine.job_id else None
        job, found = self._ask("submit", bare, call, attempt, by_name)
        return JobId(job, self.poll), found

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        deadline = None if timeout is None else time.monotonic() + timeout
        warned: set[str] = set()
        while not _settled(
            found := self._ask("wait", ids, raise_on_failure, _request_seconds(deadline)), ids, raise_on_failure
        ):
            _warn_of_waiting(found, warned)
            _check_time(deadline, found, timeout)
        return waited_infos(self.root, ids, found, raise_on_failure)

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        deadline = None if timeout is None else time.monotonic() + timeout
        warned: set[str] = set()
        while True:
            found = await self._ask_async("wait", ids, raise_on_failure, _request_seconds(deadline))
            if _settled(found, ids, raise_on_failure):
                return waited_infos(self.root, ids, found, raise_on_failure)
            await asyncio.to_thread(_warn_of_waiting, found, warned)
            _check_time(deadline, found, timeout)

    def _values(self, job_id: str, timeout: float | None, first_only: bool) -> list[Any]:
        self.wait(job_id, raise_on_failure=True, timeout=timeout)
        left: list[tuple[JobResult | None, Any]] = self._ask("results", job_id)
        return [self._value(job_id, *one) for one in (left[:1] if first_only else left)]

    def _value(self, job_id: str, result: JobResult | None, data: Any) -> Any:
        if result is None:
            raise no_result(f"job {job_id}")
        ray = connected(self.root)
        try:
            return decode_result(result, ray.get(data))
        except ray.exceptions.RayError as error:
            raise NoResult(f"the result of {job_id} is gone with the node that had it: {error}") from error

    def _record(self, job_id: str) -> JobRecord:
        record: JobRecord | None = self._ask("records", [job_id]).get(job_id)
        if record is None:
            raise _not_found(job_id)
        return record

    def _ask(self, method: str, *args: Any) -> Any:
        ray = connected(self.root)
        try:
            return ray.get(getattr(self._handle(ray), method).remote(*args))
        except ray.exceptions.RayTaskError as error:
            raise _own(error) from None

    async def _ask_async(self, method: str, *args: Any) -> Any:
        ray = connected(self.root)
        try:
            asked = getattr(self._handle(ray), method).remote(*args).future()
            return await asyncio.wrap_future(asked)
        except ray.exceptions.RayTaskError as error:
            raise _own(error) from None

    def _handle(self, ray: Any) -> Any:
        session = ray.get_runtime_context().get_job_id()
        if self._controller[0] != session:
            self._controller = session, controller()
        return self._controller[1]

    async def _followed(self, job_id: str, replica: int | None) -> AsyncGenerator[Sequence[LogLine], None]:
        after = 0
        while True:
            output = await self._ask_async("output", job_id, after, _LONG_POLL_SECONDS)
            if output is None:
                raise _not_found(job_id)
            yield [line for line in output.lines if replica in (None, line.replica)]
            after = output.next
            if output.over:
                return

    async def _lines_so_far(self, job_id: str, replica: int | None) -> AsyncGenerator[Sequence[LogLine], None]:
        output = await self._ask_async("output", job_id, 0, 0.0)
        lines = output.lines if output is not None else []
        last = max((line.attempt for line in lines), default=0)
        yield [line for line in lines if line.attempt == last and replica in (None, line.replica)]


def _opened(root: str, namespace: str | None, own_namespace: str) -> RayJobs:
    made = RayJobs(root, namespace)
    made._own_namespace = own_namespace
    return made


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"this Ray has no job {job_id}; jobs are kept for a day after their end")


def _own(error: Any) -> BaseException:
    """The Fray error that the controller raised, without Ray's wrapper; any other error unchanged."""
    return error.cause if isinstance(error.cause, FrayError) else error


def _settled(found: dict[str, JobRecord], ids: Sequence[str], any_failure: bool) -> bool:
    """Whether the wait for these jobs is over. Raises JobNotFound if one of them does not exist."""
    for job in ids:
        if job not in found:
            raise _not_found(job)
    return all_settled(found, any_failure)


def _warn_of_waiting(found: dict[str, JobRecord], warned: set[str]) -> None:
    """Warn, once per job, of jobs that wait although no node could ever have room for them."""
    for job in found.values():
        if job.status in (Status.PENDING, Status.GATHERING) and job.id not in warned:
            warned.add(job.id)
            warn_if_too_large(f"job {job.id}", job.spec.resources)


def _request_seconds(deadline: float | None) -> float:
    """How long the next waiting request may last."""
    return _LONG_POLL_SECONDS if deadline is None else max(0.0, min(_LONG_POLL_SECONDS, deadline - time.monotonic()))


def _check_time(deadline: float | None, found: dict[str, JobRecord], timeout: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        left = sorted(job.id for job in found.values() if not is_terminal(job))
        raise TimeoutError(
            f"{len(left)} of {len(found)} jobs have not ended after {timeout:g} s: {first_names(left, 3)}"
        )
