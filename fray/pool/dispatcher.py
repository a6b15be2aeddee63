"""Which worker gets which task: the one with the least to do, as soon as it has room.

A worker whose tasks are quick is given several ahead, so that it never waits for the next one; never more than a few
milliseconds' worth, so that no task waits behind a long one while other workers idle.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from fray.errors import Permanent
from fray.pool.pool_task import PoolTask

PREFETCH_SECONDS = 0.005
MAX_PREFETCH = 256
_PACE_SAMPLES = 16


class TaskKillsWorkers(Permanent, RuntimeError):
    """The task was given up: each worker that ran it died. Look at the workers' logs; it may need more memory."""


class PoolClosed(Permanent, RuntimeError):
    """The pool takes no tasks any more, and the task was not done: make another pool."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A task came to its end on a worker: `value`, or what it raised. seconds: its own, where they are known."""

    seconds: float | None = None
    value: object = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The worker died. `started`: the first of its tasks may have run."""

    why: str
    started: bool = True


class Worker(Protocol):
    """Where tasks are sent; runs them one after the other, in order."""

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        """Start the task; `ended` is called once, from any thread."""
        ...


@dataclass(slots=True, eq=False)
class _WorkerState:
    """One worker, what lies before it, how long its latest tasks took in seconds, and how many it may have at once."""

    worker: Worker
    tasks: deque[PoolTask] = field(default_factory=deque)
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_SAMPLES))
    limit: int = 1

    def room(self) -> int:
        return self.limit - len(self.tasks)

    def learn(self, seconds: float | None) -> None:
        if seconds is None:
            return
        self.pace.append(max(seconds, PREFETCH_SECONDS / MAX_PREFETCH))
        self.limit = max(1, int(PREFETCH_SECONDS / max(self.pace)))


class Dispatcher:
    """All tasks that are not done, and the workers that do them.

    Args:
        max_deaths: workers that may die of one task before it is given up.
        on_loss: told the name of each worker that is gone.
        on_join: told that there is one more.
    """

    def __init__(
        self, max_deaths: int, on_loss: Callable[[str], None], on_join: Callable[[], None] = lambda: None
    ) -> None:
        self._max_deaths = max_deaths
        self._on_loss = on_loss
        self._on_join = on_join
        self._lock = threading.Lock()
        self._all_done = threading.Condition(self._lock)
        self._unfinished = 0
        self._closed = ""
        self._backlog: deque[PoolTask] = deque()
        self._desks: dict[str, _WorkerState] = {}
        self._outbox: list[tuple[str, _WorkerState, PoolTask]] = []
        self._sending = False

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        return len(self._desks)

    @property
    def unfinished(self) -> int:
        """How many tasks are not done."""
        return self._unfinished

    @property
    def closed(self) -> str:
        """Why it takes no tasks any more; "" while it does."""
        return self._closed

    def idle(self) -> list[str]:
        """Names of the workers with nothing to do."""
        with self._lock:
            return [name for name, desk in self._desks.items() if not desk.tasks]

    def submit(self, tasks: Iterable[PoolTask]) -> None:
        """Take tasks; they go out in this order. Raises PoolClosed."""
        added = list(tasks)
        with self._lock:
            if self._closed:
                raise PoolClosed(self._closed)
            self._backlog.extend(added)
            self._unfinished += len(added)
            self._assign_all()
        for task in added:
            task.future.add_done_callback(self._count_done)
        self._send()

    def join(self, name: str, worker: Worker) -> None:
        """A worker is there; a name that is known already is left as it is."""
        with self._lock:
            if name not in self._desks:
                self._desks[name] = _WorkerState(worker)
            self._assign_all()
        self._send()
        self._on_join()

    def dismiss(self, name: str) -> bool:
        """Send a worker nothing more, if it has nothing to do; whether it had nothing."""
        with self._lock:
            desk = self._desks.get(name)
            if desk is None or desk.tasks:
                return False
            del self._desks[name]
            return True

    def drain(self) -> None:
        """Return once everything is done."""
        with self._lock:
            self._all_done.wait_for(lambda: self._unfinished == 0)

    def close(self, why: str) -> None:
        """Give up what is not done, and take nothing more."""
        with self._lock:
            left = [*self._backlog, *(task for desk in self._desks.values() for task in desk.tasks)]
            self._closed = why
            self._backlog.clear()
            for desk in self._desks.values():
                desk.tasks.clear()  # what still comes back is of no use any more
            self._desks.clear()
        for task in left:
            if _begins(task):
                _settle(task, TaskDone(error=PoolClosed(why)))

    def _assign_all(self) -> None:
        while self._backlog and (free := self._freest()) is not None:
            self._assign(*free, max(1, len(self._backlog) // len(self._desks)))

    def _freest(self) -> tuple[str, _WorkerState] | None:
        """The worker with the fewest tasks before it, if any has room."""
        roomy = [(name, desk) for name, desk in self._desks.items() if desk.room() > 0]
        return min(roomy, key=lambda item: len(item[1].tasks), default=None)

    def _assign(self, name: str, desk: _WorkerState, most: int) -> None:
        """Assign up to `most` of the tasks that wait."""
        while most > 0 and desk.room() > 0 and self._backlog:
            task = self._backlog.popleft()
            if _begins(task):
                most -= 1
                desk.tasks.append(task)
                self._outbox.append((name, desk, task))

    def _send(self) -> None:
        """Send what was assigned, outside of the lock.

        A task may end while it is sent, and its end lead back here: whoever sends already goes on with what that adds.
        """
        while True:
            with self._lock:
                if self._sending or not self._outbox:
                    return
                self._sending, batch, self._outbox = True, self._outbox, []
            for name, desk, task in batch:
                desk.worker.send(task, functools.partial(self._ended, name, desk))
            with self._lock:
                self._sending = False

    def _ended(self, name: str, desk: _WorkerState, task: PoolTask, end: TaskDone | WorkerDied) -> None:
        if isinstance(end, WorkerDied):
            self._lost(name, desk, end)
            return
        with self._lock:
            if task not in desk.tasks:
                return
            desk.tasks.remove(task)
            desk.learn(end.seconds)
            if self._desks.get(name) is desk:
                self._assign(name, desk, len(self._backlog))
        self._send()
        _settle(task, end)

    def _lost(self, name: str, desk: _WorkerState, end: WorkerDied) -> None:
        """What the worker had goes to others; the first of it is what the worker may have died of."""
        condemned = None
        with self._lock:
            if self._desks.get(name) is not desk:
                return
            del self._desks[name]
            first = desk.tasks[0] if desk.tasks else None
            if first is not None and end.started:
                first.deaths += 1
                if first.deaths >= self._max_deaths:
                    condemned = desk.tasks.popleft()
            self._backlog.extendleft(reversed(desk.tasks))
            self._assign_all()
        self._send()
        if condemned is not None:
            text = f"it was given up: {condemned.deaths} workers died while they ran it, the last because: {end.why}"
            _settle(condemned, TaskDone(error=TaskKillsWorkers(text)))
        self._on_loss(name)

    def _count_done(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1
            if self._unfinished == 0:
                self._all_done.notify_all()


def _begins(task: PoolTask) -> bool:
    """False if it was cancelled before it was sent; after this it cannot be."""
    return task.future.running() or task.future.set_running_or_notify_cancel()


def _settle(task: PoolTask, end: TaskDone) -> None:
    if end.error is not None:
        task.future.set_exception(end.error)
    else:
        task.future.set_result(end.value)
