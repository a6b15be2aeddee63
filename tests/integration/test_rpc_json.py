"""Calls in JSON, made with the standard library alone, of actors that are served to Python callers too."""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import StorageCluster
from fray.errors import Temporary
from fray.rpc import ActorContext, ActorServer
from fray_rpc import CallId, RpcServer
from tests.acceptance import contract_caller
from tests.acceptance.contract_caller import ActorError, Connection
from tests.support.rpc import (
    KEY,
    Keys,
)
from tests.support.waiting import wait_until


class Busy(Temporary):
    """A method that asks the caller to try later."""


class Subject:
    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.gate = threading.Event()

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs]

    def note(self, value: Any) -> int:
        self.notes.append(value)
        return len(self.notes)

    def wait(self) -> int:
        self.gate.wait(200)
        return self.note("waited")

    async def soon(self, value: Any) -> Any:
        return value

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    def returns(self, what: str) -> Any:
        deep: list[Any] = []
        for _ in range(100):
            deep = [deep]
        made: dict[str, Any] = {
            "tuple": (1, (2,)),
            "object": {"a": [Path("x")]},
            "date": datetime.date(2026, 1, 1),
            "bytes": b"x",
            "infinity": [float("inf")],
            "keys": {"a": {1: 2}},
            "surrogate": "\ud800",
            "deep": deep,
            "large": "x" * (16 * 2**20),
            "nearly as large": "x" * (16 * 2**20 - 100),
        }
        return made[what]

    def fail(self) -> None:
        raise KeyError("no such thing \ud800")

    def put_off(self) -> None:
        raise Busy("come back")


@dataclass
class Served:
    """A server and the means to reach it."""

    server: RpcServer
    subject: Subject

    def endpoint(self) -> dict[str, Any]:
        return {
            "name": "subject",
            "address": self.server.address,
            "nonce": self.server.identity,
            "fingerprint": self.server.fingerprint,
        }

    def connect(self, client: str = "") -> Connection:
        return Connection(self.endpoint(), (KEY.id, KEY.secret), client)


