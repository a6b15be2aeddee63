"""What actors do for callers on every backend; a module of tests has a fixture `client` and imports all of this."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.actor import ActorGroup, ActorUnavailableError
from fray.client import Client
from fray.current_client import current_client
from fray.types import ActorConfig, Entrypoint, JobRequest, JobStatus, ResourceConfig
from fray_layouts.errors import InvalidInput
from fray_rpc.errors import RemoteTraceback
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = ResourceConfig(cpu=0.1)


def create_group(client: Client, cls: type, *args: Any, name: str, count: int = 1, **config: Any) -> ActorGroup[Any]:
    """Small actors. config: fields of `ActorConfig`."""
    chosen = ActorConfig(**config)
    return client.create_actor_group(cls, *args, name=name, count=count, resources=SMALL, actor_config=chosen)


def create(client: Client, cls: type, *args: Any, name: str = "actor", **config: Any) -> Any:
    return create_group(client, cls, *args, name=name, **config).handles[0]


def test_calls_keep_the_actors_state(client: Client) -> None:
    counter = create(client, actors.Counter, 5)
    future = counter.add.remote(1)
    assert [counter.add(2), future.result(), counter.add.submit(number=3).result()] == [8, 6, 11]


def test_calls_made_before_the_actor_is_up_keep_their_order(client: Client) -> None:
    diary = create(client, actors.Diary)
    notes = [diary.note.remote(number) for number in range(200)]
    assert diary.read() == list(range(200))
    assert all(note.done() for note in notes)


def test_calls_with_concurrency_one_run_in_the_order_in_which_they_were_made(client: Client) -> None:
    diary = create(client, actors.Diary)
    diary.read()
    for number in range(50):
        diary.note.remote(number, wait=0.002 * (number % 3))
    assert diary.read() == list(range(50))


def test_concurrency_is_real(client: Client) -> None:
    meeting = create(client, actors.Meeting, 5, max_concurrency=5)
    assert sorted(future.result(200) for future in [meeting.arrive.remote() for _ in range(5)]) == [0, 1, 2, 3, 4]


def test_asking_in_vain_cancels_nothing_and_sends_nothing_again(client: Client) -> None:
    meeting = create(client, actors.Meeting, 2, max_concurrency=3)
    future = meeting.arrive.remote()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.result(timeout=0.01)
    assert not future.done()
    assert sorted([meeting.arrive(), future.result()]) == [0, 1], "it would have met itself"
    assert future.exception() is None


def test_exceptions_keep_their_type_and_carry_the_remote_traceback(client: Client) -> None:
    counter = create(client, actors.Counter)
    with pytest.raises(LookupError, match="nothing there") as caught:
        counter.fail("nothing there")
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in fail" in str(caught.value.__cause__)
    assert isinstance(counter.fail.remote("x").exception(), type(None) | LookupError)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        counter.missing()


def test_arguments_and_results_are_copies(client: Client) -> None:
    counter = create(client, actors.Counter)
    given = [1]
    assert counter.extend(given) == [1, 0]
    assert given == [1]


def test_coroutines_run_at_once_and_generators_are_streamed(client: Client) -> None:
    actor = create(client, actors.Async, max_concurrency=3)
    waiting = actor.wait.remote()
    actor.open()
    assert waiting.result(200) == "open"
    assert list(actor.numbers.stream(4)) == [0, 1, 2, 3]
    assert list(actor.later.stream(3)) == [0, 1, 2]


def test_every_creation_is_an_actor_of_its_own(client: Client) -> None:
    first, second = create(client, actors.Counter, 1), create(client, actors.Counter, 100)
    assert (first.add(), second.add(), first.add()) == (2, 101, 3)
    assert first != second


def test_an_actor_knows_itself_in_init_in_calls_and_in_threads(client: Client) -> None:
    group = create_group(client, actors.Self, name="selves", count=2)
    for index, handle in enumerate(group.handles):
        assert handle.here() == (index, "selves", True)
        wait_until(handle.was_called)
        assert handle.handle() == handle
    group.shutdown()


def test_an_init_that_raises_reaches_the_waiting_callers(client: Client) -> None:
    group = create_group(client, actors.Broken, name="broken", count=2)
    with pytest.raises(ActorUnavailableError, match="no such model") as caught:
        group.handles[0].anything()
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(ActorUnavailableError, match=r"only . of the 2 actors"):
        group.wait_ready()


def test_a_group_reports_its_ready_members(client: Client) -> None:
    group = create_group(client, actors.Counter, name="counters", count=3)
    ready = group.wait_ready(count=3, timeout=200)
    assert ready == group.handles
    assert (group.ready_count, group.discover_new(), group.is_done()) == (3, [], False)
    assert group.statuses() == [JobStatus.RUNNING] * 3
    assert [handle.add() for handle in ready] == [1, 1, 1]
    group.shutdown()
    wait_until(group.is_done)
    with pytest.raises(ActorUnavailableError):
        ready[0].add()


def test_as_many_handles_are_given_as_were_asked_for(client: Client) -> None:
    group = create_group(client, actors.Counter, name="several", count=3)
    group.wait_ready(timeout=200)
    assert group.wait_ready(count=2) == group.handles[:2]
    assert (group.wait_ready(count=0), group.wait_ready(count=3)) == ([], group.handles)
    with pytest.raises(InvalidInput, match="count"):
        group.wait_ready(count=-1)
    group.shutdown()


def test_calls_fail_at_once_when_their_group_was_shut_down(client: Client) -> None:
    group = create_group(client, actors.Counter, name="shut")
    handle = group.handles[0]
    assert handle.add() == 1
    group.shutdown()
    calls: list[Callable[[], object]] = [handle.add, handle.add.remote().result, lambda: next(handle.add.stream())]
    for call in calls:
        with pytest.raises(ActorUnavailableError, match="was shut down with its group"):
            call()


class Late:
    """Comes up once the file is there."""

    def __init__(self, file: Path) -> None:
        wait_until(file.exists)


def test_waiting_for_more_than_come_in_time_is_a_timeout(client: Client, tmp_path: Path) -> None:
    group = create_group(client, Late, tmp_path / "come", name="many")
    with pytest.raises(InvalidInput, match="the group has 1 actors"):
        group.wait_ready(count=2)
    with pytest.raises(TimeoutError, match="0 of 1 actors"):
        group.wait_ready(timeout=0.05)
    assert (group.discover_new(), group.ready_count) == ([], 0)
    (tmp_path / "come").touch()
    assert len(group.wait_ready(timeout=200)) == 1
    group.shutdown()


def ask(handle: Any, group: Any) -> tuple[int, int, int]:
    return handle.add(), len(group.wait_ready()), group.handles[1].add(10)


def test_handles_and_groups_work_in_other_jobs(client: Client) -> None:
    group = create_group(client, actors.Counter, name="shared", count=2)
    request = JobRequest("asker", Entrypoint.from_callable(ask, (group.handles[0], group)), resources=SMALL)
    assert client.cluster.result(client.submit(request).job_id, timeout=200) == (1, 2, 10)
    assert group.handles[0].add() == 2
    assert pickle.loads(pickle.dumps(group)).handles == group.handles
    group.shutdown()


class Nesting:
    """Creates actors of its own, and passes a group to one of them."""

    def __init__(self) -> None:
        self.group = create_group(current_client(), actors.Counter, name="inner", count=2)

    def sum(self) -> int:
        return sum(handle.add() for handle in self.group.wait_ready())

    def pids(self) -> list[int]:
        return [os.getpid(), *(handle.pid() for handle in self.group.handles)]

    def group_itself(self) -> Any:
        return self.group


def test_actors_create_actors_that_end_with_them(client: Client) -> None:
    outer = create_group(client, Nesting, name="outer")
    (handle,) = outer.wait_ready()
    assert handle.sum() == 2
    inner = handle.group_itself()
    assert inner.handles[0].add() == 2
    here = {os.getpid()}.issuperset(handle.pids())
    assert len(set(handle.pids())) == (1 if here else 3)
    outer.shutdown()
    wait_until(inner.is_done)


def test_replies_are_sent_before_an_actor_ends(client: Client) -> None:
    group = create_group(client, actors.Self, name="leaving", max_concurrency=2)
    (handle,) = group.wait_ready()
    waiting = handle.until_shutdown.remote()
    handle.here()
    group.shutdown()
    assert waiting.result(200) == "flushed"
    wait_until(group.is_done)
    assert group.statuses() == [JobStatus.STOPPED]


def test_wrong_requests_are_refused_before_anything_is_created(client: Client) -> None:
    with pytest.raises(InvalidInput, match="count"):
        create_group(client, actors.Counter, name="x", count=0)
    with pytest.raises(InvalidInput, match="max_concurrency"):
        create(client, actors.Counter, max_concurrency=0)
    with pytest.raises(InvalidInput, match="name"):
        create(client, actors.Counter, name="a/b")
