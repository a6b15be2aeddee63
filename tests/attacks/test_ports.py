"""Every port and Unix socket with every kind of stranger: their cost is bounded, and a holder of the key is served."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray_rpc import RpcKey
from fray_rpc.server import acceptor
from fray_rpc.server.acceptor import HANDSHAKE_TIMEOUT, MAX_UNAUTHENTICATED
from fray_rpc.server.call_table import CallTable
from fray_rpc.wire.http_connection import MAX_HEAD
from fray_rpc.wire.session import Session
from tests.attacks.ports import (
    HINTS,
    OVER_TCP,
    PORTS,
    Place,
    Port,
    header,
    more_descriptors,
    open_files,
    proof,
    session,
)
from tests.support.rpc import KEY, AheadOfTime, Keys, ended
from tests.support.waiting import wait_until

MANY = 1000
"""Connections: four times as many as wait at once."""

TOO_MANY = MAX_UNAUTHENTICATED + 100
"""Connections, where each costs the test more."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=PORTS)
def port(request: pytest.FixtureRequest, place: Place) -> Iterator[Port]:
    made = PORTS[request.param](place)
    made.honest()
    yield made
    made.close()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls and hints the servers of this process have taken."""
    calls = itertools.count()
    seen = [0]
    healthy = CallTable.admit

    def counting(self: CallTable, client: str, lowest: int, requests: list[object], receiver: object) -> object:
        seen[0] += len(requests) * (next(calls) >= 0)
        return healthy(self, client, lowest, requests, receiver)  # type: ignore[arg-type]

    monkeypatch.setattr(CallTable, "admit", counting)
    return lambda: seen[0] + len(HINTS)


# --- attacks: each leaves its connections to be closed by the test


def saying(*pieces: bytes) -> Callable[[Port], list[socket.socket]]:
    def attack(port: Port) -> list[socket.socket]:
        sock = port.connect()
        with contextlib.suppress(OSError):  # the server may close before the end
            for piece in pieces:
                sock.sendall(piece.replace(b"fray-key: k1", b"fray-key: " + port.key_id))
        return [sock]

    return attack


def random_bytes(port: Port) -> list[socket.socket]:
    rng = random.Random(12)
    starts = [b"", b"POST ", b"\x16\x03\x01", session()[:40], b"POST /session HTTP/1.1\r\n"]
    each = [saying(rng.choice(starts) + rng.randbytes(rng.randrange(300)))(port) for _ in range(60)]
    return [sock for socks in each for sock in socks]


def resets(port: Port) -> list[socket.socket]:
    for data in [b"", b"x", session()] * 30:
        (sock,) = saying(data)(port)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    return []


def half_closed(port: Port) -> list[socket.socket]:
    socks = [saying(data)(port)[0] for data in (b"", b"POST", session())]
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
    return socks


def held(port: Port) -> list[socket.socket]:
    is_cheap = port.connect is port.dial  # TLS costs its strangers processor time
    return [port.connect() for _ in range(MANY if is_cheap else TOO_MANY)]


def unknown_keys(port: Port) -> list[socket.socket]:
    return [saying(session(b"unknown-%d" % number))(port)[0] for number in range(100)]


def reflected(port: Port) -> list[socket.socket]:
    """The server's own proofs, sent back as ours."""
    first, second = port.connect(), port.connect()
    with contextlib.suppress(OSError):
        first.settimeout(5)
        second.settimeout(5)
        first.sendall(session(port.key_id))
        told = first.recv(4096)
        second.sendall(session(port.key_id, nonce=header(told, b"nonce")))
        again = second.recv(4096)
        first.sendall(proof(header(again, b"proof")))
        second.sendall(proof(header(told, b"proof")))
        assert b" 200 " not in first.recv(4096)
        assert b" 200 " not in second.recv(4096)
    return [first, second]


def descriptors(port: Port) -> list[socket.socket]:
    sock = port.connect()
    if sock.family == socket.AF_UNIX:
        reader, writer = os.pipe()
        for byte in session()[:20]:
            socket.send_fds(sock, [bytes([byte])], [reader] * 16)
        os.close(reader)
        os.close(writer)
    return [sock]


