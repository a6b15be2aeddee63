"""Starting callables quickly: the next one's process is started, and has its imports behind it, before it is known.

Most of the time between a claim and a callable's first line is the interpreter's start and imports. One spare process
waits at a time, from the first callable on; a task gets it only if it would have started its interpreter the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fray_agents.tasks.environment import inherited_environment
from fray_agents.tasks.handle import TaskHandle
from fray_agents.tasks.process_task import (
    CALLABLE_COMMAND,
    RUNNER_TIMEOUT,
    ProcessTask,
    TaskSpec,
    start_runner,
)

log = logging.getLogger("fray")

PRESTART_DELAY = 0.3
"""Seconds that a task which was just started has the host's cores to itself before the next spare is made."""

IDLE_TIMEOUT = 300.0
"""Seconds after which a spare that nobody needed is given up: with its runner it holds some 40 MB."""

_START_VARIABLES = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_")
"""Beginnings of the variables that an interpreter heeds when it starts, and not later."""


@dataclass(frozen=True)
class _Prestarted:
    runner: asyncio.subprocess.Process
    at_start: Mapping[str, str]
    lock_fd: int | None


class Prestarter:
    """Starts tasks as `ProcessTask.start` does, callables from a spare process where there is one.

    Args:
        modules: what a spare imports.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._command = [*CALLABLE_COMMAND, "--spare", *modules]
        self._spare: _Prestarted | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    async def start(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        """See `ProcessTask.start`."""
        if spec.callable_pickle is None:
            return await ProcessTask.start(spec, deadline, lock_fd)
        at_start = _start_variables(spec.env)
        runner = self._take(at_start, lock_fd)
        self._later(PRESTART_DELAY, lambda: self._make(at_start, lock_fd))
        return await ProcessTask.start(spec, deadline, lock_fd, runner)

    async def close(self) -> None:
        """Give up the spare; it is gone afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            await self._making
        if (spare := self._drop()) is not None:
            try:
                await asyncio.wait_for(spare.runner.wait(), RUNNER_TIMEOUT)
            except TimeoutError:  # it does not hear: its process goes with it
                spare.runner.kill()
                await spare.runner.wait()

    def _take(self, at_start: Mapping[str, str], lock_fd: int | None) -> asyncio.subprocess.Process | None:
        spare = self._spare
        fits = spare is not None and (spare.at_start, spare.lock_fd) == (at_start, lock_fd)
        if spare is None or not fits or spare.runner.returncode is not None:
            self._drop()
            return None
        self._spare = None
        return spare.runner

    def _make(self, at_start: Mapping[str, str], lock_fd: int | None) -> None:
        if self._spare is None and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._start(at_start, lock_fd))

    async def _start(self, at_start: Mapping[str, str], lock_fd: int | None) -> None:
        try:
            runner = await start_runner(lock_fd, self._command, {**inherited_environment(), **at_start})
        except OSError as error:  # the host has no room for one: callables start without
            log.warning("no spare process: %s", error)
            return
        self._spare = _Prestarted(runner, at_start, lock_fd)
        self._later(IDLE_TIMEOUT, self._drop)

    def _drop(self) -> _Prestarted | None:
        spare, self._spare = self._spare, None
        if spare is not None and spare.runner.stdin is not None:
            spare.runner.stdin.close()  # its runner ends, and takes it along
        return spare

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, do)


def _start_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_START_VARIABLES)}
