"""The queue of a pool's tasks on the side of its driver, which pushes tasks and takes back those that are cancelled.

A task is taken back by the rules of the queue (`fray_coordinator.queue.cancelling`). Its outcome "cancelled" is stored
before its item is completed, so that no driver waits for it for ever, whenever this one dies.
"""

import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from fray import sync
from fray.pool.future_table import FutureTable
from fray.pool.queue_worker import QueuedTask
from fray.queue import codec
from fray.queue.file_queue import FileEngine, FileQueue
from fray_agents.threads import nobody_waits, start_thread
from fray_coordinator.pool import task_outcomes
from fray_layouts.errors import FrayError
from fray_layouts.pool_records import OutcomeKind, TaskOutcome
from fray_layouts.queue_keys import ItemPlace, TaskKeys

log = logging.getLogger("fray")

R = TypeVar("R")


class TaskQueue(FileQueue[QueuedTask]):
    """The queue of a pool's tasks, which tells where each task waits."""

    def push_tasks(self, tasks: Sequence[QueuedTask], batch: int) -> list[ItemPlace]:
        """`push_many`; returns the places of the tasks in order."""
        items = codec.encode(tasks, self._encoding)
        return sync.run(self._with_engine(lambda engine: engine.push_placed(items, batch)))

    def cancel_tasks(self, tasks: Mapping[ItemPlace, str], keys: TaskKeys) -> list[str]:
        """Cancel the tasks at these places that no worker has taken. Returns the ids of those that never run.

        Raises QueueNotFound if the pool was shut down, StoreUnavailable if the queue cannot be opened now.
        """

        async def cancelled(engine: FileEngine) -> set[ItemPlace]:
            async def note(places: Sequence[ItemPlace]) -> None:
                outcomes = [TaskOutcome(tasks[place], OutcomeKind.CANCELLED) for place in places]
                await task_outcomes.write_outcomes(engine.queue.core, keys, outcomes)

            return await engine.cancel(tasks, note)

        return [tasks[place] for place in sync.run(self._with_engine(cancelled))]

    async def _with_engine(self, act: Callable[[FileEngine], Awaitable[R]]) -> R:
        engine = await self._engine.get()
        assert isinstance(engine, FileEngine), "a FileQueue opens no other"
        return await act(engine)


class TaskCanceller:
    """Cancels waiting tasks of one driver, together those that are asked for while others are being cancelled.

    It has a thread only while there is something to cancel. Callbacks of cancelled futures run in that thread and may
    cancel other tasks, so the next thread begins with these before any callback is called.
    """

    def __init__(self, queue: TaskQueue, keys: TaskKeys, table: FutureTable) -> None:
        self._queue = queue
        self._keys = keys
        self._table = table
        self._lock = threading.Lock()
        self._answers: dict[str, Future[bool]] = {}
        self._asked: list[str] = []
        self._busy = False

    def take_back(self, task: str, wait: bool) -> bool:
        """Cancel a task that no worker has taken; see `TaskFuture.take_back`."""
        with self._lock:
            answer = self._answers.get(task)
            if answer is None:
                answer = self._answers[task] = sync.running_future()
                self._asked.append(task)
                self._begin()
        if not wait or not answer.result():
            return False
        self._table.end_cancelled(task)
        return True

    def _begin(self) -> None:
        """Have a thread cancel what was asked for, unless one runs already. The caller holds the lock."""
        if self._busy or not self._asked:
            return
        try:
            start_thread(self._cancel_asked, "fray-cancel", nobody_waits)  # whatever is raised, the answers are set
            self._busy = True
        except RuntimeError as error:  # no thread can be started; who asks again tries again
            log.warning("%d tasks were not cancelled, and go on: %s", len(self._asked), error)
            for task in self._asked:
                self._answers.pop(task).set_result(False)
            self._asked = []

    def _cancel_asked(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        places = {place: task for task in asked if (place := self._table.place_of(task)) is not None}
        taken: list[str] = []
        try:
            if places:
                taken = self._queue.cancel_tasks(places, self._keys)
        except FrayError as error:
            log.warning("%d tasks were not cancelled, and go on: %s", len(places), error)
        finally:
            self._answer(asked, taken)

    def _answer(self, asked: Sequence[str], taken: Collection[str]) -> None:
        with self._lock:
            self._busy = False
            self._begin()
        for task in asked:
            self._answers[task].set_result(task in taken)
        try:
            for task in taken:
                self._table.end_cancelled(task)
        finally:
            with self._lock:
                for task in asked:
                    del self._answers[task]
