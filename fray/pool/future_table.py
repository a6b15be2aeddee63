"""The futures of a pool: the table to which outcomes are applied, and an iterator over those that are done."""

import asyncio
import pickle
import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from fray.futures import GeneratorFuture, TaskFuture
from fray.pool.dispatcher import PoolClosed, TaskKillsWorkers
from fray.wait_line import progress_shown, wait_with_progress
from fray_layouts.queue_keys import ItemPlace
from fray_layouts.queue_records import OutcomeKind, TaskOutcome, key_and_run, task_id
from fray_rpc.wire.serialization import Payload, unpack_error

F = TypeVar("F", bound=Future[Any])


class CompletedFutures(Iterator[F], AsyncIterator[F]):
    """Iterates over futures in the order in which they are done, in a thread with `for` or in a loop with `async for`.

    Args:
        progress: returns the pool's progress, for people.
        timeout: seconds for all of them, from the first step on; afterwards it raises the builtin TimeoutError.
        title: title of a progress bar on stderr, if that is a terminal; "" shows none.
    """

    def __init__(
        self, futures: Iterable[F], progress: Callable[[], str], timeout: float | None = None, title: str = ""
    ) -> None:
        self._futures = list(dict.fromkeys(futures))
        self._progress = progress
        self._timeout = timeout
        self._title = title
        self._in_thread = self._awaited_in_thread()
        self._in_loop = self._awaited_in_loop()

    def __next__(self) -> F:
        return next(self._in_thread)

    async def __anext__(self) -> F:
        return await anext(self._in_loop)

    def _awaited_in_thread(self) -> Generator[F, None, None]:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in self._futures:
            future.add_done_callback(done.put)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        taken: list[F] = []

        def take(within: float) -> bool:
            with suppress(queue.Empty):
                taken.append(done.get(timeout=max(within, 0.0)))
            return bool(taken)

        with _progress_bar(self._title, len(self._futures)) as advance:
            for number in range(len(self._futures)):
                left = None if deadline is None else deadline - time.monotonic()
                if not wait_with_progress(take, left, None if self._title else self._progress):
                    raise self._too_late(number)
                yield taken.pop()
                advance()

    async def _awaited_in_loop(self) -> AsyncGenerator[F, None]:
        loop, done = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def put(future: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended, so no coroutine waits there any more
                loop.call_soon_threadsafe(done.put_nowait, future)

        for future in self._futures:
            future.add_done_callback(put)
        deadline = None if self._timeout is None else loop.time() + self._timeout
        with _progress_bar(self._title, len(self._futures)) as advance:
            for number in range(len(self._futures)):
                try:
                    async with asyncio.timeout_at(deadline):
                        future = await self._with_progress(done.get())
                except TimeoutError:
                    raise self._too_late(number) from None
                yield future
                advance()

    async def _with_progress(self, waiting: Coroutine[Any, Any, Any]) -> Any:
        if self._title:  # the bar shows the progress
            return await waiting
        with progress_shown(self._progress):
            return await waiting

    def _too_late(self, done: int) -> TimeoutError:
        left, count = len(self._futures) - done, len(self._futures)
        return TimeoutError(f"{left} of {count} tasks have not ended after {self._timeout:g} s: {self._progress()}")


@contextmanager
def _progress_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr. Each call of the function that it gives advances the bar by one, up to `total`."""
    if not title:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda: progress.advance(bar)


class FutureTable:
    """The tasks that this driver knows, and their futures. It may be used by many threads.

    Args:
        own_only: whether to ignore tasks that other drivers submitted.
        progress: see `TaskFuture`.
        take_back: `TaskFuture.take_back` of the task whose id it gets; None if no task can be taken back.
    """

    def __init__(
        self,
        own_only: bool = False,
        progress: Callable[[], str] | None = None,
        take_back: Callable[[str, bool], bool] | None = None,
    ) -> None:
        self._own_only = own_only
        self._progress = progress
        self._take_back = take_back
        self._submitted = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._futures: dict[str, TaskFuture[Any]] = {}
        self._by_key: dict[str, TaskFuture[Any]] = {}
        self._runs: dict[str, int] = {}  # the number of the latest run, for keys that were run again
        self._items: dict[str, int] = {}
        self._places: dict[str, ItemPlace | None] = {}
        self._open: set[str] = set()
        self._anonymous: set[str] = set()
        self._closed = ""
        self._ended_at = time.monotonic()

    @property
    def futures(self) -> Mapping[str, TaskFuture[Any]]:
        """The future of each key's latest run, in the order in which the keys became known."""
        return MappingProxyType(self._by_key)

    @property
    def unfinished(self) -> int:
        return len(self._open)

    @property
    def submitted(self) -> int:
        """The number of tasks that became known."""
        return self._submitted

    @property
    def closed(self) -> str:
        """The reason why it is closed and accepts no more tasks; "" while it is open."""
        return self._closed

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last task was done; 0 while a task is unfinished."""
        return 0.0 if self._open else time.monotonic() - self._ended_at

    def next_run(self, key: str) -> str:
        """The id of the task that runs a key once more."""
        return task_id(key, self._runs.get(key, 1) + 1)

    def enter(self, task: str, yields: bool = False, anonymous: bool = False) -> TaskFuture[Any]:
        """Return the future of a task, and add the task if it was not known. Raises PoolClosed if the table is closed.

        Args:
            yields: whether the task's function is a generator function.
            anonymous: whether the task has no key of the user's. Then the table drops it once it has ended.
        """
        with self._lock:
            if self._closed:
                raise PoolClosed(self._closed)
            known = self._futures.get(task)
            if known is None:
                key, run = key_and_run(task)
                future: TaskFuture[Any] = GeneratorFuture() if yields else TaskFuture()
                future.progress = self._progress
                if self._take_back is not None:
                    future.take_back = partial(self._take_back, task)
                known = self._futures[task] = future
                self._submitted += 1
                self._open.add(task)
                if anonymous:
                    self._anonymous.add(task)
                if run >= self._runs.get(key, 1):
                    self._by_key[key] = known
                    if run > 1:
                        self._runs[key] = run
            return known

    def note_place(self, task: str, place: ItemPlace) -> None:
        """Note where an unfinished task waits in the queue. If it waits twice, nothing takes it back."""
        with self._lock:
            if task in self._open:
                self._places[task] = place if self._places.get(task, place) == place else None

    def place_of(self, task: str) -> ItemPlace | None:
        """Where an unfinished task waits; None if that is not known."""
        return self._places.get(task)

    def end_cancelled(self, task: str) -> None:
        """End a task that was cancelled, so that no worker runs it."""
        self._end(task, TaskFuture.end_cancelled)

    def withdraw(self, tasks: Iterable[str], error: BaseException) -> None:
        """Drop tasks that could not be submitted; their futures raise `error`. Keys have their earlier run again."""
        for task in tasks:
            self._end(task, _failing(error))
            self._drop(task)

    def _drop(self, task: str) -> None:
        dropped = self._futures.pop(task, None)
        key, run = key_and_run(task)
        if dropped is None or self._by_key.get(key) is not dropped:
            return
        before = self._futures.get(task_id(key, run - 1)) if run > 1 else None
        if before is None:
            del self._by_key[key]
        else:
            self._by_key[key] = before
            self._runs[key] = run - 1

    def apply(self, outcomes: Iterable[TaskOutcome]) -> None:
        """Apply outcomes to the futures. Of several outcomes of a task the first one counts."""
        if self._closed:
            return
        # Submissions first: they say which tasks are generators, and may have been written after an outcome.
        for outcome in sorted(outcomes, key=lambda outcome: outcome.kind != OutcomeKind.SUBMITTED):
            if outcome.task in self._anonymous and outcome.task not in self._open:
                continue
            if self._own_only and outcome.task not in self._futures:
                continue
            if outcome.kind == OutcomeKind.SUBMITTED:
                self.enter(outcome.task, yields=bool(outcome.number))
                if (place := ItemPlace.parse(outcome.data.decode(errors="replace"))) is not None:
                    self.note_place(outcome.task, place)
            else:
                self._settle(self.enter(outcome.task, outcome.kind in (OutcomeKind.ITEM, OutcomeKind.END)), outcome)

    def await_all(self, within: float) -> bool:
        """Wait for all tasks, at most `within` seconds. Returns whether all are done."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._open, within)

    def fail_all(self, error: Exception) -> None:
        for task in list(self._open):
            self._end(task, _failing(error))

    def close(self, why: str) -> None:
        """End every unfinished task with PoolClosed, and accept no more."""
        with self._lock:
            self._closed = self._closed or why
        self.fail_all(PoolClosed(self._closed))

    def _settle(self, future: TaskFuture[Any], outcome: TaskOutcome) -> None:
        if future.done():
            return
        try:
            self._apply(future, outcome)
        except BaseException as error:  # unpickling may need modules that only the worker has
            self._end(outcome.task, _failing(error))

    def _apply(self, future: TaskFuture[Any], outcome: TaskOutcome) -> None:
        match outcome.kind:
            case OutcomeKind.ITEM if isinstance(future, GeneratorFuture):
                self._produce(future, outcome)
            case OutcomeKind.END if isinstance(future, GeneratorFuture):
                self._end(outcome.task, _returning(None))
            case OutcomeKind.VALUE:
                self._end(outcome.task, _returning(pickle.loads(outcome.data)))
            case OutcomeKind.ERROR:
                self._end(outcome.task, _failing(unpack_error(Payload(outcome.data))))
            case OutcomeKind.CANCELLED:
                self.end_cancelled(outcome.task)
            case OutcomeKind.DEAD_LETTER:
                self._end(outcome.task, _failing(TaskKillsWorkers(f"the task was given up: {outcome.data.decode()}")))

    def _produce(self, future: GeneratorFuture[Any], outcome: TaskOutcome) -> None:
        """Pass on a value of a generator, unless an earlier run has yielded it already."""
        expected = self._items.get(outcome.task, 0)
        if outcome.number == expected:
            value = pickle.loads(outcome.data)
            self._items[outcome.task] = expected + 1
            future.produce(value)

    def _end(self, task: str, end: Callable[[Any], None]) -> None:
        """End a task's future by calling `end` with it."""
        future = self._futures.get(task)
        if future is None:
            return
        with suppress(InvalidStateError):  # two threads ended it at the same time; the first one counts
            end(future)
        with self._lock:
            is_first = task in self._open
            self._open.discard(task)
            self._items.pop(task, None)
            self._places.pop(task, None)
            if task in self._anonymous:
                self._drop(task)
            self._ended_at = time.monotonic()
            self._changed.notify_all()
        if is_first and future.cancelled():
            future.set_running_or_notify_cancel()  # tells `concurrent.futures.wait`, once


def _returning(value: object) -> Callable[[Any], None]:
    """Ends a future with this value; that of a generator with the values that came before."""
    return lambda future: future.finish() if isinstance(future, GeneratorFuture) else future.set_result(value)


def _failing(error: BaseException) -> Callable[[Any], None]:
    """Ends a future with this error."""
    return lambda future: future.finish(error) if isinstance(future, GeneratorFuture) else future.set_exception(error)
