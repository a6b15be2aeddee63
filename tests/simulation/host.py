"""A machine with its clock, its disk, its agent process, and its tasks, which outlive that process for a moment."""

from __future__ import annotations

import asyncio
import fcntl
import random
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.daemon import run_agent
from fray_agents.environments.cache import EnvironmentFailed
from fray_agents.tasks.task_handle import StartFailed, TaskHandle, TaskSpec
from fray_coordinator.errors import BadRecord, ParentNotRunning, StoreError, StoreRefused, StoreUnavailable
from fray_coordinator.jobs.submission import submit
from fray_layouts.errors import InvalidInput
from fray_layouts.records import Resources, SliceMember, Software
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from fray_runtime.pickling import OWN_PYTHON
from tests.simulation.disk import DiskPath
from tests.simulation.loop import Participant
from tests.simulation.tasks import HostTask
from tests.simulation.work import drawn_children, drawn_place, is_hopeless, is_place_for

if TYPE_CHECKING:
    from tests.simulation.world import World

AFTER_SIGTERM = 30.0
"""Seconds from a preemption's SIGTERM until the machine is gone, even if its agent has not finished."""


NO_UV = Software(python=OWN_PYTHON)
"""The software of the machines, without uv: nothing that strangers ask for is installed on this machine."""


