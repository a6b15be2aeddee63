"""The provider `cloud_run`: a job for each pool, whose executions are machines, and worker pools for lasting machines.

The first `min` machines of a pool are worker pools, of one machine each. The others are executions, which end by
themselves when their agents are idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud import run_v2
from google.cloud.run_v2.services.executions.transports import ExecutionsGrpcAsyncIOTransport
from google.cloud.run_v2.services.jobs.transports import JobsGrpcAsyncIOTransport
from google.cloud.run_v2.services.worker_pools.transports import WorkerPoolsGrpcAsyncIOTransport

from fray_agents.provisioning import identity
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.cloud_run_resources import (
    TEMPLATE_LABEL,
    Made,
    job_of_pool,
    listed_executions,
    listed_worker_pools,
    run_of_machine,
    worker_pool_of_machine,
)
from fray_agents.provisioning.providers.google_calls import (
    ATTEMPT_TIMEOUT,
    SCOPE,
    TOTAL_TIMEOUT,
    GoogleAccess,
    GoogleCalls,
    find_access,
    missing_rights,
)
from fray_coordinator.protocol.scaling.view import ListedMachine
from fray_layouts.records import ProvisioningSpec

T = TypeVar("T")

EMULATOR_VARIABLE = "RUN_EMULATOR_HOST"
"""Variable with the host and port to call instead of Google."""

JOB = "job"
"""The machine's part in the name of a pool's job; names of machines begin with another letter."""

PERMISSIONS = (
    "run.jobs.create",
    "run.jobs.update",
    "run.jobs.run",
    "run.jobs.runWithOverrides",
    "run.executions.cancel",
    "run.executions.delete",
)
"""Permissions that the scaler's account needs besides listing, which `check` tries out."""


async def open_cloud_run(cluster: str, pool: str, spec: ProvisioningSpec) -> CloudRunProvider:
    """The provider of a pool. Raises ProviderError: there are no credentials, or no project."""
    project = spec.cloud_run.project if spec.cloud_run else ""
    return CloudRunProvider(await find_access(project, EMULATOR_VARIABLE), cluster, pool, spec)


