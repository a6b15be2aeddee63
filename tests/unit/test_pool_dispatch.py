"""Which worker of a pool gets which task, and what becomes of tasks whose worker dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fray.pool import tasks
from fray.pool.dispatch import Dispatcher, Done, Gone, PoolClosed, TaskKillsWorkers
from fray.pool.tasks import Task, function_of


class Hands:
    """A worker whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[Task, Callable[[Task, Done | Gone], None]]] = []

    def send(self, task: Task, ended: Callable[[Task, Done | Gone], None]) -> None:
        self.sent.append((task, ended))

    def end(self, result: Done | Gone) -> Task:
        task, ended = self.sent.pop(0)
        ended(task, result)
        return task


class Instant:
    """A worker that is done before `send` returns."""

    def send(self, task: Task, ended: Callable[[Task, Done | Gone], None]) -> None:
        ended(task, Done(0.000001, "instantly"))


def task() -> Task:
    return tasks.task("worker", function_of(len), ("abc",), {})


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def dispatcher(lost: list[str]) -> Dispatcher:
    return Dispatcher(3, lost.append)


def test_tasks_wait_for_the_first_worker(dispatcher: Dispatcher) -> None:
    only, hands = task(), Hands()
    dispatcher.submit([only])
    dispatcher.join("a", hands)
    hands.end(Done(1.0, 3))
    assert only.future.result() == 3


def test_a_long_task_holds_up_nobody_elses(dispatcher: Dispatcher) -> None:
    busy, free = Hands(), Hands()
    dispatcher.join("busy", busy)
    dispatcher.join("free", free)
    dispatcher.submit([task() for _ in range(5)])
    for _ in range(4):
        free.end(Done(1.0))
    assert len(busy.sent) == 1
    assert not free.sent
    assert dispatcher.unfinished == 1


def test_quick_tasks_are_sent_ahead_and_slow_ones_are_not(dispatcher: Dispatcher) -> None:
    quick, slow = Hands(), Hands()
    dispatcher.join("quick", quick)
    dispatcher.join("slow", slow)
    dispatcher.submit([task() for _ in range(400)])
    quick.end(Done(0.0001))
    slow.end(Done(0.5))
    assert len(quick.sent) == 50
    assert len(slow.sent) == 1


def test_what_a_task_raised_is_its_futures_exception(dispatcher: Dispatcher) -> None:
    only, hands = task(), Hands()
    dispatcher.join("a", hands)
    dispatcher.submit([only])
    hands.end(Done(error=KeyError("x")))
    assert isinstance(only.future.exception(), KeyError)


def test_a_dead_workers_tasks_go_elsewhere_first(dispatcher: Dispatcher, lost: list[str]) -> None:
    dying, other = Hands(), Hands()
    dispatcher.join("dying", dying)
    dispatcher.submit([first := task(), second := task()])
    dispatcher.join("other", other)
    other.end(Done(1.0))
    dying.end(Gone("killed"))
    assert [sent for sent, _ in other.sent] == [first]
    assert lost == ["dying"]
    assert second.future.done()


def test_a_worker_that_says_twice_that_it_is_gone_is_gone_once(dispatcher: Dispatcher, lost: list[str]) -> None:
    dying = Hands()
    dispatcher.join("dying", dying)
    dispatcher.submit([task() for _ in range(30)])
    dying.end(Done(0.0001))
    for _ in range(3):
        dying.end(Gone("killed"))
    assert lost == ["dying"]
    assert dispatcher.unfinished == 29
    dispatcher.join("next", Instant())
    assert dispatcher.unfinished == 0


def test_a_task_that_kills_its_workers_is_given_up_and_its_neighbours_are_not(dispatcher: Dispatcher) -> None:
    warm = Hands()
    dispatcher.join("warm", warm)
    dispatcher.submit([task()])
    warm.end(Done(0.0001))
    poison, neighbour = task(), task()
    dispatcher.submit([poison, neighbour])
    warm.end(Gone("out of memory"))
    for number in range(2):
        hands = Hands()
        dispatcher.join(f"next-{number}", hands)
        hands.end(Gone("out of memory"))
    with pytest.raises(TaskKillsWorkers, match="out of memory"):
        poison.future.result(timeout=0)
    last = Hands()
    dispatcher.join("last", last)
    assert last.end(Done(0.0, 1)) is neighbour


def test_a_worker_that_never_started_the_task_is_not_held_against_it(dispatcher: Dispatcher) -> None:
    only = task()
    dispatcher.submit([only])
    for number in range(5):
        hands = Hands()
        dispatcher.join(f"worker-{number}", hands)
        hands.end(Gone("no route", started=False))
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
    assert hands.end(Done(1.0)) is first
    assert hands.end(Done(1.0)) is last
    assert dispatcher.unfinished == 0


def test_what_was_cancelled_is_not_waited_for(dispatcher: Dispatcher) -> None:
    dispatcher.submit([only := task()])
    assert only.future.cancel()
    dispatcher.drain()


def test_closing_leaves_what_was_cancelled_as_it_is(dispatcher: Dispatcher) -> None:
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


def test_what_is_not_done_when_the_pool_closes_says_so(dispatcher: Dispatcher) -> None:
    sent, waiting, hands = task(), task(), Hands()
    dispatcher.join("a", hands)
    dispatcher.submit([sent, waiting])
    dispatcher.close("shut down")
    hands.end(Done(0.1, "too late"))
    assert dispatcher.unfinished == 0
    for each in (sent, waiting):
        with pytest.raises(PoolClosed):
            each.future.result(timeout=0)
