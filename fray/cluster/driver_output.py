"""The output of jobs that a program launches, as its cluster object shows it or does not; see `driver_log`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fray.cluster import log_printer
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import read_jobs
from fray_coordinator.jobs.submission import Submitted
from fray_coordinator.per_loop import PerLoop
from fray_layouts.records import JobRecord

if TYPE_CHECKING:
    from fray.cluster.driver_log import DriverLog

PRINT_TIMEOUT = 1.0
"""Seconds that who waits for a job, or ends, gives the terminal to show what the job has printed."""

ENDING_TIMEOUT = 3.0
"""Seconds that a program which ends waits for the last lines of what ends with it: an agent hears of a stop within a
second or two, and most actors end at once."""


class DriverOutput:
    """The output of one cluster's jobs in this program. Its coroutines do nothing, and ask for nothing, if it is off.

    Args:
        core: opens the cluster.
        has_log_only: whether a job's output is nowhere but in its log.

    Attributes:
        chosen: what the program says; None leaves it to FRAY_LOG_TO_DRIVER, terminals and notebooks.
    """

    def __init__(self, core: Callable[[], Awaitable[Core]], has_log_only: Callable[[JobRecord], bool]) -> None:
        self.chosen: bool | None = None
        self._core = core
        self._has_log_only = has_log_only
        self._log = PerLoop(self._open)

    @property
    def is_on(self) -> bool:
        return log_printer.shows_output() if self.chosen is None else self.chosen

    def belong_here(self) -> None:
        """Show it where the caller prints: in a notebook, under the cell that runs."""
        log_printer.printer.belong_here()

    def flush(self) -> None:
        """Give the terminal a moment to show all that is known."""
        log_printer.printer.flush(PRINT_TIMEOUT)

    async def follow(self, launched: Sequence[Submitted]) -> None:
        """Show what these jobs print from now on."""
        if self.is_on:
            (await self._log.get()).follow(launched)

    async def follow_known(self, jobs: Sequence[str]) -> None:
        """Show what these jobs print, which were launched before, from their last chunk on."""
        if jobs and self.is_on:
            known = await read_jobs(await self._core(), jobs, problems={})
            await self.follow([Submitted(job, found=True) for job in known])

    async def forget(self, job_id: str) -> None:
        """Show nothing more of this job: who reads its log shows it."""
        if self.is_on:
            (await self._log.get()).forget(job_id)

    async def note(self, job: JobRecord) -> None:
        """Take note of a job's record that was read or written."""
        if self.is_on:
            (await self._log.get()).note(job)

    @asynccontextmanager
    async def waiting(self, jobs: Sequence[str]) -> AsyncIterator[Callable[[JobRecord], None] | None]:
        """While somebody waits for these jobs: gives what wants their records; see `DriverLog.waiting`."""
        if not self.is_on:
            yield None
            return
        driver_log = await self._log.get()
        async with driver_log.waiting(jobs):
            yield driver_log.note

    async def leave(self) -> None:
        """Show the last lines of what ends with this program, and then no more."""
        driver_log = await self._log.take()
        if driver_log is not None:
            await driver_log.leave(ENDING_TIMEOUT)

    async def _open(self) -> DriverLog:
        from fray.cluster.driver_log import DriverLog  # most programs show nothing

        return DriverLog(await self._core(), self._has_log_only, log_printer.printer.put)