class Host:
    """One machine. `fails_starts`: no task can be started on it; `slice`, `place`: as in its agent's record."""

    def __init__(self, world: World, name: str, draw: random.Random) -> None:
        self.world = world
        self.name = name
        self.draw = draw
        self.clock = world.drawn_clock(draw)
        self.owner = Participant(f"host {name}")
        self.running: list[HostTask] = []
        self.process: Participant | None = None
        self.agent: Agent | None = None
        self.joined = False
        self.newer = draw.random() < world.hardships.newer
        self.fails_starts = name != "h1" and draw.random() < world.hardships.broken_hosts
        self.cores = 4 if name == "h1" else draw.choice([1, 2, 2, 4])
        self.slice: SliceMember | None = None
        self.place = drawn_place(random.Random(f"place {world.seed} {name}"))
        self._disk: dict[str, bytes] = {}
        self._starts = 0
        self._launchers: dict[HostTask, Participant] = {}

    # --- the agent's process

    def start_agent(self) -> None:
        """Start the agent's process, unless one runs."""
        if self.process is not None:
            return
        self._starts += 1
        self.agent, self.joined = None, False
        self.process = process = Participant(f"{self.name}.{self._starts}")
        process.on_crash.append(lambda: self._crashed(process))
        self.world.note(self.name, "starts agent process", process.name)
        self.world.spawn(process, run_agent(self.world.root, self.options(), self._on_join), self._ended)

    @property
    def capacity(self) -> Resources:
        return Resources(cpu=1000 * self.cores, memory=2**36, disk=2**36)

    def options(self) -> AgentOptions:
        """The options of the agent."""
        work_dir: Any = DiskPath(self._disk, "/work", self.world.mishap)
        return AgentOptions(capacity=self.capacity, software=NO_UV, work_dir=work_dir, place=self.place)

    def suits(self, spec: JobSpec) -> bool:
        """Whether the job, or a replica of it, could run here if nothing else did."""
        has_room = self.capacity.cpu >= round(1000 * spec.resources.cpu)
        return not self.fails_starts and has_room and is_place_for(spec, self.place)

    def terminate(self) -> None:
        """Send SIGTERM to the agent's process."""
        act = self.process.signals.get(signal.SIGTERM) if self.process is not None else None
        if act is not None and self.process is not None:
            self.world.note(self.name, "SIGTERM", self.process.name)
            self.world.loop.call_soon(act, context=self.process.context())

    def preempt(self) -> None:
        """Send SIGTERM; then the machine goes away."""
        self.terminate()
        self._in(AFTER_SIGTERM, self._vanish, self.process)

    def go_down(self, why: str) -> None:
        """End the agent's process and its tasks at once."""
        if self.process is not None:
            self.world.note(self.name, "goes down", why)
            self.world.loop.crash(self.process)

    def freeze(self, seconds: float) -> None:
        process = self.process
        if process is not None and process.mode == "up":
            self.world.note(process.name, "freezes", f"for {seconds:.1f} s")
            self.world.loop.freeze(process)
            self._in(seconds, self._wake, process)

    def _wake(self, process: Participant) -> None:
        self.world.note(process.name, "wakes", "")
        self.world.loop.wake(process)

    def _vanish(self, process: Participant | None) -> None:
        if process is not None and self.process is process:
            self.go_down("preempted")

    def _on_join(self, agent_id: str) -> None:
        self.joined = True
        self.world.joined(agent_id, self)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        self.world.note(self.name, "agent process ended", repr(error) if error else "")
        if error is not None and not self._may_give_up(error):
            self.world.agent_failed(self, error)
        assert self.process is not None
        self.world.loop.crash(self.process)

    def _may_give_up(self, error: BaseException) -> bool:
        """Whether the process may end like this because it never was a member."""
        agent = self.agent
        if isinstance(error, StoreRefused):
            return agent is None or not (agent.member.stored is not None or agent._options.rejoins)
        return not self.joined and isinstance(error, StoreUnavailable)

    def _crashed(self, process: Participant) -> None:
        """Do what the kernel and the runners do when a process is gone."""
        agent, self.agent = self.agent, None
        self.process = None
        for task in list(self.running):
            self._in(self.draw.uniform(0.0, 0.2), task.orphaned)
        self._in(0.3, self._unlock, agent)
        if agent is not None:
            self.world.crashed(agent)
        pause = self.draw.uniform(0.5, 10) if self.draw.random() < 0.5 else self.draw.uniform(30, 200)
        self._in(pause, self.start_agent)

    def _unlock(self, agent: Agent | None) -> None:
        if agent is not None and agent._lock.path.exists():
            fcntl.flock(agent._lock.fd, fcntl.LOCK_UN)

    # --- tasks

    async def start_task(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        await asyncio.sleep(self.draw.uniform(0.005, 0.3))
        self.world.mishap("start of a task")
        if self.fails_starts:
            raise StartFailed("this host is broken")
        if is_hopeless(self.world.seed, spec.env["FRAY_JOB_NAME"], spec.env["FRAY_JOB_ID"]):
            raise EnvironmentFailed("there is no such package")
        return self.world.task(self, spec, deadline)  # type: ignore[return-value]

    def launch_children(self, task: HostTask) -> None:
        """Let the task submit children, in a process that ends with it."""
        self.begin_process(task, lambda launcher: self._launch(task, launcher))

    def begin_process(self, task: HostTask, work: Callable[[Participant], Coroutine[Any, Any, None]]) -> None:
        """Start a process of the task, which ends with it."""
        if task.run.end is None:
            process = self._launchers[task] = Participant(f"task {task.run.job}~{task.run.attempt}")
            self.world.spawn(process, work(process))

    def let_go(self, task: HostTask) -> Participant | None:
        """Detach the task's process, so that it does not end with the task."""
        return self._launchers.pop(task, None)

    def task_over(self, task: HostTask) -> None:
        if launcher := self._launchers.pop(task, None):
            self.world.loop.crash(launcher)

    async def _launch(self, task: HostTask, launcher: Participant) -> None:
        run = task.run
        try:
            core = await self.world.core(launcher, self.clock)
        except StoreError:
            return
        task.mark_children()
        for raw in drawn_children(self.world.seed, run.job, run.attempt, task.script.children):
            while True:
                try:
                    (done,) = await submit(core, [parse_spec(raw)], run.attempt)
                    self.world.submitted(done.job, done.found)
                    break
                except StoreError:
                    if not raw.get("id"):
                        break
                except (ParentNotRunning, BadRecord):
                    return
                except InvalidInput:
                    if self.world.strangers.changed(raw.get("id", "")):
                        break
                    raise

    def _in(self, delay: float, act: Any, *args: Any) -> None:
        self.world.loop.call_later(delay, act, *args, context=self.owner.context())
