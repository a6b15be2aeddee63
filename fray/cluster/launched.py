"""The jobs that a program has launched and that go on without it: what Ctrl-C and the first failure of a wait say."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from fray.uncaught import Interrupted
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.opening import root_url
from fray_layouts.errors import InvalidInput
from fray_layouts.records import JobRecord
from fray_runtime.variables import read_variable

T = TypeVar("T")

LOOK_TIMEOUT = 3.0
"""Seconds that Ctrl-C waits for the storage to say which jobs have not ended: a person waits, and 1,000 reads fit."""

MAX_NAMED = 10
"""Ids in a command at most, as many as a person reads."""

MAX_KNOWN = 10_000
"""Jobs that are remembered at most, 1 MB of ids. Those that a wait has seen end are forgotten before."""


class Launcher(Protocol):
    """The cluster object through which a program launches jobs; see `ConnectedCluster`."""

    root: str

    @property
    def ends_with_program(self) -> bool: ...

    @property
    def made_up_namespace(self) -> str: ...

    def run(self, work: Callable[[Core], Awaitable[T]]) -> T: ...


class LaunchedJobs(Interrupted):
    """The jobs that this program has launched on one cluster and that do not end with it, as far as it knows.

    A private cluster's end with it, which Ctrl-C says instead.
    """

    def __init__(self, cluster: Launcher) -> None:
        super().__init__()
        self._cluster = cluster
        self._ids: dict[str, None] = {}

    def add(self, jobs: Iterable[JobRecord]) -> None:
        """Note jobs that were launched; those that end with their parent are left out."""
        self._ids |= dict.fromkeys(job.id for job in jobs if job.parent is None or job.parent.detached)
        for job in list(self._ids)[: max(0, len(self._ids) - MAX_KNOWN)]:
            del self._ids[job]

    def note_ends(self, jobs: Iterable[JobRecord]) -> None:
        """Forget those of these jobs that have ended."""
        for job in jobs:
            if is_terminal(job):
                self._ids.pop(job.id, None)

    def how_to_stop(self, jobs: Sequence[str]) -> str:
        """The clause that says how to stop these jobs."""
        if self._cluster.ends_with_program:
            return "`cluster.terminate(job)` stops one, and they end with this program"
        if len(jobs) <= MAX_NAMED:
            chosen, whose = shlex.join(jobs), "them" if len(jobs) > 1 else "it"
        elif own := self._cluster.made_up_namespace:
            chosen, whose = f"--namespace {own}", "all jobs of this program"
        else:
            chosen, whose = f"{shlex.join(jobs[:MAX_NAMED])} ...", "them"  # its namespace has jobs of others too
        return f"`fray stop {self._root_option}{chosen}` stops {whose}"

    def print_what_goes_on(self) -> None:
        if not self._ids:
            return
        try:
            jobs, is_sure = self._cluster.run(self._going), True
        except (StoreError, TimeoutError):
            jobs, is_sure = list(self._ids), False
        if not jobs:
            return
        count = "1 job" if len(jobs) == 1 else f"{len(jobs):,} jobs"
        if self._cluster.ends_with_program:
            _say(f"{count} of this program {'ends' if len(jobs) == 1 else 'end'} with it")
            return
        goes = ("goes" if len(jobs) == 1 else "go") if is_sure else "may go"
        _say(f"{count} that this program launched {goes} on; {self.how_to_stop(jobs)}")
        if _agrees():
            self._cluster.run(lambda core: map_concurrently(jobs, lambda job: stopping.stop(core, job, "Ctrl-C")))
            _say(f"stopping {count}")

    async def _going(self, core: Core) -> list[str]:
        async with asyncio.timeout(LOOK_TIMEOUT):
            found = await jobs_by_id(core, list(self._ids), problems={})
        return [job for job, record in found.items() if record is not None and not is_terminal(record)]

    @property
    def _root_option(self) -> str:
        """The option that names the cluster; "" if FRAY_CLUSTER_SPEC does, for the commands of this shell."""
        try:
            is_named = root_url(read_variable("FRAY_CLUSTER_SPEC") or "") == self._cluster.root
        except InvalidInput:
            is_named = False
        return "" if is_named else f"--root {shlex.quote(self._cluster.root)} "


def _agrees() -> bool:
    """Whether a person at a terminal wants the jobs stopped. A Python prompt is not asked: its program goes on."""
    if hasattr(sys, "ps1") or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("fray: stop now? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(text: str) -> None:
    print(f"fray: {text}", file=sys.stderr, flush=True)
