"""One replica of a job on Ray: an actor on the node that Ray has chosen, which runs the task as Fray's agents do.

The task is a process tree with a runner of its own, so its exit, output, limits and signals work as in every Fray job.
Ray's worker process only watches it, and if that process dies, the runner ends the task.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fray.backends.ray.attempts import result_of
from fray.backends.ray.connection import AUTO, import_ray, task_variables
from fray_agents.environments.prepare import import_folders
from fray_agents.tasks.environment import job_variables, limits_of, task_environment
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.protocol.placements.launching import gang_port_names
from fray_layouts.records import AttemptExit, JobRecord, PlacementMember, ReplicaExit
from fray_layouts.states import ExitKind
from fray_runtime.network import NetworkSettings

_FOR_EVER = 10.0 * 365 * 86400
"""Seconds until the task's deadline: ten years, so there is none. The runner ends the task when this process dies."""

_SEAL_INTERVAL = 0.5
"""Seconds between two chunks of a task's output. Each chunk is a message to the controller."""


class ReplicaHost:
    """Runs one replica. It is a Ray actor with coroutine methods, and each attempt has a new one.

    Args:
        controller: the handle of the actor that gets the output.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._node: str = import_ray().get_runtime_context().get_node_id()
        self._held: list[socket.socket] = []
        self._task: TaskHandle | None = None
        self._stop: tuple[float, str] | None = None

    async def place(self, job: JobRecord, replica: int) -> PlacementMember:
        """This replica's place: its node and the ports that it holds for the gang."""
        address = self._address()
        ports = {name: self._hold(address) for name in gang_port_names(job.spec, [replica])}
        host = socket.gethostname()
        return PlacementMember(agent=self._node, host=host, address=address, bundles=[replica], ports=ports)

    async def run(
        self, job: JobRecord, replica: int, call: str, environment: Mapping[str, Any]
    ) -> tuple[ReplicaExit, bytes]:
        """Run the task until it ends. Returns how it ended, and the bytes of its result.

        Args:
            call: base64 of the callable's pickle; "" for a command.
            environment: this actor's `runtime_env`, which the programs that the task starts get too.
        """
        directory = Path(tempfile.mkdtemp(prefix=f"fray-{job.id}-{replica}-"))
        try:
            return await self._run(job, replica, call, environment, directory)
        except Exception as error:
            end = AttemptExit(kind=ExitKind.START_FAILED, message=f"the node could not start the task: {error}")
            return self._exit(job, replica, end), b""
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def stop(self, grace: float, why: str) -> None:
        """Ask the task to end: SIGTERM, then SIGKILL after `grace` seconds."""
        self._stop = grace, why
        if self._task is not None:
            self._task.stop(grace, why)

    async def _run(
        self, job: JobRecord, replica: int, call: str, environment: Mapping[str, Any], directory: Path
    ) -> tuple[ReplicaExit, bytes]:
        for held in self._held:  # the task is going to listen on these ports
            held.close()
        spec = self._task_spec(job, replica, call, environment, directory)
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + _FOR_EVER
        task = self._task = await ProcessTask.start(spec, deadline, None)
        if self._stop is not None:
            task.stop(*self._stop)
        async for _, chunk in task.chunks():
            data = await asyncio.to_thread(chunk.read_bytes)
            await self._controller.append_output.remote(job.id, job.attempt, replica, data)
            chunk.unlink()
        await task.wait()
        end = task.exit.result()
        data = b"" if end.result is None else await asyncio.to_thread(end.result.path.read_bytes)
        left = self._exit(job, replica, end.exit)
        if end.result is not None:
            left.result = result_of(end.result.encoding, end.result.size, f"ray/{job.id}/{replica}")
        return left, data

    def _exit(self, job: JobRecord, replica: int, end: AttemptExit) -> ReplicaExit:
        return ReplicaExit(agent=self._node, host=socket.gethostname(), exit=end, ended_at=time.time())

    def _task_spec(
        self, job: JobRecord, replica: int, call: str, environment: Mapping[str, Any], directory: Path
    ) -> TaskSpec:
        address = self._address()
        network = NetworkSettings(bind=address, advertise=address)
        variables = task_environment(job, AUTO, self._node, directory, network, {}, replica)
        gcs_address = import_ray().get_runtime_context().gcs_address
        workspace = job.spec.environment.workspace
        code = Path(os.getcwd()) if workspace is not None else None
        return TaskSpec(
            directory=directory,
            command=job.spec.entrypoint.command or None,
            callable_pickle=base64.b64decode(call) if call else None,
            env=task_variables(variables, gcs_address, json.dumps({"runtime_env": dict(environment)})),
            variables=job_variables(job),
            timeout=job.spec.timeout,
            grace=job.spec.grace,
            cwd=str(code / workspace.folder) if code is not None and workspace is not None else None,
            python=sys.executable,
            python_path=import_folders(code) if code is not None else (),
            limits=limits_of(job.spec.resources),
            seal_interval=_SEAL_INTERVAL,
        )

    def _address(self) -> str:
        """The address at which the other nodes reach this one, as Ray uses it."""
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in import_ray().nodes()}
        return str(nodes[self._node])

    def _hold(self, address: str) -> int:
        """Bind a free port of this node, hold it until the task starts, and return its number."""
        held = socket.socket()
        held.bind((address, 0))
        self._held.append(held)
        number: int = held.getsockname()[1]
        return number
