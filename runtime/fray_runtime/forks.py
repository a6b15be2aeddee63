"""Starts processes while no other thread of this process forks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

no_forks = threading.RLock()  # reentrant, because uvloop forks in Python, in this very thread
"""Held by a thread that starts a process, and by a thread that forks: a program with an embedded agent has both.

To see whether its program was executed, the parent of a new process reads from a pipe until every holder of the other
end has closed it. A child that another thread forks meanwhile holds that end too, and would block the agent while it
lives.
"""
os.register_at_fork(before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release)


async def without_forks(starting: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that starts a process; no other thread forks until its first wait, when the process exists."""
    return await _WithoutForks(starting)


async def start_process(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """As `asyncio.create_subprocess_exec`, while no other thread can fork.

    It cannot be used with a `preexec_fn`. That makes the start itself a fork, which calls all registered fork handlers,
    and a thread that forks may already hold a lock of another library while it waits for this one: a deadlock.
    """
    return await without_forks(asyncio.create_subprocess_exec(*command, **options))


class _WithoutForks(Generic[T]):
    """Awaits a coroutine, and holds the lock during its first step."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        try:
            with no_forks:
                waits_for = next(steps)
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
