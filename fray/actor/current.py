"""What an actor knows of itself, while its `__init__` runs, in its calls, and in threads that either has started."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.actor.handle import ActorHandle

_current: ContextVar[CurrentActor | None] = ContextVar("fray_current_actor", default=None)
_of_process: CurrentActor | None = None


class CurrentActor:
    """The actor that this code belongs to.

    Attributes:
        handle: its own handle; calls through it wait until it is served.
        index: its number in its group, from 0.
        group_name: name of the group it was created in; its own name if it was created alone.
        shutdown_event: set when it shall end; what then still runs is given the job's grace.
    """

    def __init__(self, handle: ActorHandle[Any], index: int, group_name: str) -> None:
        self.handle = handle
        self.index = index
        self.group_name = group_name
        self.shutdown_event = threading.Event()
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """End the actor: calls that run are given the grace, then its job has failed with `error`."""
        self.failure = self.failure or error
        self.shutdown_event.set()


def current_actor() -> CurrentActor:
    """The actor that this code runs in; from `__init__`, calls, and the threads of an actor with its own process.

    Raises:
        RuntimeError: this code runs in no actor.
    """
    actor = _current.get() or _of_process
    if actor is None:
        raise RuntimeError("current_actor() was called outside of an actor; only its __init__ and its methods have one")
    return actor


def settle(actor: CurrentActor, owns_process: bool) -> None:
    """Make `actor` the current one of this thread, and of the process's other threads if the process is its own."""
    global _of_process
    _current.set(actor)
    if owns_process:
        _of_process = actor


class InContext:
    """Stands before an actor: its methods run with the variables of `context`.

    The threads that serve calls belong to no job; the current actor and the task's environment are such variables.
    """

    def __init__(self, target: Any, context: contextvars.Context) -> None:
        self._target = target
        self._context = context

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return _within(self._context, found) if callable(found) else found


def _within(context: contextvars.Context, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def yielding_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            _adopt(context)
            async for item in method(*args, **kwargs):
                yield item

        return yielding_async
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            _adopt(context)
            return await method(*args, **kwargs)

        return awaited
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def yielding(*args: Any, **kwargs: Any) -> Iterator[Any]:
            own = context.copy()
            items = method(*args, **kwargs)
            try:
                yield from iter(lambda: own.run(next, items, _END), _END)
            finally:
                own.run(items.close)

        return yielding

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(method, *args, **kwargs)

    return called


_END: Any = object()


def _adopt(context: contextvars.Context) -> None:
    """Take over another context's values; a task of an event loop has a context of its own."""
    for variable, value in context.items():
        variable.set(value)
