"""Methods that run with the context variables of the code that registered their actor.

The threads that serve calls belong to no job; the task's environment and the current actor are context variables.
"""

import contextvars
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any


def with_context_variables(context: contextvars.Context, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, run with the variables of `context`: a function, a coroutine, or a generator of either kind."""
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
    """Copy the values of `context` into the current one, which is that of a task of an event loop."""
    for variable, value in context.items():
        variable.set(value)
