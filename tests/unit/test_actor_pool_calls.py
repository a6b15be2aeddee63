"""How a pool treats calls whose actor is gone, and when it looks the name up again; the transport is a stand-in."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fray.errors import ActorNotFoundError, CallInterrupted
from fray.rpc import (
    ActorEndpoint,
    ActorId,
    ActorPool,
    Resolver,
    balancer,
)
from fray.types import JobId, Namespace
from fray_rpc import Target
from fray_rpc.errors import ConnectionLost, NoSuchActor, RemoteTraceback
from fray_rpc.wire.messages import Request, packed_call
from fray_rpc.wire.serialization import unpack
from tests.support.waiting import wait_until

Answer = Callable[..., Any]


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._ended = threading.Event()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._callbacks: list[Callable[[FakeCall], None]] = []

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        self._outcome = (value, error)
        self._ended.set()
        for callback in self._callbacks:
            callback(self)

    def result(self, timeout: float | None = None) -> Any:
        if not self._ended.wait(timeout):
            raise TimeoutError
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def done(self) -> bool:
        return self._ended.is_set()

    def exception(self) -> BaseException | None:
        return self._outcome[1]

    def add_done_callback(self, callback: Callable[[FakeCall], None]) -> None:
        self._callbacks.append(callback)
        if self.done():
            callback(self)


class FakeChannel:
    """Answers with `answer`, which may raise; keeps the calls that were started."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.started: list[FakeCall] = []
        self.reached = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def call(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.answer(method, *args, **kwargs)

    def start(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeCall:
        return self.resend(packed_call(actor_id, method, args, kwargs))

    def resend(self, request: Request) -> FakeCall:
        self.reached.set()
        assert self.gate.wait(200), "somebody overtakes"
        call = FakeCall(request)
        self.started.append(call)
        return call


class FakeResolver(Resolver):
    """Servers by address; `listed` is the answer to a listing of the storage."""

    patience = 0.3

    def __init__(self, **servers: Answer) -> None:
        self.channels = {address: FakeChannel(answer) for address, answer in servers.items()}
        self.listed = list(servers)
        self.looks = 0

    def find(self, name: str) -> Sequence[ActorEndpoint]:
        self.looks += 1
        return [endpoint(name, address) for address in self.listed]

    def connect(self, endpoint: ActorEndpoint) -> Any:
        return self.channels[endpoint.address]


def endpoint(name: str, address: str) -> ActorEndpoint:
    target = Target(name, address, identity=address)
    return ActorEndpoint(ActorId(address), name, address, JobId(""), Namespace("test"), {}, target)


def answers(value: Any) -> Answer:
    return lambda *args, **kwargs: value


def fails(error: Callable[[], BaseException]) -> Answer:
    def answer(*args: Any, **kwargs: Any) -> Any:
        raise error()

    return answer


def unstarted() -> ConnectionLost:
    return ConnectionLost("refused", started=False)


def maybe_started() -> ConnectionLost:
    return ConnectionLost("reset", started=None)


def first_call(resolver: FakeResolver) -> FakeCall:
    """The first call that was started at server a. Waits until there is one."""
    started = resolver.channels["a"].started
    wait_until(lambda: bool(started))
    return started[0]


def test_calls_go_round_and_the_name_is_looked_up_once() -> None:
    resolver = FakeResolver(a=answers("a"), b=answers("b"), c=answers("c"))
    pool = resolver.lookup("x")
    assert resolver.looks == 0
    handle = pool.call()
    assert sorted(handle.f() for _ in range(3)) == sorted(pool.f() for _ in range(3)) == ["a", "b", "c"]
    assert resolver.looks == 1


@pytest.mark.parametrize("gone", [unstarted, lambda: NoSuchActor("x")])
def test_a_call_that_did_not_start_goes_to_another_actor(gone: Callable[[], BaseException]) -> None:
    resolver = FakeResolver(a=fails(gone), b=answers("b"))
    pool = resolver.lookup("x")
    assert [pool.f() for _ in range(4)] == ["b"] * 4


def test_a_call_that_may_have_run_is_not_made_twice_unless_that_does_no_harm() -> None:
    for started in (True, None):
        resolver = FakeResolver(a=fails(lambda: ConnectionLost("reset", started)), b=answers("b"))  # noqa: B023
        pool = resolver.lookup("x")
        with pytest.raises(CallInterrupted, match="idempotent=True") as caught:
            [pool.f() for _ in range(2)]
        assert isinstance(caught.value.__cause__, ConnectionLost)
        assert [resolver.lookup("x").call(idempotent=True).f() for _ in range(2)] == ["b", "b"]


def test_an_exception_of_the_method_itself_does_not_count_as_a_lost_call() -> None:
    """A method may raise the same type because it lost an actor of its own."""

    def raised() -> ConnectionLost:
        error = unstarted()
        error.__cause__ = RemoteTraceback("there")
        return error

    resolver = FakeResolver(a=fails(raised))
    pool = resolver.lookup("x")
    with pytest.raises(ConnectionLost):
        pool.f()
    future = pool.f.remote()
    first_call(resolver).end(error=raised())
    with pytest.raises(ConnectionLost):
        future.result()
    assert future.done()
    assert isinstance(future.exception(), ConnectionLost)
    assert resolver.looks == 1


def test_a_name_without_actors_is_waited_for_and_then_an_error() -> None:
    resolver = FakeResolver(a=answers("a"))
    resolver.listed = []
    pool = resolver.lookup("x")
    with pytest.raises(ActorNotFoundError, match="no actor x"):
        pool.f()
    assert resolver.looks > 1
    resolver.listed = ["a"]
    assert pool.f() == "a"


def test_the_error_tells_why_the_last_actor_was_given_up() -> None:
    pool = FakeResolver(a=fails(unstarted)).lookup("x")
    with pytest.raises(ActorNotFoundError) as caught:
        pool.f()
    assert isinstance(caught.value.__cause__, ConnectionLost)


def test_after_a_loss_the_name_is_looked_up_until_another_has_come_and_then_no_more() -> None:
    resolver = FakeResolver(a=fails(unstarted), b=answers("b"), c=answers("c"))
    resolver.listed = ["a", "b"]
    pool = resolver.lookup("x")
    assert {pool.f() for _ in range(2)} == {"b"}
    resolver.listed = ["b", "c"]
    wait_until(lambda: pool.f() == "c")
    looks = resolver.looks
    assert {pool.f() for _ in range(1000)} == {"b", "c"}
    assert resolver.looks == looks


def test_a_dead_actor_that_is_still_listed_is_tried_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(balancer.time, "monotonic", lambda: now)
    tried: list[float] = []

    def dead() -> BaseException:
        tried.append(now)
        return unstarted()

    resolver = FakeResolver(a=fails(dead), b=answers("b"))
    pool = resolver.lookup("x")
    for _ in range(4000):
        assert pool.f() == "b"
        now += 0.01
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(pauses) == 5
    for nth, pause in enumerate(pauses):
        assert 2**nth <= pause <= 2**nth + balancer.MAX_LOOKUP_PAUSE + 0.02
    assert resolver.looks < 50


def test_one_that_failed_is_called_again_at_once_if_there_is_no_other() -> None:
    broken = True

    def flaky(*args: Any) -> str:
        if broken:
            raise unstarted()
        return "a"

    pool = FakeResolver(a=flaky).lookup("x")
    with pytest.raises(ActorNotFoundError):
        pool.f()
    broken = False
    assert pool.f() == "a"


def test_a_lost_future_is_sent_again_though_nobody_waits_and_in_order() -> None:
    resolver = FakeResolver(a=answers(None), b=answers(None))
    resolver.listed = ["a"]
    pool = resolver.lookup("x")
    futures = [pool.f.remote(number) for number in range(20)]
    wait_until(lambda: len(resolver.channels["a"].started) == 20)
    resolver.listed = ["b"]
    for call in resolver.channels["a"].started:
        call.end(error=unstarted())
    wait_until(lambda: len(resolver.channels["b"].started) == 20)
    assert not any(future.done() for future in futures)
    assert [future.exception() for future in futures] == [None] * 20
    for number, call in enumerate(resolver.channels["b"].started):
        call.end(number)
    assert [future.result() for future in futures] == list(range(20))


def test_futures_do_not_wait_for_an_actor_and_keep_their_order_when_one_comes() -> None:
    resolver = FakeResolver(a=answers(None))
    resolver.listed = []
    resolver.patience = 60.0
    pool = resolver.lookup("x")
    futures = [pool.f.remote(number) for number in range(20)]
    assert not any(future.done() or future.exception() for future in futures)
    with pytest.raises(TimeoutError):
        futures[0].result(timeout=0.01)
    resolver.channels["a"].gate.clear()
    resolver.listed = ["a"]
    resolver.channels["a"].reached.wait()
    futures += [pool.f.remote(number) for number in range(20, 40)]
    resolver.channels["a"].gate.set()
    wait_until(lambda: len(resolver.channels["a"].started) == 40)
    assert [unpack(call.request.payload)[0] for call in resolver.channels["a"].started] == [(n,) for n in range(40)]
    for call in resolver.channels["a"].started:
        call.end("done")
    assert {future.result() for future in futures} == {"done"}


def test_a_lost_future_that_may_have_run_raises_every_time_it_is_asked() -> None:
    resolver = FakeResolver(a=answers(None))
    future = resolver.lookup("x").f.remote()
    first_call(resolver).end(error=maybe_started())
    for _ in range(2):
        with pytest.raises(CallInterrupted):
            future.result()
    assert future.done()
    assert isinstance(future.exception(), CallInterrupted)


def test_a_future_cancels_nothing_when_the_time_is_over() -> None:
    resolver = FakeResolver(a=answers(None))
    future = resolver.lookup("x").f.remote()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    first_call(resolver).end(5)
    assert future.result() == 5


def test_the_time_is_over_too_while_a_lost_call_looks_for_an_actor() -> None:
    resolver = FakeResolver(a=answers(None))
    future = resolver.lookup("x").f.remote()
    first_call(resolver)
    resolver.listed = []
    first_call(resolver).end(error=unstarted())
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(ActorNotFoundError):
        future.result()


def test_a_broadcast_has_an_outcome_for_each_actor_and_losses_are_outcomes() -> None:
    resolver = FakeResolver(a=answers(None), b=answers(None), c=answers(None))
    pool = resolver.lookup("x")
    futures = pool.broadcast().f(1)
    a, b, c = (resolver.channels[address].started[0] for address in "abc")
    assert not any(future.done() for future in futures)
    with pytest.raises(TimeoutError):
        futures[0].result(timeout=0.01)
    a.end("fine")
    b.end(error=ValueError("no"))
    c.end(error=unstarted())
    results = [future.result() for future in futures]
    assert results[0] == "fine"
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], ConnectionLost)
    assert [type(future.exception()) for future in futures] == [type(None), ValueError, ConnectionLost]
    assert [future.endpoint.address for future in futures] == ["a", "b", "c"]


