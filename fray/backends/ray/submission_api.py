"""`RayCluster`: jobs on a Ray from outside of it, through Ray's job submission API.

It needs only the HTTP port of Ray's dashboard. It submits a small driver (`fray.backends.ray.submitted`), which
launches the job inside of Ray, prints its output, and exits with its status. The folder of code that the job brings
becomes Ray's own package of a working directory.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fray.backends.ray.connection import import_ray
from fray.backends.ray.demands import checked_spec
from fray.backends.without_storage import ClusterWithoutStorage
from fray.call_forms import says_form
from fray.cluster.arguments import LAUNCH, checked_id, checked_request
from fray.errors import JobNotFound, NoResult, Temporary
from fray.items import Items, LoopItems
from fray.types import JobId, JobInfo, JobRequest, JobStatus, Namespace
from fray.workspace.choice import start_folder, workspace_choice
from fray_coordinator.clock import system_random
from fray_coordinator.jobs.logs import LogLine
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import AttemptExit, ResourceUsage
from fray_layouts.spec import JobSpec, WorkspaceSpec
from fray_layouts.spec_parsing import check_namespace
from fray_layouts.states import ExitKind
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable


def with_workspace(spec: JobSpec, request: JobRequest, in_job: bool) -> JobSpec:
    """Upload the workspace that the request asks for, and return the spec with its package.

    Args:
        in_job: whether this code runs in a job. Children have their parent's code and packages, or name a folder.

    Raises:
        InvalidInput: the request requires a project, and there is none.
    """
    choice = workspace_choice(request)
    if choice is None or (in_job and choice.folder is None) or (folder := choice.find()) is None:
        return spec
    workspace = WorkspaceSpec(blob=_uploaded(folder), folder=start_folder(folder, choice))
    return replace(spec, environment=replace(spec.environment, workspace=workspace))


def workspace_folder(request: JobRequest) -> Path | None:
    """The folder of code that a request outside of jobs brings. Raises InvalidInput like `with_workspace`."""
    choice = workspace_choice(request)
    return choice.find() if choice is not None else None


def _uploaded(folder: Path) -> str:
    """Upload a folder as a package, without what .gitignore names, and return the package's URI."""
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    made: dict[str, str] = upload_working_dir_if_needed({"working_dir": str(folder)}, include_gitignore=True)
    return made["working_dir"]


MODULE, SPEC_FILE = "fray_submitted", "spec.json"
"""The package that brings a job's spec to its driver, and the spec's file in it."""

_ENTRYPOINT = "python -m fray.backends.ray.submitted"
"""A shell command, as Ray expects. By its convention `python` on its nodes has Ray, and so Fray, installed."""

_POLL_INTERVAL = 1.0
"""Seconds between two polls of a job. Each is a request to Ray's dashboard."""

_NO_AGENT = "No available agent"
"""The dashboard's error after it has waited ten seconds for an agent of the head node that accepts jobs."""

_SUBMISSIONS = 6
"""Tries to submit a job while there is no such agent: a minute in all, which the agent may take on a busy host."""

_ERROR_CHARACTERS = 4_000
"""Characters of a failed job's last output that its error includes: enough for some tracebacks."""


