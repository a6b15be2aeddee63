"""Calling methods of an object that another process serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fray_layouts.errors import InvalidInput
from fray_rpc import Channel, NoSuchActor, RemoteError, RemoteTraceback, connect
from fray_rpc.client import remote_channel
from tests.support.rpc import (
    Keys,
    serving,
)
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module", params=["tcp", "unix", "tls"])
def channel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Channel]:
    directory: Path | None = tmp_path_factory.mktemp("rpc") / "sockets" if request.param == "unix" else None
    with serving(unix_dir=directory, tls=request.param == "tls") as target:
        yield connect(target, Keys())


def test_a_value_comes_back(channel: Channel) -> None:
    assert channel.call("subject", "echo", ([1, "two", None],), {}) == [1, "two", None]
    assert channel.call("subject", "echo", (), {"value": 2}) == 2


def test_values_that_pickle_cannot_handle_are_transferred(channel: Channel) -> None:
    class Local:
        number = 7

    assert channel.call("subject", "echo", (lambda: 5,), {})() == 5
    assert channel.call("subject", "echo", (Local(),), {}).number == 7


def test_calls_run_in_the_order_they_were_made(channel: Channel) -> None:
    calls = [channel.start("subject", "note", (number,), {}) for number in range(3000)]
    channel.call("subject", "note", (3000,), {})
    assert [call.result() for call in calls] == list(range(3000))
    assert channel.call("subject", "notes", (), {})[-3001:] == list(range(3001))


def test_a_callback_runs_as_soon_as_the_reply_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_channel, "PUMP_DELAY", 600.0)
    with serving() as target:
        channel = connect(target, Keys())
        for number in range(3):
            come = threading.Event()
            call = channel.start("subject", "echo", (number,), {})
            call.add_done_callback(lambda call, come=come: come.set())  # type: ignore[misc]
            call.hasten()
            assert come.wait(100)
        channel.close()


def test_exceptions_keep_their_type_and_carry_the_remote_traceback(channel: Channel) -> None:
    with pytest.raises(KeyError, match="absent") as caught:
        channel.call("subject", "fail", ("key",), {})
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in fail" in str(caught.value.__cause__)


@pytest.mark.parametrize(("kind", "text"), [("lock", "Unpicklable: held"), ("two", "TwoArguments: one two")])
def test_an_exception_that_cannot_travel_arrives_as_its_text(channel: Channel, kind: str, text: str) -> None:
    with pytest.raises(RemoteError, match=text):
        channel.call("subject", "fail", (kind,), {})


def test_an_exit_in_a_method_does_not_end_its_caller(channel: Channel) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        channel.call("subject", "fail", ("exit",), {})


def test_no_such_actor_and_no_such_method(channel: Channel) -> None:
    with pytest.raises(NoSuchActor):
        channel.call("nobody", "echo", (1,), {})
    with pytest.raises(AttributeError):
        channel.call("subject", "absent", (), {})
    with pytest.raises(AttributeError):
        channel.call("subject", "_hidden", (), {})


def test_a_timeout_cancels_nothing_and_the_result_can_be_asked_for_again(channel: Channel) -> None:
    channel.call("wide", "shut", (), {})
    call = channel.start("wide", "wait", (), {})
    with pytest.raises(TimeoutError):
        call.result(0.01)
    assert not call.done()
    with pytest.raises(TimeoutError):
        channel.call("wide", "wait", (), {}, timeout=0.01)
    assert channel.call("wide", "echo", (1,), {}) == 1
    channel.call("wide", "open", (), {})
    assert call.result() is True
    assert call.exception() is None


def test_a_slow_call_holds_up_nobody(channel: Channel) -> None:
    channel.call("wide", "shut", (), {})
    lone = threading.Thread(target=channel.call, args=("wide", "wait", (), {}))
    lone.start()
    wait_until(lambda: channel.call("wide", "has_entered", (), {}))
    waiting = channel.start("wide", "wait", (), {})
    assert channel.call("wide", "echo", (1,), {}) == 1
    assert not waiting.done()
    channel.call("wide", "open", (), {})
    assert waiting.result(200)
    lone.join(200)
    assert not lone.is_alive()


def test_a_hundred_at_once(channel: Channel) -> None:
    calls = [channel.start("wide", "meet", (100,), {}) for _ in range(100)]
    assert [call.result(200) for call in calls] == [True] * 100


def test_an_idle_server_uses_no_processor(channel: Channel) -> None:
    test_a_hundred_at_once(channel)

    def is_idle() -> bool:
        """Wait until the work that the calls left is done."""
        used = channel.call("wide", "processor_time", (), {})
        channel.call("wide", "sleep", (0.5,), {})
        return bool(channel.call("wide", "processor_time", (), {}) - used < 0.1)

    wait_until(is_idle)


@pytest.mark.parametrize("size", [100, 1_000, 20_000, 500_000])
def test_arrays_travel_whole_and_can_be_written(channel: Channel, size: int) -> None:
    array = np.arange(size, dtype=np.float64)
    back = channel.call("subject", "echo", ({"a": array, "b": array + 1},), {})
    np.testing.assert_array_equal(back["a"], array)
    np.testing.assert_array_equal(back["b"], array + 1)
    back["a"][0] = 5


def test_coroutines_run_together_up_to_the_limit(channel: Channel) -> None:
    channel.call("subject", "shut", (), {})
    calls = [channel.start("wide", "together", (100,), {}) for _ in range(150)]
    channel.call("subject", "open", (), {})  # a server reads calls in order: it has all 150 now
    assert max(call.result() for call in calls) == 100
    calls = [channel.start("subject", "together", (1,), {}) for _ in range(3)]
    assert max(call.result() for call in calls) == 1


@pytest.mark.parametrize(
    ("method", "args"),
    [*(("raise_when_closed", (kind,)) for kind in ("error", "exit", "yield")), ("araise_when_closed", ())],
)
def test_a_stream_whose_cleanup_fails_keeps_no_other_call_waiting(
    channel: Channel, method: str, args: tuple[str, ...]
) -> None:
    items = channel.stream("subject", method, args, {})
    assert next(iter(items)) == 1
    del items
    assert channel.start("subject", "echo", (1,), {}).result(PATIENCE) == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "part"),
    [((1, threading.Lock()), {}, r"args\[1\]"), ((), {"value": threading.Lock()}, r"kwargs\['value'\]")],
)
def test_an_argument_that_cannot_be_pickled_is_named(
    channel: Channel, args: tuple[Any, ...], kwargs: dict[str, Any], part: str
) -> None:
    for make in (channel.call, channel.start, channel.stream):
        with pytest.raises(InvalidInput, match=rf"^{part} of echo: .*lock"):
            make("subject", "echo", args, kwargs)


def test_streams(channel: Channel) -> None:
    assert list(channel.stream("subject", "count", (100,), {})) == list(range(100))
    assert list(channel.stream("subject", "acount", (40,), {})) == list(range(40))
    with pytest.raises(KeyError, match="at the end"):
        list(channel.stream("subject", "count_and_fail", (3,), {}))
