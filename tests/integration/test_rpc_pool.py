"""Servers, resolvers and pools with real connections, in one process."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.actor import CurrentActor
from fray.cluster import (
    ClusterResolver,
    LocalResolver,
    StorageCluster,
)
from fray.rpc import ActorContext, ActorServer
from fray_layouts.errors import InvalidInput
from fray_rpc import RemoteTraceback
from tests.support.actors import Serve

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # agents cannot import the tests


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.seen: list[int] = []

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def note(self, number: int) -> None:
        self.seen.append(number)

    def noted(self) -> list[int]:
        return self.seen

    def fail(self) -> None:
        raise KeyError("nothing of that name")

    def count(self, end: int) -> Iterator[int]:
        yield from range(end)

    async def later(self, number: int) -> int:
        return number + 1

    def _secret(self) -> str:
        return "hidden"


class Nosy:
    def annotated(self, context: ActorContext, number: int) -> tuple[str, str, int]:
        return context.namespace, context.job_id, number

    def by_text(self, context: "ActorContext", number: int) -> tuple[str, int]:  # noqa: UP037
        return context.namespace, number

    def named(self, ctx, number):  # type: ignore[no-untyped-def]
        return ctx.namespace, number

    def all_of(self, *ctx: int) -> tuple[int, ...]:
        return ctx

    def plain(self, number: int) -> int:
        return number

    def its_own(self, ctx: str) -> str:
        return ctx

    def ask(self, ctx: ActorContext, name: str, number: int) -> int:
        answer: int = ctx.resolver.lookup(name).add(number)
        return answer


@pytest.fixture
def cluster(new_cluster: StorageCluster) -> StorageCluster:
    """Each test has one of its own."""
    return new_cluster


def test_every_way_to_call(cluster: StorageCluster, serve: Serve) -> None:
    serve(counter=Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    assert pool.call().add(1) == 1
    assert pool.add(1) == 2
    assert pool.add.remote(1).result() == 3
    assert pool.call().later(1) == pool.later(1) == 2
    assert list(pool.count.stream(100)) == list(range(100))
    assert pool.size == 1
    assert pickle.loads(pickle.dumps(pool.call(idempotent=True))).add(0) == 3
    assert [future.result() for future in pickle.loads(pickle.dumps(pool.broadcast())).add(0)] == [3]


def test_an_exception_of_a_method_keeps_its_type_and_its_place(cluster: StorageCluster, serve: Serve) -> None:
    serve(counter=Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    for act in (pool.fail, pool.fail.remote().result):
        with pytest.raises(KeyError, match="nothing of that name") as caught:
            act()
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(AttributeError, match="nonsense"):
        pool.nonsense()


def test_a_method_gets_a_context_if_it_asks_for_one(cluster: StorageCluster, serve: Serve) -> None:
    serve(nosy=Nosy(), counter=Counter())
    nosy = ClusterResolver(cluster).lookup("nosy")
    assert nosy.annotated(1) == (cluster.namespace, "", 1)
    assert nosy.by_text(2) == nosy.named(2) == (cluster.namespace, 2)
    assert nosy.plain(3) == 3
    assert nosy.all_of(1, 2) == (1, 2)
    assert nosy.its_own("text") == "text"
    assert nosy.ask("counter", 5) == 5


def annotated(annotation: object) -> object:
    """An object whose method's first parameter has that annotation."""

    def method(self: object, first: object, *more: int) -> tuple[str, tuple[int, ...]]:
        return type(first).__name__, more

    method.__annotations__["first"] = annotation
    return type("Annotated", (), {"method": method})()


@pytest.mark.parametrize(
    "annotation",
    [
        ActorContext,
        ActorContext | None,
        typing.Optional["ActorContext"],
        "ActorContext",
        "None | rpc.ActorContext",
        "Optional['ActorContext']",
        "typing.Union[ActorContext, None]",
    ],
)
def test_a_context_is_asked_for_alone_or_in_a_union(serve: Serve, annotation: object) -> None:
    serve(asks=annotated(annotation))
    assert LocalResolver().lookup("asks").method(5) == ("ActorContext", (5,))


@pytest.mark.parametrize("annotation", [int, int | None, "dict[str, ActorContext | None]", "no ( annotation"])
def test_an_annotation_that_only_mentions_a_context_asks_for_none(serve: Serve, annotation: object) -> None:
    serve(asks=annotated(annotation))
    assert LocalResolver().lookup("asks").method(5) == ("int", ())


def test_another_type_of_that_name_asks_for_no_context(serve: Serve) -> None:
    asks: Any = annotated("ActorContext")
    method = type(asks).method
    type(asks).method = types.FunctionType(method.__code__, {"ActorContext": CurrentActor, "type": type})
    type(asks).method.__annotations__["first"] = "ActorContext"
    serve(asks=asks)
    assert LocalResolver().lookup("asks").method(5) == ("int", ())