class RayCluster(ClusterWithoutStorage):
    """A cluster whose jobs run on Ray, through Ray's job submission API. It pickles as its address and namespace.

        cluster = RayCluster("http://head:8265")
        job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train)))
        cluster.monitor(job)

    Programs that run on the Ray itself use `RayClient`, which also returns results and creates actors.

    Args:
        address: address of Ray's dashboard; None: RAY_API_SERVER_ADDRESS, else the Ray of this machine.
        namespace: the scope of names of what the jobs launch; by default FRAY_NAMESPACE, else each job has its own.

    Raises:
        InvalidInput: `namespace` is not a valid namespace, Ray is not installed, or no dashboard answers.
        Temporary: (of `launch`) Ray's head node does not accept jobs yet.
    """

    _scheduler = "Ray"

    def __init__(self, address: str | None = None, namespace: str | None = None) -> None:
        self._namespace = namespace or read_variable("FRAY_NAMESPACE", task_environ()) or ""
        check_namespace(self._namespace or "default")
        self.root = f"ray:{address or 'http'}"
        self._address = address
        self._client = _submission_client(address)

    @property
    def namespace(self) -> Namespace:
        return Namespace(self._namespace)

    @says_form(LAUNCH)
    def launch(self, request: JobRequest) -> JobId:
        spec = checked_spec(checked_request(request), connected=False)
        job_id = JobIds.fresh(spec.name, time.time(), system_random().token())
        environment: dict[str, Any] = {"env_vars": {"FRAY_NAMESPACE": spec.namespace or self._namespace or job_id}}
        if folder := workspace_folder(request):
            environment["working_dir"] = str(folder)
        if spec.environment.pip_packages:
            environment["pip"] = list(spec.environment.pip_packages)
        with tempfile.TemporaryDirectory(prefix="fray-") as parent:
            package = Path(parent, MODULE)
            package.mkdir()
            (package / "__init__.py").touch()
            (package / SPEC_FILE).write_bytes(msgspec.json.encode(spec))
            environment["py_modules"] = [str(package)]
            metadata = {"fray.name": spec.name, "fray.replicas": str(spec.replicas)}
            self._submit(submission_id=job_id, runtime_env=environment, metadata=metadata)
        return JobId(job_id, self.poll)

    def poll(self, job_id: str) -> JobInfo:
        return self._info(self._details(checked_id(job_id)))

    def list_jobs(self) -> list[JobInfo]:
        known = [one for one in self._client.list_jobs() if "fray.name" in (one.metadata or {})]
        return [self._info(one) for one in sorted(known, key=lambda one: one.start_time or 0)]

    def terminate(self, job_id: str) -> None:
        self._details(checked_id(job_id))
        self._client.stop_job(job_id)

    def logs(self, job_id: str, follow: bool = False, replica: int | None = None) -> Items[LogLine]:
        """The lines that the job has printed. Lines of a gang do not have the numbers of their replicas."""
        if replica is not None:
            raise InvalidInput("replica", replica, "Ray's job submission merges the output of replicas; leave it out")
        job = checked_id(job_id)
        self._details(job)
        return LoopItems(self._lines(job, follow))

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        self.wait(checked_id(job_id), raise_on_failure=True, timeout=timeout)
        remedy = "Ray's job submission does not return results; launch the job with RayClient, inside of Ray"
        raise NoResult(f"job {job_id} has no result here; {remedy}")

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        return [self.result(job_id, timeout)]

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        return await asyncio.to_thread(self.result, job_id, timeout)

    def usage(self, job_id: str) -> ResourceUsage | None:
        self._details(checked_id(job_id))
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayCluster, (self._address, self._namespace or None)

    def __repr__(self) -> str:
        return f"RayCluster({self._address!r})"

    def _check(self, request: JobRequest) -> None:
        checked_spec(request, connected=False)

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        return self._poll_until_ended(ids, raise_on_failure, timeout, itertools.repeat(_POLL_INTERVAL))

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        return await asyncio.to_thread(self._wait, ids, raise_on_failure, timeout)

    def _submit(self, **job: Any) -> None:
        for _ in range(_SUBMISSIONS):
            try:
                self._client.submit_job(entrypoint=_ENTRYPOINT, **job)
            except RuntimeError as error:
                if _NO_AGENT not in str(error):
                    raise
            else:
                return
        remedy = "see dashboard_agent.log there; several nodes on one host need --dashboard-agent-listen-port=0"
        raise Temporary(f"no agent of Ray's head node at {self._client.get_address()} accepts jobs; {remedy}")

    def _details(self, job_id: str) -> Any:
        try:
            return self._client.get_job_info(job_id)
        except RuntimeError as error:
            raise JobNotFound(f"this Ray has no job {job_id}: {error}") from error

    def _info(self, details: Any) -> JobInfo:
        job_id = details.submission_id
        status = JobStatus(str(details.status).lower())
        return JobInfo(
            job_id=JobId(job_id, self.poll),
            name=details.metadata.get("fray.name", job_id),
            status=status,
            error_message=details.message if status.finished() and status is not JobStatus.SUCCEEDED else None,
            exit=self._exit(job_id, details.message) if status is JobStatus.FAILED else None,
            start_time=_seconds(details.start_time),
            end_time=_seconds(details.end_time),
            namespace=Namespace((details.runtime_env or {}).get("env_vars", {}).get("FRAY_NAMESPACE", "")),
            replicas=int(details.metadata.get("fray.replicas", "1")),
        )

    def _exit(self, job_id: str, message: str | None) -> AttemptExit:
        last_output = self._client.get_job_logs(job_id)[-_ERROR_CHARACTERS:]
        return AttemptExit(kind=ExitKind.EXITED, message=message or "", traceback=last_output)

    async def _lines(self, job_id: str, follow: bool) -> AsyncGenerator[Sequence[LogLine], None]:
        done = 0  # characters of the output that were returned as lines
        while True:
            ended = not follow or (await asyncio.to_thread(self.poll, job_id)).status.finished()
            text: str = (await asyncio.to_thread(self._client.get_job_logs, job_id))[done:]
            whole = len(text) if ended else text.rfind("\n") + 1
            done += whole
            yield [LogLine(1, 0, "", "stdout", line.encode(), True) for line in text[:whole].splitlines()]
            if ended:
                return
            await asyncio.sleep(_POLL_INTERVAL)


def _submission_client(address: str | None) -> Any:
    import_ray(f"ray:{address or 'http'}")
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        remedy = f"no Ray dashboard answers there ({error}); give its address, such as http://head:8265"
        raise InvalidInput("address", address, remedy) from error


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None
