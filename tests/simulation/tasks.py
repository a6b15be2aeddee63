"""Tasks without processes, which belong to the host and model only the promises of the agent's runner.

A task ends by itself, or is killed when its agent's process ends (end-of-file on the pipe), when its last deadline
passes (also while the agent is frozen), or when its agent asks for that. The first cause counts.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fray_agents.tasks.output_files import FoundFile, FoundOutputs
from fray_agents.tasks.task_handle import ResultFile, TaskExit, TaskSpec
from fray_layouts.records import AttemptExit, ResourceUsage
from fray_runtime.current_task import CHILDREN_MARKER
from tests.simulation.disk import DiskPath
from tests.simulation.effects import Run
from tests.simulation.work import Script, script

if TYPE_CHECKING:
    from tests.simulation.host import Host

PIPE_DELAY = 0.003
"""Seconds from a task's end until its agent can know of it."""


class Chunks:
    """The log chunks of a task, once it has ended."""

    def __init__(self, task: HostTask) -> None:
        self._task = task
        self._number = 0

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> tuple[int, DiskPath]:
        await asyncio.shield(self._task.exit)
        if self._number == self._task.script.chunks:
            raise StopAsyncIteration
        self._number += 1
        path = self._task.directory / f"log-{self._number}"
        path.write_bytes(f"{self._task.run.job} {self._task.run.attempt} {self._number}".encode())
        return self._number, path


class HostTask:
    """A `TaskHandle`."""

    def __init__(self, host: Host, spec: TaskSpec, deadline: float) -> None:
        env = spec.env
        self.run = Run(
            env["FRAY_JOB_ID"],
            int(env["FRAY_ATTEMPT"]),
            env["FRAY_AGENT_ID"],
            host.name,
            host.world.loop.now,
            replica=int(env["FRAY_REPLICA"]),
            replicas=int(env.get("FRAY_REPLICAS", "1")),
        )
        self.script = self.script_of(host.world.seed, env)
        self.usage = ResourceUsage()
        self.unkilled: list[int] = []
        self.exit: asyncio.Future[TaskExit] = host.world.loop.create_future()
        self.directory: DiskPath = spec.directory  # type: ignore[assignment]
        self._host = host
        self._deadline = deadline
        self._cause = ""
        self._deaf_until = host.world.deaf_until()
        self._kill_at: float | None = None
        if host.clock.boottime() >= deadline:  # like the runner: another agent may have the job
            self.run.end = host.world.loop.now
            self._at(PIPE_DELAY, self._tell, AttemptExit(kind="preempted"))
            return
        host.running.append(self)
        host.world.task_began(self.run)
        self._at(self.script.seconds, self._end_by_itself)
        if spec.timeout is not None:
            self._at(spec.timeout, self._time_out, spec.grace)
        self._watch_deadline()
        if self.script.kills_host_after is not None:
            self._at(self.script.kills_host_after, self._kill_host)
        if self.script.children:
            self._at(0.1, host.launch_children, self)

    def script_of(self, seed: str, env: dict[str, str]) -> Script:
        """What the task does if nothing disturbs it."""
        return script(seed, env["FRAY_JOB_NAME"], self.run.job, self.run.attempt)

    # --- requests of the agent

    def set_deadline(self, boottime: float) -> None:
        sooner, self._deadline = boottime < self._deadline, boottime
        if sooner:
            self._watch_deadline()

    def stop(self, grace: float, why: str) -> None:
        if self.run.end is not None:
            return
        if self._host.world.stormy and self._host.world.loop.now < self._deaf_until:
            self._at(1.0, self.stop, grace, why)
            return
        first = not self._cause
        self._cause = self._cause or why
        if grace <= 0:
            self._at(0.0, self.killed)
            return
        if first and self.script.at_sigterm != "goes on":
            react = self.killed if self.script.at_sigterm == "dies" else self._end_by_itself
            self._at(0.5, react)
        self._at(grace, self.killed)

    def kill(self) -> None:
        self.stop(0.0, "stopped")

    def chunks(self) -> Chunks:
        return Chunks(self)

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        """Find one file, which contains its job and attempt."""
        said = json.dumps({"job": self.run.job, "attempt": self.run.attempt}).encode()
        (self.directory / "output").write_bytes(said)
        return FoundOutputs([FoundFile(pattern, lambda: io.BytesIO(said)) for pattern in patterns])

    async def wait(self) -> None:
        await asyncio.shield(self.exit)

    def read_file(self, name: str) -> bytes | None:
        path = self.directory / name
        return path.read_bytes() if path.exists() else None

    async def discard(self) -> None:
        self.directory.rmtree()

    # --- events on the host

    def killed(self) -> None:
        self._end(AttemptExit(kind=self._cause, signal=9))

    def orphaned(self) -> None:
        """End because the agent's process is gone."""
        self._cause = self._cause or "lost"
        self._end(AttemptExit(kind=self._cause, signal=9), "eof")

    def _time_out(self, grace: float) -> None:
        self._cause = self._cause or "timeout"
        self._at(grace, self.killed)

    def _end_by_itself(self) -> None:
        if self._cause == "timeout":  # whatever exit code it returns
            self.killed()
        elif not self.script.fails:
            self._end(AttemptExit(kind="success", code=0), "success")
        elif self._cause:
            self._end(AttemptExit(kind=self._cause, code=1))
        else:
            self._end(AttemptExit(kind="exited", code=1), "failure")

    def _end(self, end: AttemptExit, how: str = "") -> None:
        if self.run.end is not None:
            return
        self._host.running.remove(self)
        self._host.task_over(self)
        how = (
            end.kind if end.kind == "timeout" else how or end.kind
        )  # the first cause stands, also if something else ends it
        self._host.world.task_ended(self.run, how, end.kind == "success" and not self._cause)
        self._at(PIPE_DELAY, self._tell, end)

    def _tell(self, end: AttemptExit) -> None:
        if self.exit.done():
            return
        result = self._result() if end.kind == "success" else None
        self.exit.set_result(TaskExit(end, result, self.run.complete_before_stop))
        self.run.told = True

    def _result(self) -> ResultFile:
        said: dict[str, Any] = {"job": self.run.job, "attempt": self.run.attempt, "agent": self.run.agent}
        said["replica"] = self.run.replica
        said["filling"] = "x" * self.script.result_size
        path = self.directory / "result.json"
        path.write_bytes(json.dumps(said).encode())
        return ResultFile(path, "json", len(path.read_bytes()))  # type: ignore[arg-type]

    def _watch_deadline(self) -> None:
        if self.run.end is not None:
            return
        left = self._host.clock.when(self._deadline) - self._host.world.loop.now
        if left <= 1e-6:
            self._cause = self._cause or "preempted"
            self._end(AttemptExit(kind=self._cause, signal=9), "deadline")
        else:
            self._at(left, self._watch_deadline)

    def _kill_host(self) -> None:
        if self.run.end is None:
            self._host.go_down(f"{self.run.job} killed it")

    def mark_children(self) -> None:
        (self.directory / CHILDREN_MARKER).write_bytes(b"")

    def _at(self, delay: float, act: Any, *args: Any) -> None:
        self._host.world.loop.call_later(delay, act, *args, context=self._host.owner.context())
