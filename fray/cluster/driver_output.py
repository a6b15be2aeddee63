"""Whether and how a cluster object shows the output of the jobs that a program launches; see `driver_log`."""

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
"""Seconds that the end of a wait, or of the program, waits for the terminal to show the jobs' output."""

ENDING_TIMEOUT = 3.0
"""Seconds that a program which ends waits for the last lines of the jobs that end with it. An agent learns of a stop
within a second or two, and most actors end at once."""


class DriverOutput:
    """Shows the output of one cluster's jobs in this program. If it is off, its coroutines make no requests.

    Args:
        core: opens the cluster.
        has_log_only: whether a job's output goes only to its log.

    Attributes:
        chosen: the program's choice; None leaves the choice to `log_printer.shows_output`.
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
        """Show the output where the caller prints: in a notebook, below the cell that runs."""
        log_printer.printer.value.belong_here()

    def flush(self) -> None:
        """Wait a moment for the terminal to show all lines that were read."""
        log_printer.printer.value.flush(PRINT_TIMEOUT)

    async def follow(self, launched: Sequence[Submitted]) -> None:
        """Show the output of these jobs from now on."""
        if self.is_on:
            (await self._log.get()).follow(launched)

    async def follow_known(self, jobs: Sequence[str]) -> None:
        """Show the output of jobs that were launched before, from their last chunk on."""
        if jobs and self.is_on:
            known = await read_jobs(await self._core(), jobs, problems={})
            await self.follow([Submitted(job, found=True) for job in known])

    async def forget(self, job_id: str) -> None:
        """Stop showing this job's output, because the caller reads its log and shows it."""
        if self.is_on:
            (await self._log.get()).forget(job_id)

    async def note(self, job: JobRecord) -> None:
        """Accept a job's record that was read or written; see `DriverLog.note`."""
        if self.is_on:
            (await self._log.get()).note(job)

    @asynccontextmanager
    async def waiting(self, jobs: Sequence[str]) -> AsyncIterator[Callable[[JobRecord], None] | None]:
        """The block in which a caller waits for these jobs; see `DriverLog.waiting`.

        It gives the function that takes their records, or None if no output is shown.
        """
        if not self.is_on:
            yield None
            return
        driver_log = await self._log.get()
        async with driver_log.waiting(jobs):
            yield driver_log.note

    async def leave(self) -> None:
        """Show the last lines of the jobs that end with this program, then stop."""
        driver_log = await self._log.take()
        if driver_log is not None:
            await driver_log.leave(ENDING_TIMEOUT)

    async def _open(self) -> DriverLog:
        from fray.cluster.driver_log import DriverLog  # imported late: most programs show nothing

        return DriverLog(await self._core(), self._has_log_only, log_printer.printer.value.put)
