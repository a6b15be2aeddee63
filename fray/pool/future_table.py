"""The table of the futures of a pool with a queue. It applies outcomes that were read from storage to them."""

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from fray.futures import GeneratorFuture, TaskFuture
from fray.pool.dispatcher import PoolClosed, TaskKillsWorkers
from fray_agents.rpc.wire.serialization import Payload, unpack_error
from fray_layouts.pool_records import OutcomeKind, TaskOutcome, key_and_run, task_id
from fray_layouts.queue_keys import ItemPlace


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
