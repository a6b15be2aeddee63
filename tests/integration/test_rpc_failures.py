"""Calls when connections break, servers die, and processes fork: at most once, in order, and with true errors."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fray_rpc import (
    CallId,
    Channel,
    ConnectionLost,
    NoSuchActor,
    RpcServer,
    Target,
    connect,
)
from fray_rpc.client import remote_channel
from fray_rpc.client.client_calls import STREAM_WINDOW
from tests.support.rpc import (
    Keys,
    Proxy,
    Subject,
    dial_tcp,
    serve_subject,
    serving,
    through_proxy,
)
from tests.support.waiting import wait_until


@pytest.fixture
def target() -> Iterator[Target]:
    with serving() as target:
        yield target


@pytest.fixture
def proxied(target: Target) -> Iterator[tuple[Proxy, Channel]]:
    with through_proxy(target) as pair:
        yield pair


def test_a_running_call_is_joined_after_its_connection_broke(target: Target, proxied: tuple[Proxy, Channel]) -> None:
    proxy, channel = proxied
    call = channel.start("wide", "note_slowly", (1,), {})
    direct = connect(target, Keys())
    wait_until(lambda: any(b"note_slowly" in data for data in proxy.said))
    proxy.cut()
    direct.call("wide", "open", (), {})
    assert call.result(200) == 1
    assert direct.call("wide", "notes", (), {}) == [1]


def test_a_lost_reply_is_found_by_the_calls_id(target: Target, proxied: tuple[Proxy, Channel]) -> None:
    proxy, channel = proxied
    direct = connect(target, Keys())
    proxy.flowing.clear()
    call = channel.start("subject", "note", (1,), {})
    wait_until(lambda: direct.call("subject", "notes", (), {}) == [1])
    proxy.cut()
    proxy.flowing.set()
    assert call.result(200) == 1
    assert direct.call("subject", "notes", (), {}) == [1]


def test_many_calls_over_a_connection_that_keeps_breaking_run_once_and_in_order(
    target: Target, proxied: tuple[Proxy, Channel]
) -> None:
    proxy, channel = proxied
    calls = []
    for number in range(2000):
        calls.append(channel.start("subject", "note", (number,), {}))
        if number % 250 == 100:
            calls[number - 50].result(200)  # so that some are answered, some are out, and some wait
            proxy.cut()
    assert [call.result(200) for call in calls] == list(range(2000))
    assert connect(target, Keys()).call("subject", "notes", (), {}) == list(range(2000))


def test_a_stream_goes_on_where_its_connection_broke(proxied: tuple[Proxy, Channel]) -> None:
    proxy, channel = proxied
    got = []
    for number in channel.stream("subject", "count", (100,), {}):
        got.append(number)
        if number in (3, 40, 41):
            proxy.cut()
    assert got == list(range(100))
    assert channel.call("subject", "notes", (), {}) == list(range(100))


def test_a_call_to_a_server_that_dies_is_lost_and_nobody_knows_whether_it_started(target: Target) -> None:
    channel = connect(target, Keys())
    with pytest.raises(ConnectionLost) as caught:
        channel.call("subject", "die", (), {})
    assert caught.value.started is None
    assert channel.closed
    with pytest.raises(ConnectionLost) as caught:
        connect(target, Keys())
    assert caught.value.started is False


def test_a_call_after_the_servers_end_is_known_not_to_have_started(target: Target) -> None:
    channel = connect(target, Keys())
    other = connect(target._replace(identity=""), Keys())
    assert other is channel
    with through_proxy(target) as (proxy, watched):
        assert watched.call("subject", "echo", (1,), {}) == 1
        proxy.close()
        with pytest.raises(ConnectionLost) as caught:
            watched.call("subject", "echo", (2,), {})
    assert caught.value.started is False


def test_another_server_at_the_same_address_is_not_asked(target: Target) -> None:
    with serving() as other, through_proxy(target) as (proxy, channel):
        call = channel.start("wide", "note_slowly", (1,), {})
        wait_until(lambda: any(b"note_slowly" in data for data in proxy.said))
        proxy.dial = partial(dial_tcp, other.tcp)
        proxy.cut()
        with pytest.raises(ConnectionLost, match="another server"):
            call.result(200)
        assert connect(other, Keys()).call("wide", "notes", (), {}) == []


def test_another_channel_may_ask_for_a_lost_call(target: Target) -> None:
    direct = connect(target, Keys())
    with through_proxy(target) as (_, channel):
        call = channel.start("wide", "note_slowly", (1,), {})
        wait_until(lambda: direct.call("wide", "has_entered", (), {}))
    with pytest.raises(ConnectionLost):
        call.result(200)
    again = direct.resend(call.request)
    direct.call("wide", "open", (), {})
    assert again.result(200) == 1
    assert direct.call("wide", "notes", (), {}) == [1]


def test_a_fork_has_connections_and_calls_of_its_own(target: Target) -> None:
    channel = connect(target, Keys())
    assert channel.call("subject", "note", ("parent",), {}) == "parent"
    call = channel.start("wide", "wait", (), {})
    pid = os.fork()
    if not pid:
        try:
            lost = isinstance(call.exception(200), ConnectionLost)
            os._exit(not (lost and channel.call("subject", "note", ("child",), {}, timeout=200) == "child"))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert channel.call("subject", "notes", (), {}) == ["parent", "child"]
    channel.call("wide", "open", (), {})
    assert call.result(200)


def test_a_servers_child_does_not_hide_the_servers_death(target: Target) -> None:
    channel = connect(target, Keys())
    child = channel.call("subject", "fork", (), {})
    try:
        with pytest.raises(ConnectionLost):
            channel.call("subject", "die", (), {}, timeout=200)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_it_works_inside_a_running_event_loop(target: Target) -> None:
    assert connect(target, Keys()).call("subject", "echo", (1,), {}) == 1


def test_many_threads_share_a_channel(target: Target) -> None:
    channel = connect(target, Keys())
    wrong: list[int] = []

    def work(first: int) -> None:
        wrong.extend(n for n in range(first, first + 200) if channel.call("subject", "echo", (n,), {}) != n)

    threads = [threading.Thread(target=work, args=(first * 1000,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_callbacks_run_once_when_the_outcome_is_there(target: Target) -> None:
    channel = connect(target, Keys())
    called = threading.Event()
    call = channel.start("wide", "wait", (), {})
    call.add_done_callback(lambda done: called.set() if done is call else None)
    assert not called.is_set()
    channel.call("wide", "open", (), {})
    assert called.wait(200)
    late: list[Any] = []
    call.add_done_callback(late.append)
    assert late == [call]


def test_arguments_are_as_they_were_when_the_call_was_made(target: Target) -> None:
    channel = connect(target, Keys())
    blocked = [channel.start("subject", "note_slowly", (0,), {}) for _ in range(5)]
    array = np.ones(100_000)
    call = channel.start("subject", "keep", (array,), {})
    array[:] = 0
    assert not any(one.done() for one in blocked)
    channel.call("wide", "open", (), {})
    assert call.result(200) == 100_000


def test_an_array_that_a_server_keeps_is_its_own(target: Target) -> None:
    channel = connect(target, Keys())
    for size in (10_000, 1_000_000):
        assert channel.call("subject", "keep", (np.ones(size),), {}) == size
        mine = channel.call("subject", "kept_array", (), {})
        for _ in range(5):
            channel.call("subject", "echo", (np.full(size, 7.0),), {})
        assert channel.call("subject", "kept", (), {}) == size
        assert mine.sum() == size


def test_a_generator_runs_no_further_than_its_consumer_has_room(target: Target) -> None:
    channel = connect(target, Keys())
    stream = channel.stream("subject", "count", (10_000,), {})
    other = channel.start("wide", "echo", (1,), {})
    assert list(itertools.islice(stream, 2)) == [0, 1]
    assert other.result(200) == 1
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert channel.call("subject", "times_closed", (), {}) == 1
    assert len(channel.call("subject", "notes", (), {})) <= STREAM_WINDOW + 2


def test_a_method_that_returns_a_generator_says_how_to_call_it(target: Target) -> None:
    with pytest.raises(RuntimeError, match="stream"):
        connect(target, Keys()).call("subject", "count", (3,), {})


def test_the_unix_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    server = serve_subject(unix_dir=tmp_path / "sockets")
    try:
        assert stat.S_IMODE(os.stat(server.unix_path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(tmp_path / "sockets").st_mode) == 0o700
    finally:
        server.close()
    assert not os.path.exists(server.unix_path)


@pytest.fixture
def local() -> Iterator[tuple[RpcServer, Channel]]:
    server = serve_subject()
    yield server, connect(Target("subject", server.address, "", server.identity), Keys())
    server.close()


def test_in_this_process_everything_is_pickled_all_the_same(local: tuple[RpcServer, Channel]) -> None:
    _, channel = local
    value = [1]
    assert channel.call("subject", "note", (value,), {}) == [1]
    value.append(2)
    channel.call("subject", "notes", (), {})[0].append(3)
    assert channel.call("subject", "notes", (), {}) == [[1]]
    with pytest.raises(KeyError, match="absent"):
        channel.call("subject", "fail", ("key",), {})
    assert list(channel.stream("subject", "count", (40,), {})) == list(range(40))
    calls = [channel.start("subject", "echo", (number,), {}) for number in range(100)]
    assert [call.result(200) for call in calls] == list(range(100))
    with pytest.raises(NoSuchActor):
        channel.call("nobody", "echo", (1,), {})


def test_a_removed_actor_refuses_waiting_calls_and_ends_running_ones(local: tuple[RpcServer, Channel]) -> None:
    server, channel = local
    subject = Subject()
    server.add("going", subject)
    runs = channel.start("going", "wait", (), {})
    wait_until(lambda: subject.entered)
    waits = channel.start("going", "echo", (1,), {})
    server.remove("going")
    with pytest.raises(NoSuchActor):
        waits.result(200)
    subject.gate.set()
    assert runs.result(200)


def test_a_server_that_closes_lets_running_calls_answer() -> None:
    subject = Subject()
    server = RpcServer(Keys())
    server.add("subject", subject, max_concurrency=5)
    server.start()
    with through_proxy(Target("subject", server.address, "", server.identity)) as (_, channel):
        runs = channel.start("subject", "wait", (), {})
        wait_until(lambda: subject.entered)
        closing = threading.Thread(target=server.close, args=(200.0,))
        closing.start()
        subject.gate.set()
        assert runs.result(200)
        closing.join(200)
    assert not closing.is_alive()


class _Journal:
    def __init__(self) -> None:
        self.outcomes: dict[CallId, bytes] = {}
        self.fenced = False

    def known(self, call: CallId) -> bytes | None:
        return self.outcomes.get(call)

    def applied(self, call: CallId, outcome: bytes, lowest: int) -> None:
        if self.fenced:
            raise RuntimeError("a newer incarnation has begun")
        self.outcomes[call] = outcome


def test_a_durable_actors_journal_answers_for_an_earlier_server_and_can_withhold_replies() -> None:
    journal = _Journal()
    first, second = RpcServer(Keys()), RpcServer(Keys())
    subjects = Subject(), Subject()
    for server, subject in zip((first, second), subjects, strict=True):
        server.add("subject", subject, journal=journal)
        server.start()
    with through_proxy(Target("subject", first.address, "", first.identity)) as (_, channel):
        made = channel.start("subject", "note", (1,), {})
        assert made.result(200) == 1
    first.close()
    with through_proxy(Target("subject", second.address, "", second.identity)) as (_, channel):
        assert channel.resend(made.request).result(200) == 1
        assert subjects[1].log == []
        journal.fenced = True
        with pytest.raises(TimeoutError):
            channel.call("subject", "note", (2,), {}, timeout=0.2)
        wait_until(lambda: subjects[1].log == [2])
    second.close()


def test_a_call_made_while_losses_are_being_told_comes_after_them(
    target: Target, proxied: tuple[Proxy, Channel]
) -> None:
    _, channel = proxied
    told: list[str] = []
    being_told, go_on = threading.Event(), threading.Event()

    def tell(_: object) -> None:
        being_told.set()
        go_on.wait(200)
        told.append("the lost call")

    def call_again() -> None:
        with pytest.raises(ConnectionLost):
            channel.start("subject", "note", (2,), {})
        told.append("the new call")

    channel.start("wide", "note_slowly", (1,), {}).add_done_callback(tell)
    closing = threading.Thread(target=channel.close)
    closing.start()
    being_told.wait(200)
    calling = threading.Thread(target=call_again)
    calling.start()
    calling.join(0.2)
    go_on.set()
    for thread in (closing, calling):
        thread.join()
    assert told == ["the lost call", "the new call"]


def test_a_callback_that_is_told_of_a_loss_can_call_at_once(
    proxied: tuple[Proxy, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_channel, "LOSS_NEWS_TIMEOUT", 600.0)
    _, channel = proxied
    told: list[str] = []

    def call_again(_: object) -> None:
        with pytest.raises(ConnectionLost):
            channel.start("subject", "note", (2,), {})
        told.append("closed")

    channel.start("wide", "note_slowly", (1,), {}).add_done_callback(call_again)
    closing = threading.Thread(target=channel.close, daemon=True)
    closing.start()
    closing.join(100)
    assert told == ["closed"]


def test_a_channel_that_was_closed_leaves_no_thread(proxied: tuple[Proxy, Channel]) -> None:
    def pumps() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "fray-pump"}

    before = pumps()
    _, channel = proxied
    assert channel.start("subject", "note", (1,), {}).exception() is None
    started = pumps() - before
    assert started
    channel.close()
    for thread in started:
        thread.join(100)
        assert not thread.is_alive()
