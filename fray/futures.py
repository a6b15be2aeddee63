"""What `run` gives back: a future, or, for a generator function, a future that also yields while the function runs.

`result_of` and `wait` take every kind of future that Fray has, and any other value as one that is ready.
"""

from __future__ import annotations

import concurrent.futures
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_END: Any = object()

_NOW: Future[None] = Future()
_NOW.set_result(None)


class SupportsResult(Protocol[T_co]):
    """What gives a value of a type by `result`: futures of tasks and of actors, for type checkers."""

    def result(self, timeout: float | None = None) -> T_co: ...


class HasReadySignal(ABC):
    """A future that has its own way to say that it is ready."""

    __slots__ = ()

    @property
    @abstractmethod
    def coming(self) -> Future[Any]:
        """Done as soon as asking for the next thing would not wait."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> Any:
        """What it stands for; waits for it."""


class TaskFuture(Future[T]):
    """The outcome of a task: a future of the standard library, whose `exception` can be asked for at any time."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the task raised; None if it returned, or has not ended.

        Args:
            timeout: seconds to wait for the end; then the builtin TimeoutError. Without it nothing waits.
        """
        if timeout is None and not self.done():
            return None
        return super().exception(timeout)


class GeneratorFuture(TaskFuture[list[T]], HasReadySignal, Generic[T]):
    """The values of a generator that runs elsewhere.

    `next` waits for the next value and raises what the generator raised; `result` waits for the end and gives all
    values. Whoever produces calls `produce`, then `finish`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: list[T] = []
        self._coming: Future[T] = Future()
        self._taken = 0
        self._lock = threading.Lock()

    def produce(self, value: T) -> None:
        """One more value."""
        with self._lock:
            self._values.append(value)
            self._announce()

    def finish(self, error: BaseException | None = None) -> None:
        """No more values follow, because of `error` if there is one."""
        with self._lock:
            if error is None:
                self.set_result(list(self._values))
            else:
                self.set_exception(error)
            self._announce()

    @property
    def coming(self) -> Future[T]:
        """Done as soon as `next` would not wait."""
        return self._coming

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._coming.result()
        with self._lock:
            value = self._values[self._taken] if self._taken < len(self._values) else _END
            self._taken += value is not _END
            if self._taken == len(self._values) and not self.done():
                self._coming = Future()
        if value is not _END:
            return value
        self.result()
        raise StopIteration

    def _announce(self) -> None:
        if not self._coming.done():
            self._coming.set_result(_END)


def run_into(function: Callable[..., Any], args: Iterable[Any], future: Future[Any]) -> None:
    """Run `function` here and put what comes of it into `future`, value by value if that is a `GeneratorFuture`."""
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
    """What a future stands for, waiting for it; any other value as it is. Raises what the future holds."""
    return ref.result() if isinstance(ref, (Future, HasReadySignal)) else ref


def wait(refs: Sequence[T], num_returns: int = 1) -> tuple[list[T], list[T]]:
    """Exactly `num_returns` that are ready (fewer only if there are no more), and all the others.

    A `GeneratorFuture` is ready when its next value is there, or its end; what is no future is ready. The objects are
    those that were given.
    """
    signals = [_signal(ref) for ref in refs]
    wanted = min(num_returns, len(refs))
    while sum(signal.done() for signal in signals) < wanted:
        concurrent.futures.wait({signal for signal in signals if not signal.done()}, return_when=FIRST_COMPLETED)
    ready = [at for at, signal in enumerate(signals) if signal.done()][:wanted]
    others = sorted(set(range(len(refs))).difference(ready))
    return [refs[at] for at in ready], [refs[at] for at in others]


def _signal(ref: object) -> Future[Any]:
    match ref:
        case HasReadySignal():
            return ref.coming
        case Future():
            return ref
    return _NOW
