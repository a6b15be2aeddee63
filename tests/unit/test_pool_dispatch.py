"""Which worker of a pool gets which task, and what happens to tasks whose worker dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fray.pool import pool_task
from fray.pool.dispatcher import Dispatcher, PoolClosed, TaskDone, TaskKillsWorkers, WorkerDied, give_up
from fray.pool.pool_task import PoolTask, packed_function


class Hands:
    """A worker whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[PoolTask, Callable[[PoolTask, TaskDone | WorkerDied], None]]] = []

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        self.sent.append((task, ended))

    def end(self, result: TaskDone | WorkerDied) -> PoolTask:
        task, ended = self.sent.pop(0)
        ended(task, result)
        return task


class Instant:
    """A worker that is done before `send` returns."""

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        ended(task, TaskDone(0.000001, "instantly"))


def task() -> PoolTask:
    return pool_task.packed_task("worker", packed_function(len), ("abc",), {})


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def dispatcher(lost: list[str]) -> Dispatcher:
    return Dispatcher(3, lost.append, lambda: None, lambda task, worker, why: give_up(task, why))


def test_tasks_wait_for_the_first_worker(dispatcher: Dispatcher) -> None:
    only, hands = task(), Hands()
    dispatcher.submit([only])
    dispatcher.join("a", hands)
    hands.end(TaskDone(1.0, 3))
    assert only.future.result() == 3


def test_a_long_task_holds_up_nobody_elses(dispatcher: Dispatcher) -> None:
    busy, free = Hands(), Hands()
    dispatcher.join("busy", busy)
    dispatcher.join("free", free)
    dispatcher.submit([task() for _ in range(5)])
    for _ in range(4):
        free.end(TaskDone(1.0))
    assert len(busy.sent) == 1
    assert not free.sent
    assert dispatcher.unfinished == 1


def test_quick_tasks_are_sent_ahead_and_slow_ones_are_not(dispatcher: Dispatcher) -> None:
    quick, slow = Hands(), Hands()
    dispatcher.join("quick", quick)
    dispatcher.join("slow", slow)
    dispatcher.submit([task() for _ in range(400)])
    quick.end(TaskDone(0.0001))
    slow.end(TaskDone(0.5))
    assert len(quick.sent) == 50
    assert len(slow.sent) == 1


def test_an_exception_of_a_task_is_its_futures_exception(dispatcher: Dispatcher) -> None:
    only, hands = task(), Hands()
    dispatcher.join("a", hands)
    dispatcher.submit([only])
    hands.end(TaskDone(error=KeyError("x")))
    assert isinstance(only.future.exception(), KeyError)


def test_a_dead_workers_tasks_go_elsewhere_first(dispatcher: Dispatcher, lost: list[str]) -> None:
    dying, other = Hands(), Hands()
    dispatcher.join("dying", dying)
    dispatcher.submit([first := task(), second := task()])
    dispatcher.join("other", other)
    other.end(TaskDone(1.0))
    dying.end(WorkerDied("killed"))
    assert [sent for sent, _ in other.sent] == [first]
    assert lost == ["dying"]
    assert second.future.done()


def test_a_worker_that_says_twice_that_it_is_gone_is_gone_once(dispatcher: Dispatcher, lost: list[str]) -> None:
    dying = Hands()
    dispatcher.join("dying", dying)
    dispatcher.submit([task() for _ in range(30)])
    dying.end(TaskDone(0.0001))
    for _ in range(3):
        dying.end(WorkerDied("killed"))
    assert lost == ["dying"]
    assert dispatcher.unfinished == 29
    dispatcher.join("next", Instant())
    assert dispatcher.unfinished == 0


def test_a_task_that_kills_its_workers_is_given_up_and_its_neighbours_are_not(dispatcher: Dispatcher) -> None:
    warm = Hands()
    dispatcher.join("warm", warm)
    dispatcher.submit([task()])
    warm.end(TaskDone(0.0001))
    poison, neighbour = task(), task()
    dispatcher.submit([poison, neighbour])
    warm.end(WorkerDied("out of memory"))
    for number in range(2):
        hands = Hands()
        dispatcher.join(f"next-{number}", hands)
        hands.end(WorkerDied("out of memory"))
    with pytest.raises(TaskKillsWorkers, match="out of memory"):
        poison.future.result(timeout=0)
    last = Hands()
    dispatcher.join("last", last)
    assert last.end(TaskDone(0.0, 1)) is neighbour


def test_a_worker_that_never_started_the_task_is_not_held_against_it(dispatcher: Dispatcher) -> None:
    only = task()
    dispatcher.submit([only])
    for number in range(5):
        hands = Hands()
        dispatcher.join(f"worker-{number}", hands)
        hands.end(WorkerDied("no route", started=False))
    assert only.deaths == 0


def test_workers_that_are_done_at_once_do_not_exhaust_the_stack(dispatcher: Dispatcher) -> None:
    many = [task() for _ in range(5000)]
    dispatcher.submit(many)
    dispatcher.join("instant", Instant())
    assert all(each.future.result(timeout=0) == "instantly" for each in many)


def test_a_task_cancelled_in_time_is_never_sent(dispatcher: Dispatcher) -> None:
    only, hands = task(), Hands()
    dispatcher.submit([only])
    assert only.future.cancel()
    dispatcher.join("a", hands)
    assert not hands.sent


def test_a_task_cancelled_while_it_waits_holds_up_nobody(dispatcher: Dispatcher) -> None:
    hands = Hands()
    dispatcher.join("a", hands)
    dispatcher.submit([first := task(), cancelled := task(), last := task()])
    assert cancelled.future.cancel()
    assert hands.end(TaskDone(1.0)) is first
    assert hands.end(TaskDone(1.0)) is last
    assert dispatcher.unfinished == 0


def test_a_cancelled_task_is_not_waited_for(dispatcher: Dispatcher) -> None:
    dispatcher.submit([only := task()])
    assert only.future.cancel()
    assert dispatcher.drain(200)


def test_closing_leaves_cancelled_tasks_as_they_are(dispatcher: Dispatcher) -> None:
    dispatcher.submit([cancelled := task(), waiting := task()])
    assert cancelled.future.cancel()
    dispatcher.close("shut down")
    assert cancelled.future.cancelled()
    assert isinstance(waiting.future.exception(timeout=0), PoolClosed)


def test_only_a_worker_without_tasks_can_be_dismissed(dispatcher: Dispatcher) -> None:
    dispatcher.join("busy", Hands())
    dispatcher.submit([task()])
    dispatcher.join("idle", Hands())
    assert dispatcher.idle() == ["idle"]
    assert dispatcher.dismiss("idle")
    assert not dispatcher.dismiss("busy")
    assert dispatcher.workers == 1


def test_an_unfinished_task_raises_pool_closed_when_the_pool_closes(dispatcher: Dispatcher) -> None:
    sent, waiting, hands = task(), task(), Hands()
    dispatcher.join("a", hands)
    dispatcher.submit([sent, waiting])
    dispatcher.close("shut down")
    hands.end(TaskDone(0.1, "too late"))
    assert dispatcher.unfinished == 0
    for each in (sent, waiting):
        with pytest.raises(PoolClosed):
            each.future.result(timeout=0)
