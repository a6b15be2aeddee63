"""A fake of Cloud Run: jobs with their executions, and worker pools; containers may be processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.cloud import run_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2

from tests.support.fake_google import FakeRefusalError, GoogleFaults, Handler, serve_google

NO_STOP: Callable[[], None] = lambda: None  # noqa: E731


@dataclass
class FakeCloudRun:
    """The API of one project.

    Attributes: boot: starts the agents of an execution or a worker pool with arguments of `fray`; returns a function
        that ends them.
    """

    boot: Callable[[list[str]], Callable[[], None]] = lambda arguments: NO_STOP
    jobs: dict[str, run_v2.Job] = field(default_factory=dict)
    executions: dict[str, run_v2.Execution] = field(default_factory=dict)
    worker_pools: dict[str, run_v2.WorkerPool] = field(default_factory=dict)
    running: dict[str, Callable[[], None]] = field(default_factory=dict)
    faults: GoogleFaults = field(default_factory=GoogleFaults)
    made: int = 0

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve the API; yield host and port for `RUN_EMULATOR_HOST`."""
        jobs: dict[str, tuple[Any, Handler]] = {
            "GetJob": (run_v2.GetJobRequest, lambda call: _there(self.jobs, call.name)),
            "UpdateJob": (run_v2.UpdateJobRequest, self._update_job),
            "RunJob": (run_v2.RunJobRequest, self._run_job),
        }
        executions: dict[str, tuple[Any, Handler]] = {
            "ListExecutions": (run_v2.ListExecutionsRequest, self._list_executions),
            "CancelExecution": (run_v2.CancelExecutionRequest, self._cancel),
            "DeleteExecution": (run_v2.DeleteExecutionRequest, self._delete_execution),
        }
        worker_pools: dict[str, tuple[Any, Handler]] = {
            "ListWorkerPools": (run_v2.ListWorkerPoolsRequest, self._list_worker_pools),
            "CreateWorkerPool": (run_v2.CreateWorkerPoolRequest, self._create_worker_pool),
            "DeleteWorkerPool": (run_v2.DeleteWorkerPoolRequest, self._delete_worker_pool),
        }
        prefix = "google.cloud.run.v2"
        services = {
            f"{prefix}.Jobs": jobs,
            f"{prefix}.Executions": executions,
            f"{prefix}.WorkerPools": worker_pools,
        }
        try:
            with serve_google(services, self.faults) as address:
                yield address
        finally:
            for stop in self.running.values():
                stop()

    def finish(self, name: str, failed: str = "") -> None:
        """Let the agents of an execution end by themselves, or fail."""
        execution = self.executions[name]
        execution.completion_time = datetime.now(UTC)
        execution.running_count = 0
        if failed:
            execution.failed_count = execution.task_count
            execution.conditions = [run_v2.Condition(type_="Completed", message=failed)]
        else:
            execution.succeeded_count = execution.task_count

    def _update_job(self, call: run_v2.UpdateJobRequest) -> operations_pb2.Operation:
        if call.job.name not in self.jobs and not call.allow_missing:
            raise FakeRefusalError(code_pb2.NOT_FOUND, f"Resource '{call.job.name}' was not found")
        if not call.validate_only:
            self.jobs[call.job.name] = call.job
        return _done(call.job)

    def _run_job(self, call: run_v2.RunJobRequest) -> operations_pb2.Operation:
        job = _there(self.jobs, call.name)
        self.made += 1
        execution = run_v2.Execution(
            name=f"{call.name}/executions/{call.name.rpartition('/')[2]}-x{self.made}",
            job=call.name,
            create_time=datetime.fromtimestamp(self.made, UTC),
            task_count=call.overrides.task_count or job.template.task_count,
            template=job.template.template,
            labels=job.template.labels,
        )
        arguments = [*call.overrides.container_overrides[0].args]
        execution.template.containers[0].args = arguments
        execution.running_count = execution.task_count
        self.executions[execution.name] = execution
        self.running[execution.name] = self.boot(arguments)
        return operations_pb2.Operation(name=f"operations/run-{self.made}")

    def _list_executions(self, call: run_v2.ListExecutionsRequest) -> run_v2.ListExecutionsResponse:
        found = [made for made in self.executions.values() if made.job == call.parent]
        return run_v2.ListExecutionsResponse(executions=found)

    def _cancel(self, call: run_v2.CancelExecutionRequest) -> operations_pb2.Operation:
        execution = _there(self.executions, call.name)
        self.running.pop(call.name, NO_STOP)()
        execution.completion_time = datetime.now(UTC)
        execution.running_count, execution.cancelled_count = 0, execution.task_count
        return _done(execution)

    def _delete_execution(self, call: run_v2.DeleteExecutionRequest) -> operations_pb2.Operation:
        execution = _there(self.executions, call.name)
        del self.executions[call.name]
        return _done(execution)

    def _list_worker_pools(self, call: run_v2.ListWorkerPoolsRequest) -> run_v2.ListWorkerPoolsResponse:
        found = [made for name, made in self.worker_pools.items() if name.startswith(f"{call.parent}/")]
        return run_v2.ListWorkerPoolsResponse(worker_pools=found)

    def _create_worker_pool(self, call: run_v2.CreateWorkerPoolRequest) -> operations_pb2.Operation:
        name = f"{call.parent}/workerPools/{call.worker_pool_id}"
        if name in self.worker_pools:
            raise FakeRefusalError(code_pb2.ALREADY_EXISTS, f"Resource '{name}' already exists")
        made = call.worker_pool
        made.name = name
        self.worker_pools[name] = made
        self.running[name] = self.boot([*made.template.containers[0].args])
        return _done(made)

    def _delete_worker_pool(self, call: run_v2.DeleteWorkerPoolRequest) -> operations_pb2.Operation:
        made = _there(self.worker_pools, call.name)
        self.running.pop(call.name, NO_STOP)()
        del self.worker_pools[call.name]
        return _done(made)


def _there(made: dict[str, Any], name: str) -> Any:
    if name not in made:
        raise FakeRefusalError(code_pb2.NOT_FOUND, f"Resource '{name}' was not found")
    return made[name]


def _done(message: Any) -> operations_pb2.Operation:
    packed = any_pb2.Any()
    packed.Pack(type(message).pb(message))
    return operations_pb2.Operation(name="operations/done", done=True, response=packed)
