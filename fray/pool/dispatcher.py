"""The dispatcher of a directly called pool: sends each task to the worker with the fewest tasks that has room for it.

A worker with quick tasks gets several in advance (a prefetch), so that it never waits for the next one. The prefetch is
worth a few milliseconds at most, so that no task waits behind a long one while other workers are idle.
"""

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
"""Seconds of work that one worker gets in advance: more than a message takes, and too little for a waiting task to
notice."""
MAX_PREFETCH = 256
"""Tasks that one worker gets in advance at most, so that a lost worker's tasks are soon run again."""
_PACE_SAMPLES = 16
"""Latest tasks of a worker that are measured. The longest of them decides how many it gets in advance."""


class TaskKillsWorkers(Permanent, RuntimeError):
    """The task was given up: each worker that ran it died. Look at the workers' logs; it may need more memory."""


class PoolClosed(Permanent, RuntimeError):
    """The pool is closed, and the task was not done: create another pool."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The end of a task on a worker: its value or its error. seconds: how long it took, if that is known."""

    seconds: float | None = None
    value: object = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The loss of a worker. started: whether the first of its tasks may have begun."""

    why: str
    started: bool = True


class Worker(Protocol):
    """Runs the tasks that it gets one after the other, in order."""

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        """Start the task; `ended` is called once, from any thread."""


@dataclass(slots=True, eq=False)
class _WorkerState:
    """A worker and its load.

    Attributes:
        tasks: tasks that were sent to it and have not ended, in order.
        pace: seconds that each of its latest tasks took.
        limit: number of tasks that it may have at once.
    """

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
    """Assigns unfinished tasks to workers. It may be used by many threads.

    Args:
        max_deaths: workers that may die during one task before it is given up.
        on_loss: called with the name of each worker that is lost.
        on_join: called when a worker has joined.
        give_up: called with a task that kills its workers, the name of the last of them, and the error of its call.
    """

    def __init__(
        self,
        max_deaths: int,
        on_loss: Callable[[str], None],
        on_join: Callable[[], None],
        give_up: Callable[[PoolTask, str, str], None],
    ) -> None:
        self._max_deaths = max_deaths
        self._give_up = give_up
        self._on_loss = on_loss
        self._on_join = on_join
        self._lock = threading.Lock()
        self._all_done = threading.Condition(self._lock)
        self._unfinished = 0
        self._submitted = 0
        self._closed = ""
        self._backlog: deque[PoolTask] = deque()
        self._states: dict[str, _WorkerState] = {}
        self._outbox: list[tuple[str, _WorkerState, PoolTask]] = []
        self._sending = False

    @property
    def workers(self) -> int:
        return len(self._states)

    @property
    def unfinished(self) -> int:
        return self._unfinished

    @property
    def submitted(self) -> int:
        return self._submitted

    @property
    def closed(self) -> str:
        """The reason why it is closed and accepts no more tasks; "" while it is open."""
        return self._closed

    def idle(self) -> list[str]:
        with self._lock:
            return [name for name, state in self._states.items() if not state.tasks]

    def submit(self, tasks: Iterable[PoolTask]) -> None:
        """Accept tasks, and send them in this order. Raises PoolClosed if it is closed."""
        added = list(tasks)
        with self._lock:
            if self._closed:
                raise PoolClosed(self._closed)
            self._backlog.extend(added)
            self._unfinished += len(added)
            self._submitted += len(added)
            self._assign_all()
        for task in added:
            task.future.add_done_callback(self._count_done)
        self._send()

    def join(self, name: str, worker: Worker) -> None:
        """Add a worker, unless there is one of its name already."""
        with self._lock:
            if name not in self._states:
                self._states[name] = _WorkerState(worker)
            self._assign_all()
        self._send()
        self._on_join()

    def dismiss(self, name: str) -> bool:
        """Remove a worker if it is idle. Returns whether it was removed."""
        with self._lock:
            state = self._states.get(name)
            if state is None or state.tasks:
                return False
            del self._states[name]
            return True

    def drain(self, within: float) -> bool:
        """Wait for all tasks, at most `within` seconds. Returns whether all are done."""
        with self._lock:
            return self._all_done.wait_for(lambda: self._unfinished == 0, within)

    def close(self, why: str) -> None:
        """End every unfinished task with PoolClosed, and accept no more."""
        with self._lock:
            left = [*self._backlog, *(task for state in self._states.values() for task in state.tasks)]
            self._closed = why
            self._backlog.clear()
            for state in self._states.values():
                state.tasks.clear()  # so that replies that still arrive are ignored
            self._states.clear()
        for task in left:
            if _begins(task):
                _settle(task, TaskDone(error=PoolClosed(why)))

    def _assign_all(self) -> None:
        while self._backlog and (free := self._freest()) is not None:
            self._assign(*free, limit=max(1, len(self._backlog) // len(self._states)))

    def _freest(self) -> tuple[str, _WorkerState] | None:
        roomy = [(name, state) for name, state in self._states.items() if state.room() > 0]
        return min(roomy, key=lambda item: len(item[1].tasks), default=None)

    def _assign(self, name: str, state: _WorkerState, limit: int) -> None:
        """Assign up to `limit` tasks of the backlog to a worker."""
        while limit > 0 and state.room() > 0 and self._backlog:
            task = self._backlog.popleft()
            if _begins(task):
                limit -= 1
                state.tasks.append(task)
                self._outbox.append((name, state, task))

    def _send(self) -> None:
        """Send the assigned tasks, outside of the lock.

        A task may end while it is being sent, which calls this method again. That call returns at once, and the active
        one sends the newly assigned tasks too.
        """
        while True:
            with self._lock:
                if self._sending or not self._outbox:
                    return
                self._sending, batch, self._outbox = True, self._outbox, []
            for name, state, task in batch:
                state.worker.send(task, functools.partial(self._ended, name, state))
            with self._lock:
                self._sending = False

    def _ended(self, name: str, state: _WorkerState, task: PoolTask, end: TaskDone | WorkerDied) -> None:
        if isinstance(end, WorkerDied):
            self._lost(name, state, end)
            return
        with self._lock:
            if task not in state.tasks:
                return
            state.tasks.remove(task)
            state.learn(end.seconds)
            if self._states.get(name) is state:
                self._assign(name, state, limit=len(self._backlog))
        self._send()
        _settle(task, end)

    def _lost(self, name: str, state: _WorkerState, end: WorkerDied) -> None:
        """Give a lost worker's tasks to others. The worker may have died because of the first of them."""
        condemned = None
        with self._lock:
            if self._states.get(name) is not state:
                return
            del self._states[name]
            first = state.tasks[0] if state.tasks else None
            if first is not None and end.started:
                first.deaths += 1
                if first.deaths >= self._max_deaths:
                    condemned = state.tasks.popleft()
            self._backlog.extendleft(reversed(state.tasks))
            self._assign_all()
        self._send()
        if condemned is not None:
            self._give_up(condemned, name, end.why)
        self._on_loss(name)

    def _count_done(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1
            if self._unfinished == 0:
                self._all_done.notify_all()


def give_up(task: PoolTask, why: str) -> None:
    """End a task with TaskKillsWorkers. why: the reason for the death of its last worker."""
    text = f"it was given up: {task.deaths} workers died while they ran it, the last because: {why}"
    _settle(task, TaskDone(error=TaskKillsWorkers(text)))


def _begins(task: PoolTask) -> bool:
    """Mark the task as running, so that it can no longer be cancelled. Returns False if it was cancelled before."""
    return task.future.running() or task.future.set_running_or_notify_cancel()


def _settle(task: PoolTask, end: TaskDone) -> None:
    if end.error is not None:
        task.future.set_exception(end.error)
    else:
        task.future.set_result(end.value)
