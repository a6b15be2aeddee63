"""What `run` gives back: a future, or, for a generator function, a future that also yields while the function runs."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound="Future[Any]")

_END: Any = object()


class Yielding(Future[list[T]], Generic[T]):
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


def call(function: Callable[..., Any], args: Iterable[Any], future: Future[Any]) -> None:
    """Run `function` here and put what comes of it into `future`, value by value if that is a `Yielding`."""
    try:
        result = function(*args)
        if isinstance(future, Yielding):
            for value in result:
                future.produce(value)
    except BaseException as error:
        _fail(future, error)
        if not isinstance(error, Exception):
            raise
    else:
        future.finish() if isinstance(future, Yielding) else future.set_result(result)


def _fail(future: Future[Any], error: BaseException) -> None:
    future.finish(error) if isinstance(future, Yielding) else future.set_exception(error)


def wait(futures: Sequence[F], num_returns: int = 1) -> tuple[list[F], list[F]]:
    """Exactly `num_returns` futures that are ready (fewer only if there are no more), and all the others.

    A `Yielding` is ready when its next value is there, or its end. The objects are those that were given.
    """
    wanted = min(num_returns, len(futures))
    while True:
        ready = [future for future in futures if _signal(future).done()][:wanted]
        if len(ready) == wanted:
            chosen = {id(future) for future in ready}
            return ready, [future for future in futures if id(future) not in chosen]
        concurrent.futures.wait({s for s in map(_signal, futures) if not s.done()}, return_when=FIRST_COMPLETED)


def _signal(future: Future[Any]) -> Future[Any]:
    return future.coming if isinstance(future, Yielding) else future


class Lazy(Yielding[T]):
    """A generator that runs in its consumer's thread: one step for each `next`, all of it for `result`."""

    def __init__(self, generator: Generator[T, None, None]) -> None:
        super().__init__()
        self._generator = generator
        self._announce()

    def __next__(self) -> T:
        value = next(self._generator)
        self._values.append(value)
        return value

    def result(self, timeout: float | None = None) -> list[T]:
        """All values; runs the generator to its end, however long that takes."""
        for _ in self:
            pass
        return list(self._values)
