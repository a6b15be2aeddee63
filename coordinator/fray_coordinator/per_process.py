"""Values that each process, or each event loop, makes for itself, such as connections."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value of a module, such as a lock or the state of a thread. A forked child makes its own.

    A child does not have its parent's other threads, so a lock that one of them held would never be released there.

    Attributes:
        value: what `make` returned in this process.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.value = make()
        self._make = make
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.value = self._make()


class PerLoop(Generic[T]):
    """A resource that each event loop of each process opens for itself at its first use.

    Event loops cannot share sessions or their sockets. After a fork, the child opens its own resource and leaves the
    parent's alone. open: opens the resource; if it raises, the next `get` calls it again.
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
        # Shielded: a cancelled caller must not cancel the opening for the others that wait for it.
        opening = self._opening
        resource = opening.result() if opening.done() else await asyncio.shield(opening)
        if opening is self._opening:
            self._opened = (owner[0], resource)
        return resource

    def opened(self) -> T | None:
        """The resource if it is open in this process, for methods of it that any thread may call; otherwise None."""
        opened = self._opened
        return opened[1] if opened is not None and opened[0] is _process.value else None

    async def take(self) -> T | None:
        """Hand the running loop's resource to the caller, who closes it; None if none is open. `get` opens another."""
        opening, self._opening, self._opened = self._opening, None, None
        if opening is None or self._owner != _owner() or _failed(opening):
            return None
        return await opening


_process = PerProcess(object)
"""Identifies this process without the system call for its number."""


def _owner() -> tuple[object, object]:
    return _process.value, asyncio.get_running_loop()


def _failed(opening: asyncio.Future[T]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
