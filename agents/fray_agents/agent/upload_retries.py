"""Retries the uploads of an attempt, and gives them up after a stop."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fray_agents.agent.held import HeldTask
from fray_agents.tasks.handle import TaskHandle
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, StoreRefused
from fray_coordinator.persist import is_no_outage, persist

T = TypeVar("T")


@dataclass(slots=True)
class UploadRetries:
    """The retries of an attempt's log, or of its result and outputs; after a stop there are only a few.

    After the stop an upload is given up at a refusal, or at the second failure of requests that were sent since. The
    failure of an earlier request says little, because it may have been sent long ago, before this agent was frozen.

    is_gone: whether the task's last process has ended; other jobs may use its room while an upload fails.
    """

    core: Core
    held: HeldTask
    task: TaskHandle
    is_gone: bool = False
    _has_failed: bool = False

    async def keep_trying(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat the request until it succeeds.

        Raises:
            StoreError: the last failure of an upload that was given up.
        """
        since_stop = False

        async def send() -> T:
            nonlocal since_stop
            since_stop = self.held.stop is not None
            return await request()

        return await persist(self.core, send, lambda error: self._gives_up(error, since_stop))

    def _gives_up(self, error: StoreError, since_stop: bool) -> bool:
        self.held.idle |= self.is_gone
        if self.held.stop is None or not self.task.exit.done() or not is_no_outage(error):
            return False
        failed_before, self._has_failed = self._has_failed, self._has_failed or since_stop
        return failed_before or isinstance(error, StoreRefused)
