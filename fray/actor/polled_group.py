"""Groups of actors that are polled for readiness by the waiting thread."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TypeVar

from fray import sync
from fray.actor.group import ActorGroup
from fray.wait_line import wait_with_progress

T = TypeVar("T")


class PolledActorGroup(ActorGroup[T]):
    """A group that waits by polling: on Ray it polls the actors, on Iris the controller."""

    @abstractmethod
    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        """Add the actors that serve calls to `ready` until it has `wanted` of them. Returns whether that came in time.

        Args:
            until: the deadline, on the clock of `time.monotonic`.

        Raises:
            ActorUnavailableError: too many actors have ended for good.
        """

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        ready: set[int] = set()

        def progress() -> str:
            return f"{len(ready)} of {wanted} actors of {self._name!r} serve calls"

        if not wait_with_progress(
            lambda within: self._gather(ready, wanted, time.monotonic() + within), timeout, progress
        ):
            raise TimeoutError(f"{progress()} after {timeout:g} s")
        if wanted < len(self._handles):
            ready.update(self._ready())  # so that the lowest numbers are returned, not the quickest to answer
        return sorted(ready)[:wanted]

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        return await sync.in_thread(lambda: self._wait_ready(wanted, timeout))
