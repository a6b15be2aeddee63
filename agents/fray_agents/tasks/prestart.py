"""Prestarts the process of the next callable, with its imports, before that callable is known.

Most of the time between a claim and a callable's first line goes into the interpreter's start and imports. From the
first callable on, one process waits at a time. A task gets it only if it would start its interpreter the same way.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fray_agents.tasks.environment import inherited_environment
from fray_agents.tasks.process_task import CALLABLE_OPTIONS, RUNNER_TIMEOUT, ProcessTask, start_runner
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.concurrency import start_task

log = logging.getLogger("fray")

PRESTART_DELAY = 0.3
"""Seconds that a new task has the host's cores to itself before the next process is prestarted: the time that most
callables take to start."""

IDLE_TIMEOUT = 300.0
"""Seconds after which an unused process is ended: with its runner it holds some 40 MB."""

_START_VARIABLES = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_")
"""Prefixes of the variables that an interpreter reads only when it starts."""


@dataclass(frozen=True)
class _Prestarted:
    """A runner whose process waits, with the settings that it was started with."""

    runner: asyncio.subprocess.Process
    variables: Mapping[str, str]
    lock_fd: int | None


class Prestarter:
    """Starts tasks as `ProcessTask.start` does, and callables in a prestarted process if there is one.

    Args:
        modules: the modules that a prestarted process imports.
        cgroup_prefix: see `ProcessTask.start`.
    """

    def __init__(self, modules: Sequence[str], cgroup_prefix: str = "") -> None:
        self._cgroup_prefix = cgroup_prefix
        self._command = [sys.executable, *CALLABLE_OPTIONS, "--prestarted", *modules]
        self._prestarted: _Prestarted | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        """See `ProcessTask.start`."""
        if not spec.is_plain_call:
            return await ProcessTask.start(spec, deadline, lock_fd, None, self._cgroup_prefix)
        variables = _start_variables(spec.env)
        runner = self._take(variables, lock_fd)
        self._later(PRESTART_DELAY, lambda: self._make(variables, lock_fd))
        return await ProcessTask.start(spec, deadline, lock_fd, runner, self._cgroup_prefix)

    async def close(self) -> None:
        """End the prestarted process; return when it is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            await asyncio.wait([self._making])
        if (waiting := self._drop()) is not None:
            try:
                await asyncio.wait_for(waiting.runner.wait(), RUNNER_TIMEOUT)
            except TimeoutError:  # the runner does not respond; its process ends with it
                waiting.runner.kill()
                await waiting.runner.wait()

    def _take(self, variables: Mapping[str, str], lock_fd: int | None) -> asyncio.subprocess.Process | None:
        waiting = self._prestarted
        fits = waiting is not None and (waiting.variables, waiting.lock_fd) == (variables, lock_fd)
        if waiting is None or not fits or waiting.runner.returncode is not None:
            self._drop()
            return None
        self._prestarted = None
        return waiting.runner

    def _make(self, variables: Mapping[str, str], lock_fd: int | None) -> None:
        if self._prestarted is None and (self._making is None or self._making.done()):
            self._making = start_task(self._start(variables, lock_fd))

    async def _start(self, variables: Mapping[str, str], lock_fd: int | None) -> None:
        try:
            environment = {**inherited_environment(), **variables}
            runner = await start_runner(lock_fd, self._cgroup_prefix, self._command, environment)
        except OSError as error:  # the host has no room for one: callables start without it
            log.warning("no process is prestarted: %s", error)
            return
        self._prestarted = _Prestarted(runner, variables, lock_fd)
        self._later(IDLE_TIMEOUT, self._drop)

    def _drop(self) -> _Prestarted | None:
        waiting, self._prestarted = self._prestarted, None
        if waiting is not None and waiting.runner.stdin is not None:
            waiting.runner.stdin.close()  # its runner exits, and ends the process
        return waiting

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, do)


def _start_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_START_VARIABLES)}
