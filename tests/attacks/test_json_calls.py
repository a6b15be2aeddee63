"""Calls in JSON under attack: nothing runs for a caller without the key, and no input is unpickled."""

from __future__ import annotations

import contextlib
import pickle
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from fray_rpc import RpcKey, RpcServer
from fray_rpc.server import acceptor
from fray_rpc.server.connection import ServerConnection, Watchdog
from fray_rpc.wire.session import Session
from tests.acceptance.contract_caller import ActorError, Connection, NotAuthentic, joined, seal
from tests.support.rpc import (
    KEY,
    Keys,
    Proxy,
    Subject,
    dial_tcp,
)
from tests.support.waiting import wait_until

NOTE = "/v1/actors/subject/methods/note"


class Served:
    """A server with one actor, and callers of it."""

    def __init__(self, tls: bool = False) -> None:
        self.server, self.subject = RpcServer(Keys(), tls=tls), Subject()
        self.server.add("subject", self.subject)
        self.server.start()

    def connect(self, address: str = "", secret: bytes = KEY.secret, key_id: str = KEY.id) -> Connection:
        there = {"name": "subject", "address": address or self.server.address, "nonce": self.server.identity}
        return Connection({**there, "fingerprint": self.server.fingerprint}, (key_id, secret))


@pytest.fixture(params=["plain", pytest.param("encrypted", marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(tls=request.param == "encrypted")
    yield made
    made.server.close()


@pytest.fixture
def plain() -> Iterator[Served]:
    """A relay in the middle sees and changes everything."""
    made = Served()
    yield made
    made.server.close()


@pytest.fixture
def proxy(plain: Served) -> Iterator[Proxy]:
    made = Proxy(partial(dial_tcp, plain.server.address))
    yield made
    made.close()


def request(path: str, body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def rest_of(sock: socket.socket) -> bytes:
    """All bytes that come before the server closes."""
    sock.settimeout(30)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            heard += data
    return heard


def refused(call: Callable[[], object]) -> None:
    """Check that the connection ends without an answer."""
    with pytest.raises((OSError, HTTPException)):
        call()


def sealed(connection: Connection, path: str, body: bytes, position: int) -> bytes:
    return request(path, body, fray_seal=seal(connection._up, position, joined(path.encode(), body)))


def sock_of(connection: Connection) -> Any:
    return connection._http.sock


# --- without the key


def test_without_a_proof_nothing_runs(plain: Served) -> None:
    hello = request("/session", b"", fray_key=KEY.id, fray_nonce="00" * 16)
    call = request(NOTE, b'{"args": [1]}', fray_seal="0" * 64)
    with dial_tcp(plain.server.address) as sock:
        sock.sendall(call)
        assert rest_of(sock) == b""
    with dial_tcp(plain.server.address) as sock:
        sock.sendall(hello)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.sendall(call)
        assert b" 200 " not in rest_of(sock)
    with dial_tcp(plain.server.address) as sock:
        sock.sendall(hello)
        told = sock.recv(4096)
        own_proof = told.partition(b"fray-proof: ")[2].partition(b"\r\n")[0].decode()
        sock.sendall(request("/proof", b"", fray_proof=own_proof))
        assert b" 200 " not in rest_of(sock)
    assert plain.subject.log == []


def test_wrong_keys_open_nothing(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    with pytest.raises(NotAuthentic, match="the server's proof is wrong"):
        served.connect(secret=b"another secret 0123456789")
    with pytest.raises(NotAuthentic):
        served.connect(key_id="k9")
    assert served.connect().call("note", [1]) == 1


def test_a_seal_of_another_key_place_or_content_ends_the_connection(served: Served) -> None:
    body = b'{"args": [1]}'
    wrong: list[Callable[[Connection], str]] = [
        lambda c: "",
        lambda c: seal(b"\0" * 32, 1, joined(NOTE.encode(), body)),
        lambda c: seal(c._down, 1, joined(NOTE.encode(), body)),
        lambda c: seal(c._up, 2, joined(NOTE.encode(), body)),
        lambda c: seal(c._up, 1, joined(b"/v1/actors/subject/methods/notes", body)),
        lambda c: seal(c._up, 1, body),
        lambda c: seal(c._up, 1, len(body).to_bytes(8, "big") + body),
    ]
    for forged in wrong:
        connection = served.connect()
        sock_of(connection).sendall(request(NOTE, body, fray_seal=forged(connection)))
        assert rest_of(sock_of(connection)) == b""
    assert served.connect().call("note", ["honest"]) == "honest"
    assert served.subject.log == ["honest"]


# --- a relay in the middle


def test_a_recorded_connection_is_worth_nothing_later_or_elsewhere(plain: Served, proxy: Proxy) -> None:
    plain.connect(proxy.address).call("note", [1])
    hello, *rest = proxy.said
    other = Served()
    for server in (plain.server, other.server):
        with dial_tcp(server.address) as sock:
            sock.sendall(hello)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(b"".join(rest))
            assert b" 200 " not in rest_of(sock)
    other.server.close()
    assert plain.subject.log == [1]
    assert other.subject.log == []


def test_a_call_that_is_sent_twice_runs_once(plain: Served, proxy: Proxy) -> None:
    connection = plain.connect(proxy.address)
    proxy.alter_request = lambda data: data * 2
    with contextlib.suppress(OSError, HTTPException):
        connection.call("note", [1])
    wait_until(lambda: not plain.server._connections)
    assert plain.subject.log in ([1], [])


@pytest.mark.parametrize(
    ("said", "instead"),
    [(b"[1]", b"[2]"), (b"methods/note", b"methods/echo")],
)
def test_an_altered_call_does_not_run(plain: Served, proxy: Proxy, said: bytes, instead: bytes) -> None:
    connection = plain.connect(proxy.address)
    proxy.alter_request = lambda data: data.replace(said, instead)
    refused(lambda: connection.call("note", [1]))
    assert plain.subject.log == []


def test_an_altered_or_earlier_reply_is_not_believed(plain: Served, proxy: Proxy) -> None:
    connection = plain.connect(proxy.address)
    assert connection.call("echo", [1]) == 1
    first = proxy.heard[-1]
    proxy.alter_reply = lambda data: data.replace(b":2}", b":3}")
    with pytest.raises(NotAuthentic, match="the seal of the reply"):
        connection.call("echo", [2])
    connection = plain.connect(proxy.address)
    connection.call("echo", [0])
    proxy.alter_reply = lambda data: first
    with pytest.raises(NotAuthentic, match="the seal of the reply"):
        connection.call("echo", [1])


# --- with the key, or in its place: pickles


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    yield pickle.dumps(Bomb(tmp_path / "exploded"), 5)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream", "application/x-python-pickle"])
def test_a_pickle_in_the_place_of_a_call_is_never_loaded(served: Served, bomb: bytes, kind: str) -> None:
    for path in (NOTE, "/calls", "/proof"):
        connection = served.connect()
        head = {"fray_seal": seal(connection._up, 1, joined(path.encode(), bomb)), "content_type": kind}
        sock_of(connection).sendall(request(path, bomb, **head))
        assert b'"type": "InvalidInput"' in sock_of(connection).recv(65536)
        connection._sent = 1  # the connection goes on
        assert connection.call("note", [path]) == path


def test_a_table_of_calls_ends_a_connection_that_speaks_json(served: Served, bomb: bytes) -> None:
    table = struct.pack("<IQ", 1, len(bomb)) + bomb
    connection = served.connect()
    own = seal(connection._up, 1, len(table).to_bytes(8, "big") + table)
    sock_of(connection).sendall(request("/calls", table, fray_seal=own))
    assert rest_of(sock_of(connection)) == b""


def test_json_ends_a_connection_that_speaks_tables(plain: Served, bomb: bytes) -> None:
    table = struct.pack("<IQ", 1, len(bomb)) + bomb
    for path, body in ((NOTE, b'{"args": [1]}'), (NOTE, table), ("/calls", table)):
        connection = plain.connect()
        with contextlib.closing(_speaking_tables(connection, plain)) as sock:
            sock.sendall(sealed(connection, path, body, 1))
            assert rest_of(sock) == b""
    assert plain.subject.log == []


def _speaking_tables(connection: Connection, served: Served) -> socket.socket:
    """A connection whose proof was for tables of calls. `connection` gets its keys."""
    sock = dial_tcp(served.server.address)
    sock.sendall(request("/session", b"", fray_key=KEY.id, fray_nonce="00" * 16))
    told = sock.recv(4096)
    nonce = told.partition(b"fray-nonce: ")[2].partition(b"\r\n")[0]
    session = Session.derive(RpcKey("k", KEY.secret), b"00" * 16, nonce, served.server.identity.encode())
    connection._up = session.to_server._key
    sock.sendall(request("/proof", b"", fray_proof=seal(connection._up, 0, b"proof")))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    return sock


# --- too much, too deep, too slow


def test_a_body_beyond_the_limit_takes_no_memory(served: Served) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (16 * 2**20 + 1, 3_000_000_000, 10**20):
        connection = served.connect()
        head = request(NOTE, b"", fray_seal="0" * 64).replace(b"length: 0", b"length: %d" % length)
        sock_of(connection).sendall(head + b"x" * 100)
        assert rest_of(sock_of(connection)) == b""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB
    assert served.connect().call("note", [1]) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"args": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"args": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}",
        b'{"args": [' + b"9" * 1_000_000 + b"]}",
        b'{"args": ["' + b"\\ud800" * 10 + b'"]}',
        b'{"args": ["\xff\xfe"]}',
        b'{"kwargs": {"a b": 1, "self": 2, "": 3}}',
        b'{"args": [1], "client": "' + b"c" * 65 + b'", "number": 1}',
        b'{"args": [1], "client": "a/b", "number": 1}',
        b'{"args": [1], "client": "a", "number": -1}',
        b'{"args": [1], "client": "a", "number": 9007199254740993}',
        b"",
        b"null",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_odd_json_is_an_error_and_the_server_goes_on(served: Served, body: bytes) -> None:
    connection = served.connect()
    with pytest.raises(ActorError):
        connection.send(NOTE, body)
    assert served.subject.log == []
    assert served.connect().call("note", [1]) == 1


def test_a_call_that_stands_still_ends_its_connection(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr("fray_rpc.wire.http_connection.STALL_TIMEOUT", 1.0)
    begun = []
    for rest in (400, 500_100):  # within the body, and within the head
        begun.append(served.connect())
        call = sealed(begun[-1], NOTE, b'{"args": ["' + b"x" * 500_000 + b'"]}', 1)
        sock_of(begun[-1]).sendall(call[:-rest])
    assert [rest_of(sock_of(connection)) for connection in begun] == [b"", b""]
    assert served.subject.log == []
    wait_until(lambda: not served.server._connections)


def test_calls_that_come_before_the_reply_end_the_connection(plain: Served) -> None:
    waiting = Subject()
    plain.server.add("waiting", waiting)
    connection = plain.connect()
    sock_of(connection).sendall(sealed(connection, "/v1/actors/waiting/methods/wait", b"{}", 1))
    wait_until(waiting.has_entered)
    sock_of(connection).sendall(sealed(connection, NOTE, b'{"args": [2]}', 2))
    assert rest_of(sock_of(connection)) == b""
    waiting.open()
    assert plain.subject.log == []


def test_a_call_that_the_watchdog_finds_before_it_runs_keeps_no_connection(
    monkeypatch: pytest.MonkeyPatch, plain: Served
) -> None:
    real = Watchdog.begin

    def begin_late(watchdog: Watchdog, connection: ServerConnection) -> int:
        number = real(watchdog, connection)
        wait_until(lambda: connection not in watchdog._busy)
        return number

    monkeypatch.setattr(Watchdog, "begin", begin_late)
    test_calls_that_come_before_the_reply_end_the_connection(plain)


def test_callers_that_hang_up_leave_nothing_behind(served: Served) -> None:
    for _ in range(10):
        connection = served.connect()
        sock_of(connection).sendall(sealed(connection, NOTE, b'{"args": [1]}', 1))
        connection.close()
    wait_until(lambda: not served.server._connections)
    assert served.connect().call("echo", [1]) == 1
