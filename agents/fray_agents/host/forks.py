"""Starting processes while no other thread of this process forks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

no_forks = threading.RLock()  # uvloop forks in Python, in this very thread
"""Held by a thread that starts a process, and by one that forks: a program with an agent of its own has both.

To see whether its program was executed, whoever starts a process reads from a pipe until all who have its other end are
gone. A child that another thread forks meanwhile has that too, and the agent would stand still for as long as it lives.
"""
os.register_at_fork(before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release)


async def without_forks(starting: Coroutine[Any, Any, T]) -> T:
    """Await what starts a process: until it waits for the first time, and so has started it, no other thread forks."""
    return await _WithoutForks(starting)


async def start_process(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """As `asyncio.create_subprocess_exec`, and meanwhile no other thread forks.

    Not with a `preexec_fn`: then it is itself a fork, before which all that is registered is called, and a thread that
    forks already holds a lock of another library while it waits for this one.
    """
    return await without_forks(asyncio.create_subprocess_exec(*command, **options))


class _WithoutForks(Generic[T]):
    """Awaits a coroutine, whose first step holds the lock."""

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