def test_a_broadcast_reaches_actors_that_have_come_since() -> None:
    resolver = FakeResolver(a=answers("a"), b=answers("b"))
    resolver.listed = ["a"]
    pool = resolver.lookup("x")
    assert pool.f() == "a"
    resolver.listed = ["a", "b"]
    assert len(pool.broadcast().f()) == 2


def test_waiting_for_a_size_looks_until_it_is_there() -> None:
    resolver = FakeResolver(a=answers("a"), b=answers("b"))
    resolver.listed = ["a"]
    pool = resolver.lookup("x")
    with pytest.raises(TimeoutError, match="1 of 2 actors x"):
        pool.wait_for_size(2, timeout=0.1)
    threading.Timer(0.1, lambda: resolver.listed.append("b")).start()
    pool.wait_for_size(2)
    assert pool.size == 2
    assert [found.address for found in pool.endpoints] == ["a", "b"]
    resolver.listed = []
    with pytest.raises(TimeoutError):
        resolver.wait_for_actor("x", timeout=0.0)


def test_a_handle_to_each_stays_with_its_actor() -> None:
    resolver = FakeResolver(a=answers("a"), b=answers("b"))
    first, second = resolver.lookup_all("x")
    assert [first.f() for _ in range(3)] + [second.f() for _ in range(3)] == ["a"] * 3 + ["b"] * 3


def test_private_names_are_no_methods_and_pools_can_be_copied() -> None:
    pool: ActorPool[Any] = FakeResolver(a=answers("a")).lookup("x")
    for odd in (pool, pool.call(), pool.broadcast()):
        with pytest.raises(AttributeError):
            odd._private()
    assert copy.copy(pool).f() == "a"