ATTACKS: dict[str, Callable[[Port], list[socket.socket]]] = {
    "random bytes": random_bytes,
    "resets": resets,
    "half closed": half_closed,
    "a thousand held": held,
    "half a handshake": lambda port: [saying(session())(port)[0] for _ in range(50)],
    "unknown keys": unknown_keys,
    "wrong proofs": lambda port: [saying(session(), proof(b"0" * 32, path))(port)[0] for path in (b"/proof", b"/hint")],
    "reflected": reflected,
    "calls in JSON without a proof": saying(session(), proof(b"0" * 64, b"/v1/actors/subject/methods/echo")),
    "descriptors": descriptors,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_cost_their_share_and_keep_nobody_away(port: Port, attack: str, taken: Callable[[], int]) -> None:
    threads, files, before = threading.active_count(), open_files(), taken()
    with more_descriptors():
        socks = ATTACKS[attack](port)
        try:
            assert len(port.acceptor._callers) <= MAX_UNAUTHENTICATED + 1
            port.honest()
        finally:
            for sock in socks:
                sock.close()
    wait_until(lambda: not port.acceptor._callers)
    port.honest()
    assert taken() == before + 2, "only what the holder of the key asked for"
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)


HEAD = b"POST /session HTTP/1.1\r\nhost: x\r\n"
HUGE = b"99999999999999999999"
NO_REQUESTS: dict[str, tuple[bytes, ...]] = {
    "garbage": (b"\x16\x03\x01\x00\xff\xfe" * 50,),
    "a pickle": (pickle.dumps(list(range(100))),),
    "an endless head": (HEAD, *[b"x: y\r\n" * 500] * 20),
    "an endless line": (b"POST /", *[b"x" * 4096] * 20),
    "a huge header": (HEAD + b"x-filler: ", *[b"a" * 4096] * 25),
    "many headers": (HEAD + b"".join(b"x%d:\r\n" % number for number in range(1000)),),
    "a line that is no header": (HEAD + b"no header\r\n\r\n",),
    "a body": (HEAD + b"content-length: 5\r\n\r\nhello",),
    "a huge body": (session().replace(b"length: 0", b"length: 4000000000"), b"x" * 4096),
    "a length beyond numbers": (session().replace(b"length: 0", b"length: " + HUGE),),
    "a negative length": (session().replace(b"length: 0", b"length: -1"),),
    "two lengths": (HEAD + b"content-length: 0\r\ncontent-length: 9\r\n\r\n",),
    "chunks without end": (HEAD + b"transfer-encoding: chunked\r\n\r\n", *[b"5\r\nhello\r\n" * 400] * 20),
    "a request to a proxy": (b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",),
    "a browser's": (b"GET / HTTP/1.1\r\nhost: example.com\r\n\r\n",),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",),
    "calls at once": (proof(b"0" * 32, b"/calls"),),
    "calls in JSON at once": (proof(b"0" * 64, b"/v1/actors/subject/methods/echo"),),
    "a hint at once": (proof(b"0" * 32, b"/hint"),),
    "sessions without end": (session() * 200,),
    "sessions with an unknown key without end": (session(b"unknown"),) * 200,
    "a session and proofs at once": (session() + proof(b"0" * 32) * 3,),
    "a huge second body": (session(), proof(b"0").replace(b"length: 0", b"length: 4000000000"), b"x" * 4096),
}


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_what_is_no_request_of_the_protocol_ends_its_connection(
    port: Port, name: str, taken: Callable[[], int]
) -> None:
    before = taken()
    (sock,) = saying(*NO_REQUESTS[name])(port)
    with sock:
        assert ended(sock, 200).count(b" 200 ") <= NO_REQUESTS[name].count(session())
    port.honest()
    assert taken() == before + 1


SLOW: dict[str, bytes] = {
    "says nothing": b"",
    "head that stops": HEAD[:20],
    "head without end": HEAD,
    "body that never comes": session().replace(b"length: 0", b"length: 200"),
    "reader that never reads": session(),
    "key that nobody knows": session(b"unknown"),
}


def test_slow_strangers_are_sent_away_in_the_stated_time(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = AheadOfTime()
    monkeypatch.setattr(acceptor, "time", ahead)
    socks = [saying(said)(port)[0] for said in SLOW.values()]
    dripping = port.connect()
    (patient,) = saying(session()[:-1])(port)
    with contextlib.ExitStack() as opened:
        for sock in (*socks, dripping, patient):
            opened.enter_context(sock)
        port.honest()  # it comes after them, so they are accepted
        for byte in HEAD:  # a byte every so often does not prolong its time
            with contextlib.suppress(OSError):
                dripping.sendall(bytes([byte]))
            ahead.by += 0.9 * HANDSHAKE_TIMEOUT / len(HEAD)
        port.honest()
        ahead.by += 0.2 * HANDSHAKE_TIMEOUT
        for sock in (*socks, dripping, patient):
            ended(sock, 200)
        port.honest()
        wait_until(lambda: not port.acceptor._callers)


@pytest.mark.parametrize(
    "port",
    ["tcp", "unix", *(pytest.param(kind, marks=pytest.mark.slow) for kind in PORTS if kind not in ("tcp", "unix"))],
    indirect=True,
)
def test_many_strangers_cost_little_memory(port: Port) -> None:
    """Each sends as many headers as a head may have."""
    filler = b"".join(b"x%d:\r\n" % number for number in range(MAX_HEAD // 7))
    with more_descriptors(), contextlib.ExitStack() as opened:
        tracemalloc.start()
        try:
            for _ in range(TOO_MANY):
                (sock,) = saying((HEAD + filler)[: MAX_HEAD - 100])(port)
                opened.enter_context(sock)
            port.honest()
            assert tracemalloc.get_traced_memory()[1] < 2 * MAX_UNAUTHENTICATED * MAX_HEAD + 4 * 2**20
        finally:
            tracemalloc.stop()
    port.honest()


@pytest.mark.parametrize("kind", PORTS)
def test_a_server_ends_though_strangers_hold_on(kind: str, place: Place) -> None:
    PORTS[kind](place).close()  # what is made once in a process is there from now on
    threads, files = threading.active_count(), open_files()
    port = PORTS[kind](place)
    socks = [sock for said in SLOW.values() for _ in range(20) for sock in saying(said)(port)]
    port.close()
    for sock in socks:
        with sock:
            ended(sock, 200)
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        port.dial().close()
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)


@pytest.mark.parametrize("kind", PORTS)
def test_what_a_holder_of_the_key_said_is_worth_nothing_again_or_elsewhere(
    kind: str, place: Place, taken: Callable[[], int]
) -> None:
    there, other = PORTS[kind](place), PORTS[kind](place)
    other.honest()
    said = there.overheard()
    assert len(said) > 1
    before = taken()
    for port in (there, other):
        for pieces in (said, [b"".join(said)], said[1:], said[:1] + said[2:]):
            with port.dial() as sock, contextlib.suppress(OSError):
                sock.settimeout(200)
                sock.sendall(pieces[0])
                for piece in pieces[1:]:
                    if not sock.recv(4096):
                        break
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
                ended(sock, 200)
    assert taken() == before
    there.honest()
    assert taken() == before + 1
    there.close()
    other.close()


@pytest.mark.parametrize("kind", OVER_TCP)
def test_a_flood_from_one_host_keeps_no_caller_of_another_away(
    kind: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flood comes while a caller with the key, who is far away, is within its handshake."""
    monkeypatch.setattr("fray_rpc.client.connect.CONNECT_TIMEOUT", 200.0)
    monkeypatch.setattr(acceptor, "HANDSHAKE_TIMEOUT", 200.0)
    port = PORTS[kind](place)
    port.honest()
    host, _, number = port.target.tcp.rpartition(":")
    flood: list[socket.socket] = []

    def after_the_flood(reply: bytes) -> bytes:
        while len(flood) < TOO_MANY:
            flood.append(socket.create_connection((host, int(number)), 200, source_address=("127.0.0.2", 0)))
            if len(flood) == TOO_MANY:  # it is answered once all before it are accepted
                flood[-1].sendall(b"no request\r\n\r\n")
                ended(flood[-1], 200)
        return reply

    with more_descriptors():
        try:
            port.overheard(after_the_flood)
            assert flood
        finally:
            for sock in flood:
                sock.close()
            port.close()


@pytest.mark.parametrize("keys", [Keys(RpcKey("k1", b"another secret 0123456789")), Keys(RpcKey("k9", KEY.secret))])
def test_wrong_keys_open_nothing(port: Port, keys: Keys) -> None:
    with port.connect() as sock:
        sock.settimeout(20)
        with contextlib.suppress(OSError):
            sock.sendall(session(keys.current[0].id.encode()))
            told = sock.recv(4096)
            there = header(told, b"identity"), header(told, b"nonce")
            made = Session.derive(keys.current[0], b"00", there[1], there[0])
            sock.sendall(proof(made.to_server.proof()))
            assert b" 200 " not in sock.recv(4096)
    port.honest()
