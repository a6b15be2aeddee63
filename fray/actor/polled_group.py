"""Groups of actors whose readiness is asked for in the thread that waits."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TypeVar

from fray import sync
from fray.actor.group import ActorGroup
from fray.wait_line import wait_telling

T = TypeVar("T")


class PolledActorGroup(ActorGroup[T]):
    """A group that waits by asking again and again: on Ray the actors, on Iris the controller."""

    @abstractmethod
    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        """Add actors that serve calls to `ready`, until there are as many as wanted; whether there are, in time.

        Args:
            until: on `time.monotonic`.

        Raises:
            ActorUnavailableError: there never will be enough.
        """

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        ready: set[int] = set()

        def tell() -> str:
            return f"{len(ready)} of {wanted} actors of {self._name!r} serve calls"

        if not wait_telling(lambda within: self._gather(ready, wanted, time.monotonic() + within), timeout, tell):
            raise TimeoutError(f"{tell()} after {timeout:g} s")
        if wanted < len(self._handles):
            ready.update(self._ready())  # the first of all that serve are given, not the first that answered
        return sorted(ready)[:wanted]

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        return await sync.in_thread(lambda: self._wait_ready(wanted, timeout))
