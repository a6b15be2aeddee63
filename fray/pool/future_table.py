"""The futures of a pool with a queue, by task; outcomes that were read are applied to them."""

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from fray.futures import GeneratorFuture, TaskFuture
from fray.pool.dispatcher import PoolClosed, TaskKillsWorkers
from fray_agents.rpc.wire.serialization import Payload, unpack_error
from fray_layouts.pool_records import OutcomeKind, TaskOutcome, key_and_run, task_id


class FutureTable:
    """The tasks that this driver knows, and their futures; may be used by many threads.

    Args:
        own_only: leave tasks out that other drivers submitted.
        tell: see `TaskFuture`.
    """

    def __init__(self, own_only: bool = False, tell: Callable[[], str] | None = None) -> None:
        self._own_only = own_only
        self._tell = tell
        self._submitted = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._futures: dict[str, TaskFuture[Any]] = {}
        self._by_key: dict[str, TaskFuture[Any]] = {}
        self._runs: dict[str, int] = {}  # of the keys that were run again
        self._items: dict[str, int] = {}
        self._open: set[str] = set()
        self._anonymous: set[str] = set()
        self._closed = ""
        self._ended_at = time.monotonic()

    @property
    def futures(self) -> Mapping[str, TaskFuture[Any]]:
        """The futures by key, each of its latest run, in the order in which the keys became known."""
        return MappingProxyType(self._by_key)

    @property
    def unfinished(self) -> int:
        return len(self._open)

    @property
    def submitted(self) -> int:
        """How many tasks became known."""
        return self._submitted

    @property
    def closed(self) -> str:
        """Why it takes no tasks any more; "" while it does."""
        return self._closed

    @property
    def idle_seconds(self) -> float:
        """For how long all tasks have been done; 0 while one is not."""
        return 0.0 if self._open else time.monotonic() - self._ended_at

    def next_run(self, key: str) -> str:
        """The id of the task that runs a key once more."""
        return task_id(key, self._runs.get(key, 1) + 1)

    def enter(self, task: str, yields: bool = False, anonymous: bool = False) -> TaskFuture[Any]:
        """The future of a task, a new one if the task was not known. Raises PoolClosed.

        Args:
            yields: the task is a generator's.
            anonymous: nobody will ask for the task by its key, so its result is not kept here.
        """
        with self._lock:
            if self._closed:
                raise PoolClosed(self._closed)
            known = self._futures.get(task)
            if known is None:
                future: TaskFuture[Any] = GeneratorFuture() if yields else TaskFuture()
                future.tell = self._tell
                known = self._futures[task] = future
                self._submitted += 1
                known.set_running_or_notify_cancel()
                self._open.add(task)
                if anonymous:
                    self._anonymous.add(task)
                key, run = key_and_run(task)
                if run >= self._runs.get(key, 1):
                    self._by_key[key] = known
                    if run > 1:
                        self._runs[key] = run
            return known

    def withdraw(self, tasks: Iterable[str], error: BaseException) -> None:
        """Forget tasks that could not be submitted; their futures get the error. A key has its run before again."""
        for task in tasks:
            self._end(task, error)
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
        """Apply outcomes to the futures; the first outcome of a task counts."""
        if self._closed:
            return
        # submissions first: they say which tasks are generators, and may have been written after an outcome
        for outcome in sorted(outcomes, key=lambda outcome: outcome.kind != OutcomeKind.SUBMITTED):
            if outcome.task in self._anonymous and outcome.task not in self._open:
                continue
            if self._own_only and outcome.task not in self._futures:
                continue
            if outcome.kind == OutcomeKind.SUBMITTED:
                self.enter(outcome.task, yields=bool(outcome.number))
            else:
                self._settle(self.enter(outcome.task, outcome.kind in (OutcomeKind.ITEM, OutcomeKind.END)), outcome)

    def await_all(self, within: float) -> bool:
        """Whether all tasks are done within so many seconds."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._open, within)

    def fail_all(self, error: Exception) -> None:
        for task in list(self._open):
            self._end(task, error)

    def close(self, why: str) -> None:
        """End what is not done with PoolClosed, and take nothing more."""
        with self._lock:
            self._closed = self._closed or why
        self.fail_all(PoolClosed(self._closed))

    def _settle(self, future: TaskFuture[Any], outcome: TaskOutcome) -> None:
        if future.done():
            return
        try:
            self._apply(future, outcome)
        except (Exception, SystemExit) as error:  # the classes may live in modules that only the worker has
            self._end(outcome.task, error)

    def _apply(self, future: TaskFuture[Any], outcome: TaskOutcome) -> None:
        match outcome.kind:
            case OutcomeKind.ITEM if isinstance(future, GeneratorFuture):
                self._produce(future, outcome)
            case OutcomeKind.END if isinstance(future, GeneratorFuture):
                self._end(outcome.task, None)
            case OutcomeKind.VALUE:
                self._end(outcome.task, None, pickle.loads(outcome.data))
            case OutcomeKind.ERROR:
                self._end(outcome.task, unpack_error(Payload(outcome.data)))
            case OutcomeKind.DEAD_LETTER:
                self._end(outcome.task, TaskKillsWorkers(f"the task was given up: {outcome.data.decode()}"))

    def _produce(self, future: GeneratorFuture[Any], outcome: TaskOutcome) -> None:
        """Hand a value of a generator on, unless a run before this one yielded it already."""
        expected = self._items.get(outcome.task, 0)
        if outcome.number == expected:
            value = pickle.loads(outcome.data)
            self._items[outcome.task] = expected + 1
            future.produce(value)

    def _end(self, task: str, error: BaseException | None, value: object = None) -> None:
        future = self._futures.get(task)
        if future is None:
            return
        with suppress(InvalidStateError):  # two threads ended it at once, and the first one decides
            if isinstance(future, GeneratorFuture):
                future.finish(error)
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)
        with self._lock:
            self._open.discard(task)
            self._items.pop(task, None)
            if task in self._anonymous:
                self._drop(task)
            self._ended_at = time.monotonic()
            self._changed.notify_all()