@pytest.fixture(params=["plain", pytest.param("encrypted", marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server, subject = RpcServer(Keys(), tls=request.param == "encrypted"), Subject()
    server.add("subject", subject)
    server.start()
    yield Served(server, subject)
    subject.gate.set()
    server.close()


def suppressed(call: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, HTTPException):
        call()


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(ActorError) as caught:
        call()
    return caught.value.error


@pytest.mark.parametrize("served", ["plain", "encrypted"], indirect=True)
def test_arguments_and_results_are_json(served: Served) -> None:
    connection = served.connect()
    values: list[Any] = [None, True, 1, 2**70, 1.5, "é\U0001f600\u2028", [], {}, {"a": [{"b": None}]}]
    assert connection.call("echo", values, {"key": values}) == [values, {"key": values}]
    assert connection.call("soon", [values]) == values
    assert connection.call("returns", ["tuple"]) == [1, [2]]
    large = "x" * (15 * 2**20)
    assert connection.call("echo", [large]) == [[large], {}]
    assert len(connection.call("returns", ["nearly as large"])) == 16 * 2**20 - 100


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("object", "the result['a'][0] is a pathlib.PosixPath; return values that JSON can express"),
        ("date", "the result is a datetime.date; return values that JSON can express"),
        ("bytes", "the result is a builtins.bytes; return values that JSON can express"),
        ("infinity", "the result[0] is inf, which JSON cannot express"),
        ("keys", "the result['a'] has the key 1, a int; keys in JSON are text"),
        ("surrogate", "the result holds text that UTF-8 cannot encode"),
        ("deep", "it is nested more than 100 deep"),
        ("large", "it has 16,777,218 bytes as JSON, more than the limit of 16,777,152"),
    ],
)
def test_a_result_that_is_no_json_is_an_error_that_names_it(served: Served, what: str, told: str) -> None:
    error = error_of(lambda: served.connect().call("returns", [what]))
    assert error["message"] == f"the result of 'returns' cannot be encoded as JSON: {told}"
    assert (error["type"], error["retry"]) == ("RemoteError", False)


def test_errors_have_a_type_a_message_and_whether_a_retry_may_help(served: Served) -> None:
    connection = served.connect()
    error = error_of(lambda: connection.call("fail", []))
    assert (error["type"], error["retry"]) == ("KeyError", False)
    assert "no such thing" in error["message"]
    assert error["traceback"].startswith("Traceback")
    assert "in fail" in error["traceback"]
    assert error_of(lambda: connection.call("put_off", []))["retry"] is True
    assert error_of(lambda: connection.call("missing", []))["type"] == "AttributeError"
    assert error_of(lambda: connection.call("_gate", []))["message"] == "'Subject' has no public method '_gate'"
    assert error_of(lambda: connection.call("note", [1, 2]))["type"] == "TypeError"
    assert "have it return a list" in error_of(lambda: connection.call("numbers", [3]))["message"]
    gone = error_of(lambda: served.connect().send("/v1/actors/other/methods/note", b'{"args": [1]}'))
    assert (gone["type"], gone["retry"]) == ("NoSuchActor", True)
    assert connection.call("note", ["still open"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/actors/subject/methods/note", b"not JSON", "JSON is malformed"),
        ("/v1/actors/subject/methods/note", b"[1]", "the call: Expected `object`, got `array`"),
        ("/v1/actors/subject/methods/note", b'{"args": {}}', "the call: Expected `array`, got `object`"),
        (
            "/v1/actors/subject/methods/note",
            b'{"arguments": [1]}',
            "the call: Object contains unknown field `arguments`",
        ),
        ("/v1/actors/subject/methods/note", b'{"number": 1}', "the call: give client and number, from 1, or neither"),
        (
            "/v1/actors/subject/methods/note",
            b'{"args": [' + b"[" * 100 + b"]" * 100 + b"]}",
            "nested more than 100 deep",
        ),
        ("/v1/actors/subject/methods/note", b'{"args": [1e999]}', "Number out of range"),
        ("/v1/actors/subject/methods/note/", b"{}", "calls go to /v1/actors/<name>/methods/<method>"),
        ("/v1/actors//methods/note", b"{}", "calls go to /v1/actors/<name>/methods/<method>"),
        ("/v1/actors/subject/methods/%ff", b"{}", "is not UTF-8"),
        ("/calls", b"{}", "calls go to /v1/actors/<name>/methods/<method>"),
    ],
)
def test_a_malformed_call_is_answered_with_the_error(served: Served, path: str, body: bytes, told: str) -> None:
    connection = served.connect()
    error = error_of(lambda: connection.send(path, body))
    assert told in error["message"]
    assert (error["type"], error["retry"]) == ("InvalidInput", False)
    assert connection.call("note", ["still open"]) == 1


def test_a_call_whose_reply_was_lost_is_asked_for_again_and_runs_once(served: Served) -> None:
    first = served.connect("node-1")
    lost = threading.Thread(target=lambda: suppressed(lambda: first.call("wait", [])))
    lost.start()
    wait_until(lambda: "json:node-1" in served.server.table._clients)
    first._http.sock.shutdown(socket.SHUT_RDWR)
    lost.join(200)
    served.subject.gate.set()
    assert served.connect("node-1").call("wait", [], number=1) == 1
    assert served.subject.notes == ["waited"]
    assert served.connect("node-1").call("note", ["next"], number=2) == 2
    assert error_of(lambda: served.connect("node-1").call("wait", [], number=1))["type"] == "ResultLost"
    assert served.subject.notes == ["waited", "next"]


def test_a_caller_that_cannot_repeat_a_call_is_forgotten_with_its_connection(served: Served) -> None:
    for number in range(1, 4):
        connection = served.connect()
        assert connection.send("/v1/actors/subject/methods/note", b'{"args": [1]}') == number
        connection._http.close()
    wait_until(lambda: not any(name.startswith("json:") for name in served.server.table._clients))


class Kept:
    """A journal that outlives servers, as that of a durable actor does."""

    def __init__(self) -> None:
        self.outcomes: dict[CallId, bytes] = {}

    def known(self, call: CallId) -> bytes | None:
        return self.outcomes.get(call)

    def applied(self, call: CallId, outcome: bytes, lowest: int) -> None:
        self.outcomes[call] = outcome


def test_a_durable_actor_answers_from_its_stored_replies_after_a_restart() -> None:
    journal, subject = Kept(), Subject()
    for _ in range(2):
        server = RpcServer(Keys())
        server.add("subject", subject, journal=journal)
        server.start()
        connection = Served(server, subject).connect("node-1")
        assert connection.call("note", ["once"], number=1) == 1
        assert error_of(partial(connection.call, "fail", [], number=2))["type"] == "KeyError"
        server.close()
    assert subject.notes == ["once"]


def test_two_callers_without_a_name_never_get_one_anothers_results(served: Served) -> None:
    one, other = served.connect(), served.connect()
    path = "/v1/actors/subject/methods/echo"
    assert [one.send(path, b'{"args": ["one"]}'), other.send(path, b'{"args": ["other"]}')] == [
        [["one"], {}],
        [["other"], {}],
    ]


def test_a_connection_has_one_client(served: Served) -> None:
    connection = served.connect()
    path = "/v1/actors/subject/methods/note"
    assert connection.send(path, b'{"args": [1], "client": "a", "number": 1}') == 1
    error = error_of(lambda: connection.send(path, b'{"args": [1], "client": "b", "number": 1}'))
    assert error["message"] == "the call: all calls of a connection have one client; open another connection"


class Greeter:
    def greet(self, ctx: ActorContext, whom: str, *, times: int = 1) -> dict[str, Any]:
        return {"greeting": f"hello {whom}" * times, "namespace": ctx.namespace}


@pytest.mark.parametrize("encrypt", [False, True])
def test_an_actor_of_a_cluster_is_called_by_a_program_of_the_standard_library(tmp_path: Path, encrypt: bool) -> None:
    settings = {"layout": 1, "cluster_id": "x", "addresses": [f"file://{tmp_path.resolve()}"], "encrypt": encrypt}
    (tmp_path / "cluster.json").write_bytes(json.dumps(settings).encode())
    with StorageCluster(str(tmp_path), namespace="space") as cluster:
        server = ActorServer(cluster)
        server.register("greeter", Greeter())
        server.serve_background()
        command = [sys.executable, "-I", "-S", contract_caller.__file__, str(tmp_path), "space", "greeter", "greet"]
        done = subprocess.run([*command, '["you"]', '{"times": 2}'], capture_output=True, text=True, check=True)
        server.shutdown()
    assert json.loads(done.stdout) == {"greeting": "hello youhello you", "namespace": "space"}
