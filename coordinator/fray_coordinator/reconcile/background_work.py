"""Background work of the reconciler, which continues while passes run."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from fray_coordinator.errors import describe_error, is_outage


@dataclass(slots=True)
class BackgroundWork:
    """Runs work that may outlast a pass of the reconciler, one run at a time for each name.

    So the reconciler watches agents and renews its lease however many files are in the inbox, however many jobs a dead
    agent held, and however long a repair takes.

    Attributes:
        problems: by name, the error that ended the last run of that work. An outage is not noted: the work is repeated.
    """

    problems: dict[str, str] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """Whether some run has not ended yet."""
        return any(not task.done() for task in self._running.values())

    def start(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Start a run, unless one of this name is still running."""
        self._running = {other: task for other, task in self._running.items() if not task.done()}
        if name not in self._running:
            self._running[name] = asyncio.create_task(self._run(name, work))

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget the problems of all other work, which is done or has become unnecessary."""
        self.problems = {name: problem for name, problem in self.problems.items() if name in names}

    async def wait(self, seconds: float | None) -> None:
        """Wait up to `seconds` for all runs to end; None: without limit."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=seconds)

    def stop(self) -> None:
        """Cancel all runs; the next holder of the lease starts them again."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    async def _run(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:
            if not is_outage(error):
                self.problems[name] = describe_error(error)
        else:
            self.problems.pop(name, None)