class CloudRunProvider:
    """Creates and removes containers that run agents, over one gRPC channel."""

    def __init__(self, access: GoogleAccess, cluster: str, pool: str, spec: ProvisioningSpec) -> None:
        self._calls = GoogleCalls(access)
        self._cluster = cluster
        self._pool = pool
        self._spec = spec
        self._channel = channel = _channel(access)
        self._jobs = run_v2.JobsAsyncClient(transport=JobsGrpcAsyncIOTransport(channel=channel))
        self._executions = run_v2.ExecutionsAsyncClient(transport=ExecutionsGrpcAsyncIOTransport(channel=channel))
        self._worker_pools = run_v2.WorkerPoolsAsyncClient(transport=WorkerPoolsGrpcAsyncIOTransport(channel=channel))

    async def list(self) -> Sequence[ListedMachine]:
        """All machines of the pool; makes two calls for each region."""
        regions = await asyncio.gather(*(self._list_region(region) for region in self._spec.zones))
        return [machine for found in regions for machine, _ in found]

    async def create(self, request: MachineRequest) -> str:
        found = [pair for region in {*self._spec.zones, request.zone} for pair in await self._list_region(region)]
        names = {machine.name for machine, _ in found}
        floor = sum(isinstance(made, run_v2.WorkerPool) for _, made in found)
        made: list[str] = []
        operation = ""
        try:
            for name in (name for name in request.names if name not in names):
                start = self._start_worker_pool if floor + len(made) < self._spec.min else self._start_execution
                operation = await start(name, request)
                made.append(name)
        except ProviderError:
            for name in made:  # a request succeeds as a whole or not at all
                await self.delete(name, request.zone)
            raise
        return operation

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        for machine, made in await self._list_region(zone):
            if machine.name == name:
                await self._remove(made)

    async def check(self) -> Sequence[ProviderError]:
        unfit = await asyncio.gather(*(self._region_problem(region) for region in self._spec.zones))
        return [
            *(error for error in unfit if error is not None),
            *await missing_rights(self._calls.access, PERMISSIONS),
        ]

    async def close(self) -> None:
        await self._channel.close()

    async def _region_problem(self, region: str) -> ProviderError | None:
        """Why nothing can be created in a region; None if Cloud Run would accept the pool's job there."""
        request = MachineRequest(self._pool, ("check",), region, self._spec, "gs://check", labels=self._spec.labels)
        try:
            job = job_of_pool(self._job(region), self._cluster, request)
            call = run_v2.UpdateJobRequest(job=job, allow_missing=True, validate_only=True)
            await self._list_region(region)
            await self._calls.repeat(lambda: self._jobs.update_job(call, **_ONCE))
        except ProviderError as error:
            return error
        return None

    async def _list_region(self, region: str) -> Sequence[tuple[ListedMachine, Made]]:
        """The machines of a region, each with its execution or worker pool."""
        of_job = run_v2.ListExecutionsRequest(parent=self._job(region))
        of_region = run_v2.ListWorkerPoolsRequest(parent=self._location(region))
        executions, worker_pools = await asyncio.gather(
            self._list_all(lambda: self._executions.list_executions(of_job, **_ONCE)),
            self._list_all(lambda: self._worker_pools.list_worker_pools(of_region, **_ONCE)),
        )
        mine = [made for made in worker_pools if identity.is_of_pool(made.labels, self._cluster, self._pool)]
        return [
            *listed_worker_pools(self._pool, region, mine),
            *listed_executions(self._pool, region, executions),
        ]

    async def _list_all(self, ask: Callable[[], Awaitable[AsyncIterable[T]]]) -> Sequence[T]:
        async def attempt() -> Sequence[T]:
            return [made async for made in await ask()]

        return await self._calls.repeat_unless(NotFound, attempt) or []

    async def _start_execution(self, name: str, request: MachineRequest) -> str:
        """Run the pool's job once. It is not repeated, as that might run it twice; the next list shows the outcome."""
        await self._write_job(request)
        call = run_of_machine(self._job(request.zone), name, request)
        operation = await self._calls.once(lambda: self._jobs.run_job(call, **_ONCE))
        return str(operation.operation.name)

    async def _start_worker_pool(self, name: str, request: MachineRequest) -> str:
        call = run_v2.CreateWorkerPoolRequest(
            parent=self._location(request.zone),
            worker_pool_id=self._id(name),
            worker_pool=worker_pool_of_machine(self._cluster, name, request),
        )
        operation = await self._calls.repeat_unless(
            AlreadyExists, lambda: self._worker_pools.create_worker_pool(call, **_ONCE)
        )
        return str(operation.operation.name) if operation else ""

    async def _write_job(self, request: MachineRequest) -> None:
        """Write the pool's job, unless it already has the pool's current settings."""
        wanted = job_of_pool(self._job(request.zone), self._cluster, request)
        find = run_v2.GetJobRequest(name=wanted.name)
        found = await self._calls.repeat_unless(NotFound, lambda: self._jobs.get_job(find, **_ONCE))
        if found and found.labels.get(TEMPLATE_LABEL) == wanted.labels[TEMPLATE_LABEL]:
            return
        call = run_v2.UpdateJobRequest(job=wanted, allow_missing=True)
        operation: Any = await self._calls.repeat(lambda: self._jobs.update_job(call, **_ONCE))
        try:
            await self._calls.once(lambda: operation.result(timeout=TOTAL_TIMEOUT))
        except TimeoutError as error:
            raise ProviderError("unavailable", f"Cloud Run has not written job {wanted.name} yet") from error

    async def _remove(self, made: Made) -> None:
        """Remove a machine. A running execution is cancelled; an ended one is deleted, or it is listed for days."""
        if isinstance(made, run_v2.WorkerPool):
            pool = run_v2.DeleteWorkerPoolRequest(name=made.name)
            await self._calls.repeat_unless(NotFound, lambda: self._worker_pools.delete_worker_pool(pool, **_ONCE))
        elif made.completion_time:
            ended = run_v2.DeleteExecutionRequest(name=made.name)
            await self._calls.repeat_unless(NotFound, lambda: self._executions.delete_execution(ended, **_ONCE))
        else:
            running = run_v2.CancelExecutionRequest(name=made.name)
            await self._calls.repeat_unless(NotFound, lambda: self._executions.cancel_execution(running, **_ONCE))

    def _location(self, region: str) -> str:
        return f"projects/{self._calls.access.project}/locations/{region}"

    def _job(self, region: str) -> str:
        return f"{self._location(region)}/jobs/{self._id(JOB)}"

    def _id(self, machine: str) -> str:
        return identity.provider_name(self._cluster, self._pool, machine)


_ONCE: dict[str, Any] = {"retry": None, "timeout": ATTEMPT_TIMEOUT}
"""Options of all calls: the library must not repeat them, because `GoogleCalls` does."""


def _channel(access: GoogleAccess) -> grpc.aio.Channel:
    if access.emulator:
        return grpc.aio.insecure_channel(access.emulator)
    return JobsGrpcAsyncIOTransport.create_channel(
        "run.googleapis.com:443", credentials=access.credentials, scopes=[SCOPE]
    )
