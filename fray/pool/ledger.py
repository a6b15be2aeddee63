"""The futures of a pool with a queue, by task, and what outcomes make of them."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from fray.futures import Yielding
from fray.pool.dispatch import TaskKillsWorkers
from fray_agents.rpc.serial import Packed, unpack_error
from fray_layouts.tasks import Outcome


class Ledger:
    """Every task that this driver knows; may be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._futures: dict[str, Future[Any]] = {}
        self._items: dict[str, int] = {}
        self._open: set[str] = set()
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
    def calm(self) -> float:
        """Seconds for which there has been nothing to do."""
        return 0.0 if self._open else time.monotonic() - self._ended_at

    def enter(self, key: str, yields: bool = False) -> Future[Any]:
        """The future of a task, a new one if it was not known. yields: it is a generator's."""
        with self._lock:
            known = self._futures.get(key)
            if known is None:
                known = self._futures[key] = Yielding() if yields else Future()
                known.set_running_or_notify_cancel()
                self._open.add(key)
            return known

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Learn what has come of tasks; what is known already changes nothing."""
        for outcome in outcomes:
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

    def _settle(self, future: Future[Any], outcome: Outcome) -> None:
        if future.done():
            return
        match outcome.kind:
            case "item" if isinstance(future, Yielding):
                self._produce(future, outcome)
            case "end" if isinstance(future, Yielding):
                self._end(outcome.task, None)
            case "value":
                self._value(outcome)
            case "error":
                self._end(outcome.task, unpack_error(Packed(outcome.data)))
            case "dead":
                self._end(outcome.task, TaskKillsWorkers(f"the task was given up: {outcome.data.decode()}"))

    def _value(self, outcome: Outcome) -> None:
        try:
            value = pickle.loads(outcome.data)
        except Exception as error:  # its class may live in modules that only the worker has
            self._end(outcome.task, error)
        else:
            self._end(outcome.task, None, value)

    def _produce(self, future: Yielding[Any], outcome: Outcome) -> None:
        """A generator that runs again yields again; what it yielded before is known."""
        expected = self._items.get(outcome.task, 0)
        if outcome.number == expected:
            self._items[outcome.task] = expected + 1
            future.produce(pickle.loads(outcome.data))

    def _end(self, key: str, error: BaseException | None, value: object = None) -> None:
        future = self._futures[key]
        if isinstance(future, Yielding):
            future.finish(error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
        with self._lock:
            self._open.discard(key)
            self._ended_at = time.monotonic()
            self._changed.notify_all()
