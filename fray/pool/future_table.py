"""The futures of a pool with a queue, by task, and what outcomes make of them."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from fray.futures import GeneratorFuture, TaskFuture
from fray.pool.dispatcher import PoolClosed, TaskKillsWorkers
from fray_agents.rpc.wire.serialization import Payload, unpack_error
from fray_layouts.pool_records import TaskOutcome


class FutureTable:
    """Every task that this driver knows; may be used by many threads.

    Args:
        own_only: tasks that others have submitted are not entered.
    """

    def __init__(self, own_only: bool = False) -> None:
        self._own_only = own_only
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._futures: dict[str, Future[Any]] = {}
        self._items: dict[str, int] = {}
        self._open: set[str] = set()
        self._anonymous: set[str] = set()
        self._closed = ""
        self._ended_at = time.monotonic()

    @property
    def futures(self) -> Mapping[str, Future[Any]]:
        """By key, in the order in which they became known."""
        return MappingProxyType(self._futures)

    @property
    def unfinished(self) -> int:
        """How many are not done."""
        return len(self._open)

    @property
    def closed(self) -> str:
        """Why it takes no tasks any more; "" while it does."""
        return self._closed

    @property
    def calm(self) -> float:
        """Seconds for which there has been nothing to do."""
        return 0.0 if self._open else time.monotonic() - self._ended_at

    def enter(self, key: str, yields: bool = False, anonymous: bool = False) -> Future[Any]:
        """The future of a task, a new one if it was not known. Raises PoolClosed.

        Args:
            yields: it is a generator's.
            anonymous: nobody will ask for it by its key, so its result is not kept here.
        """
        with self._lock:
            if self._closed:
                raise PoolClosed(self._closed)
            known = self._futures.get(key)
            if known is None:
                known = self._futures[key] = GeneratorFuture() if yields else TaskFuture()
                known.set_running_or_notify_cancel()
                self._open.add(key)
                if anonymous:
                    self._anonymous.add(key)
            return known

    def withdraw(self, keys: Iterable[str], error: BaseException) -> None:
        """Forget tasks that could not be submitted; who has their futures already gets the error."""
        for key in keys:
            self._end(key, error)
            self._futures.pop(key, None)

    def take(self, outcomes: Iterable[TaskOutcome]) -> None:
        """Learn what has come of tasks; what is known already changes nothing."""
        if self._closed:
            return
        # what is known of a task's kind comes first: its outcome may have been written before that
        for outcome in sorted(outcomes, key=lambda outcome: outcome.kind != "task"):
            if outcome.task in self._anonymous and outcome.task not in self._open:
                continue
            if self._own_only and outcome.task not in self._futures:
                continue
            if outcome.kind == "task":
                self.enter(outcome.task, yields=bool(outcome.number))
            else:
                self._settle(self.enter(outcome.task, outcome.kind in ("item", "end")), outcome)

    def await_all(self) -> None:
        """Return once all are done."""
        with self._lock:
            self._changed.wait_for(lambda: not self._open)

    def fail_all(self, error: Exception) -> None:
        """Give up what is not done."""
        for key in list(self._open):
            self._end(key, error)

    def close(self, why: str) -> None:
        """Give up what is not done, and take nothing more."""
        with self._lock:
            self._closed = self._closed or why
        self.fail_all(PoolClosed(self._closed))

    def _settle(self, future: Future[Any], outcome: TaskOutcome) -> None:
        if future.done():
            return
        try:
            self._apply(future, outcome)
        except (Exception, SystemExit) as error:  # the classes may live in modules that only the worker has
            self._end(outcome.task, error)

    def _apply(self, future: Future[Any], outcome: TaskOutcome) -> None:
        match outcome.kind:
            case "item" if isinstance(future, GeneratorFuture):
                self._produce(future, outcome)
            case "end" if isinstance(future, GeneratorFuture):
                self._end(outcome.task, None)
            case "value":
                self._end(outcome.task, None, pickle.loads(outcome.data))
            case "error":
                self._end(outcome.task, unpack_error(Payload(outcome.data)))
            case "dead":
                self._end(outcome.task, TaskKillsWorkers(f"the task was given up: {outcome.data.decode()}"))

    def _produce(self, future: GeneratorFuture[Any], outcome: TaskOutcome) -> None:
        """A generator that runs again yields again; what it yielded before is known."""
        expected = self._items.get(outcome.task, 0)
        if outcome.number == expected:
            value = pickle.loads(outcome.data)
            self._items[outcome.task] = expected + 1
            future.produce(value)

    def _end(self, key: str, error: BaseException | None, value: object = None) -> None:
        future = self._futures.get(key)
        if future is None:
            return
        with suppress(InvalidStateError):  # it was ended from two threads at once, and the first has said how
            if isinstance(future, GeneratorFuture):
                future.finish(error)
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)
        with self._lock:
            self._open.discard(key)
            self._items.pop(key, None)
            if key in self._anonymous:
                self._futures.pop(key, None)
            self._ended_at = time.monotonic()
            self._changed.notify_all()