def test_arguments_and_results_are_copies_even_in_one_process(cluster: StorageCluster, serve: Serve) -> None:
    class Keeper:
        def keep(self, given: list[int]) -> list[int]:
            self.given = given
            return self.given

        def kept(self) -> list[int]:
            return self.given

    serve(keeper=Keeper())
    keeper = ClusterResolver(cluster).lookup("keeper")
    mine = [1]
    returned = keeper.keep(mine)
    mine.append(2)
    returned.append(3)
    assert keeper.kept() == [1]


def test_calls_of_one_caller_run_in_the_order_they_were_made(cluster: StorageCluster, serve: Serve) -> None:
    serve(counter=Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    futures = [pool.note.remote(number) for number in range(2000)]
    for future in futures:
        future.result()
    assert pool.noted() == list(range(2000))


class Narrow:
    """Reports how many calls were inside at once. A call waits for another one to come in, up to its patience."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.entered = threading.Condition()

    def enter(self, patience: float) -> int:
        with self.entered:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.entered.notify_all()
            self.entered.wait_for(lambda: self.most > 1, patience)
            self.inside -= 1
            return self.most


@pytest.mark.parametrize(("limit", "inside"), [(1, 1), (2, 2)])
def test_an_object_with_two_names_has_one_limit(cluster: StorageCluster, limit: int, inside: int) -> None:
    server, narrow = ActorServer(cluster), Narrow()
    for name in ("one", "other"):
        server.register(name, narrow, max_concurrency=limit)
    server.serve_background()
    resolver = ClusterResolver(cluster)
    calls = [resolver.lookup(name).enter.remote(0.2 if limit == 1 else 30) for name in ("one", "other")]
    assert max(call.result(200) for call in calls) == inside
    server.shutdown()


def test_a_second_name_of_an_object_has_the_limit_of_the_first(cluster: StorageCluster) -> None:
    server, counter = ActorServer(cluster), Counter()
    server.register("one", counter)
    with pytest.raises(InvalidInput, match=r"max_concurrency.*8.*served under another name with 1"):
        server.register("other", counter, max_concurrency=8)
    assert list(server.records) == ["one"]
    server.shutdown()


def test_an_object_is_served_until_its_last_name_is_gone(cluster: StorageCluster, serve: Serve) -> None:
    counter = Counter()
    server = serve(one=counter, other=counter)
    server.unregister("one")
    assert ClusterResolver(cluster).lookup("other").add(1) == 1
    assert ClusterResolver(cluster).lookup("one").size == 0


def test_a_pool_shares_calls_out_and_broadcasts(cluster: StorageCluster, serve: Serve) -> None:
    for start in (100, 200, 300):
        serve(counters=Counter(start))
    pool = ClusterResolver(cluster).lookup("counters")
    pool.wait_for_size(3)
    assert sorted(pool.add(1) for _ in range(3)) == [101, 201, 301]
    assert sorted(future.result() for future in pool.broadcast().add(1)) == [102, 202, 302]
    assert [str(future.result()) for future in pool.broadcast().fail()] == ["'nothing of that name'"] * 3


def test_a_thousand_calls_ask_nothing_of_the_storage(cluster: StorageCluster, serve: Serve) -> None:
    serve(counter=Counter())
    serve(counter=Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    pool.add(1)
    before = cluster.requests()
    for _ in range(500):
        pool.add(1)
    for future in [pool.call().add.remote(1) for _ in range(500)]:
        future.result()
    spent = cluster.requests() - before
    assert (spent.writes, spent.lists, spent.reads, spent.deletes) == (0, 0, 0, 0)


def test_shutdown_lets_running_calls_answer(cluster: StorageCluster, serve: Serve) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        def work(self) -> str:
            begun.set()
            may_end.wait()
            return "done"

    server = serve(slow=Slow())
    future = ClusterResolver(cluster).lookup("slow").work.remote()
    begun.wait()
    ending = threading.Thread(target=server.shutdown)
    ending.start()
    assert not future.done()
    may_end.set()
    assert future.result() == "done"
    ending.join()


def test_a_fork_does_not_end_its_parent_s_server(tmp_path: Path) -> None:
    with StorageCluster(str(tmp_path / "root")) as cluster:
        server = ActorServer(cluster)
        server.register("counter", Counter())
        server.serve_background()
        child = os.fork()
        if not child:
            try:
                server.shutdown()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        pool = ClusterResolver(cluster).lookup("counter")
        assert pool.size == 1
        assert pool.add(1) == 1
        server.shutdown()


def test_several_calls_at_once_if_the_actor_allows_it(cluster: StorageCluster) -> None:
    together = threading.Barrier(8)

    class Meeting:
        def meet(self) -> None:
            together.wait(200)

    server = ActorServer(cluster)
    server.register("meeting", Meeting(), max_concurrency=8)
    server.serve_background()
    pool = ClusterResolver(cluster).lookup("meeting")
    for future in [pool.meet.remote() for _ in range(8)]:
        future.result(200)
    server.shutdown()
