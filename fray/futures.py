"""Futures of tasks. The future of a generator function also yields values while the function runs.

All are standard futures that coroutines may await. `result_of` and `wait` take every kind of future that Fray has; any
other value counts as a ready one.
"""

import asyncio
import concurrent.futures
import reprlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from fray.sync import outcome_of, running_future
from fray.wait_line import progress_shown, wait_with_progress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_END: Any = object()

_READY: Future[None] = Future()
_READY.set_result(None)


class SupportsResult(Protocol[T_co]):
    """A future of a value, whether a task's or an actor's, for type checkers."""

    def result(self, timeout: float | None = None) -> T_co: ...


class TaskFuture(Future[T]):
    """The future of a task. It is a standard future, except that `exception` without a timeout does not wait.

        score = await pool.submit(evaluate, model)
        scores = await asyncio.gather(*pool.map(evaluate, models))

    Cancelling a coroutine that awaits it cancels the future, as with any executor's futures; a task that has begun goes
    on. A wait of more than two seconds shows the pool's progress, and a TimeoutError includes it.

    Attributes:
        progress: returns the progress of the task's pool, and why it lacks workers; None if the task has no pool.
        take_back: takes the task back from where it waits, and returns whether it will never run. Its argument is
            whether to wait for that; if not, it happens later. None: the future alone decides.
    """

    progress: Callable[[], str] | None = None
    take_back: Callable[[bool], bool] | None = None

    def cancel(self) -> bool:
        """Cancel the task if no worker has taken it yet. Returns whether it is cancelled, and so never runs.

        For a task of a pool with a queue this asks the storage. If that does not answer, the task goes on.
        """
        if self.take_back is None or self.done():
            return super().cancel()
        return self.take_back(True) and self.cancelled()

    def end_cancelled(self) -> None:
        """Have it cancelled, because its task was taken back, unless it has ended."""
        super().cancel()

    def _cancel_soon(self) -> None:
        """`cancel` for an event loop, which must not wait."""
        if self.take_back is None or self.done():
            super().cancel()
        else:
            self.take_back(False)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the task, and return what it returned or raise what it raised.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            TimeoutError: the task has not ended in time. It goes on.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that the task raised; None if it returned or has not ended.

        Args:
            timeout: seconds to wait for the end. None does not wait.

        Raises:
            TimeoutError: the task has not ended in time.
        """
        if timeout is None and not self.done():
            return None
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Wait for the end. Raises TimeoutError."""
        if not self.done() and not wait_with_progress(self._has_ended, timeout, self.progress):
            raise TimeoutError(self._timeout_message(timeout))

    def _timeout_message(self, timeout: float | None) -> str:
        return f"no result after {timeout:g} s: {self._progress_text()}"

    def _progress_text(self) -> str:
        return self.progress() if self.progress is not None else "it runs in this process"

    def _has_ended(self, within: float) -> bool:
        """Wait for the task's end, at most `within` seconds. Returns whether it has ended."""
        with suppress(TimeoutError, CancelledError):
            super().exception(within)
        return self.done()

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        if self.progress is None or self.done():
            return await outcome_of(self, self._cancel_soon)
        with progress_shown(self.progress):
            return await outcome_of(self, self._cancel_soon)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._outcome()}>"

    def _outcome(self) -> str:
        if not self.done():
            return "pending"
        try:
            error = self.exception()
        except CancelledError:
            return "cancelled"
        return f"raised {reprlib.repr(error)}" if error is not None else f"returned {reprlib.repr(self.result())}"


class GeneratorFuture(TaskFuture[list[T]], Generic[T]):
    """The future of a generator function that runs in another thread or process.

    `next` and `async for` wait for the next value, and raise what the generator raised. `result` waits for the end and
    returns all values. The producer calls `produce` for each value, then `finish`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: list[T] = []
        self._next_ready = running_future()
        self._yielded = 0
        self._lock = threading.RLock()
        self.add_done_callback(GeneratorFuture._announce_end)

    def produce(self, value: T) -> None:
        """Add a value, and wake those who wait for it."""
        with self._lock:
            self._values.append(value)
            self._announce()

    def finish(self, error: BaseException | None = None) -> None:
        """End the values, because the generator returned, or raised `error`."""
        with self._lock:
            if error is None:
                self.set_result(list(self._values))
            else:
                self.set_exception(error)

    @property
    def ready_signal(self) -> Future[None]:
        """A future that is done as soon as `next` would not wait."""
        return self._next_ready

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        wait_with_progress(self._next_comes, None, self.progress)
        return self._next_value(StopIteration)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        await asyncio.wrap_future(self._next_ready)
        return self._next_value(StopAsyncIteration)

    def _next_value(self, at_the_end: type[Exception]) -> T:
        with self._lock:
            value = self._values[self._yielded] if self._yielded < len(self._values) else _END
            self._yielded += value is not _END
            if self._yielded == len(self._values) and not self.done():
                self._next_ready = running_future()
        if value is not _END:
            return value
        self.result()
        raise at_the_end

    def _next_comes(self, within: float) -> bool:
        """Wait for the next value or the end, at most `within` seconds. Returns whether it is there."""
        ready = self._next_ready
        concurrent.futures.wait([ready], within)
        return ready.done()

    @staticmethod
    def _announce_end(future: Future[Any]) -> None:
        """Wake those who wait for the next value, however the future has ended."""
        assert isinstance(future, GeneratorFuture)
        with future._lock:
            future._announce()

    def _announce(self) -> None:
        if not self._next_ready.done():
            self._next_ready.set_result(None)


def run_into(function: Callable[..., Any], args: Iterable[Any], future: Future[Any]) -> None:
    """Call `function` in this thread, and put its outcome into `future`. A `GeneratorFuture` gets value by value."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args)
        if isinstance(future, GeneratorFuture):
            for value in result:
                future.produce(value)
    except BaseException as error:
        _fail(future, error)
        if not isinstance(error, Exception):
            raise
    else:
        future.finish() if isinstance(future, GeneratorFuture) else future.set_result(result)


def _fail(future: Future[Any], error: BaseException) -> None:
    future.finish(error) if isinstance(future, GeneratorFuture) else future.set_exception(error)


def result_of(ref: Any) -> Any:
    """Wait for a future, and return its result or raise its exception. Any other value is returned unchanged."""
    return ref.result() if isinstance(ref, Future) else ref


def wait(refs: Sequence[T], num_returns: int = 1) -> tuple[list[T], list[T]]:
    """Wait until `num_returns` of the futures are ready. Returns exactly so many ready ones, and all the others.

    If fewer futures were given, it waits for all. A `GeneratorFuture` is ready when its next value or its end is there.
    A value that is not a future is always ready. The lists have the given objects.
    """
    signals = [_signal(ref) for ref in refs]
    wanted = min(num_returns, len(refs))

    def are_ready(within: float) -> bool:
        until = time.monotonic() + within
        while sum(signal.done() for signal in signals) < wanted:
            if (left := until - time.monotonic()) <= 0:
                return False
            concurrent.futures.wait({signal for signal in signals if not signal.done()}, left, FIRST_COMPLETED)
        return True

    wait_with_progress(
        are_ready, None, lambda: f"{sum(signal.done() for signal in signals)} of {wanted} values are there"
    )
    ready = [at for at, signal in enumerate(signals) if signal.done()][:wanted]
    others = sorted(set(range(len(refs))).difference(ready))
    return [refs[at] for at in ready], [refs[at] for at in others]


def _signal(ref: object) -> Future[Any]:
    match ref:
        case GeneratorFuture():
            return ref.ready_signal
        case Future():
            return ref
    return _READY
