"""Resources that belong to one event loop: connections, and what is made of them."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A resource that each event loop of each process opens for itself, when it is first asked for.

    Neither sessions nor their sockets can be shared between loops. After a fork the child opens its own and leaves the
    parent's alone. open: opens the resource; called again by whoever asks next if it raised.
    """

    def __init__(self, open: Callable[[], Awaitable[T]]) -> None:
        self._open = open
        self._owner: tuple[object, object] = (None, None)
        self._opening: asyncio.Future[T] | None = None
        self._opened: tuple[object, T] | None = None

    async def get(self) -> T:
        """The resource of the running loop; callers that come while it is being opened wait for the same one."""
        owner = _owner()
        if self._opening is None or owner != self._owner or _failed(self._opening):
            self._owner = owner
            self._opening = asyncio.ensure_future(self._open())
        # Shielded: a caller that is cancelled must not take the resource from those who wait with it.
        opening = self._opening
        resource = opening.result() if opening.done() else await asyncio.shield(opening)
        if opening is self._opening:
            self._opened = (owner[0], resource)
        return resource

    def opened(self) -> T | None:
        """What is open in this process, for those of its methods that any thread may call; None if nothing is."""
        opened = self._opened
        return opened[1] if opened is not None and opened[0] is _process else None

    async def take(self) -> T | None:
        """What the running loop has open, for the caller to close; None if nothing is. The next `get` opens anew."""
        opening, self._opening, self._opened = self._opening, None, None
        if opening is None or self._owner != _owner() or _failed(opening):
            return None
        return await opening


_process = object()
"""Stands for this process, without the system call that its number takes: a fork has another one."""


def _owner() -> tuple[object, object]:
    return _process, asyncio.get_running_loop()


def _failed(opening: asyncio.Future[T]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)
