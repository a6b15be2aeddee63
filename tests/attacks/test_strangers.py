"""Strangers at every port: a holder of the key is served, whatever they send."""

from __future__ import annotations

import errno
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pkgutil import resolve_name as resolve

import pytest

from fray_rpc import (
    ConnectionLost,
    RemoteError,
    RpcKey,
    RpcServer,
    Target,
)
from fray_rpc.client.connect import open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.server import acceptor
from fray_rpc.server.acceptor import Acceptor
from fray_rpc.server.connection import ServerConnection
from fray_rpc.wire.key_cache import KeyCache
from fray_rpc.wire.session import KEY_READ_INTERVAL
from tests.support.rpc import (
    KEY,
    Keys,
    dial_tcp,
    serve_subject,
)
from tests.support.waiting import wait_until


@contextmanager
def subject(tls: bool = False) -> Iterator[RpcServer]:
    server = serve_subject(tls=tls)
    yield server
    server.close()


def own_channel(server: RpcServer) -> RemoteChannel:
    """A new connection of a holder of the key."""
    target = Target("subject", server.address, "", server.identity, server.fingerprint)
    link, _ = open_connection(target, Keys())
    return RemoteChannel(target, Keys(), secrets.token_hex(4), link, lambda channel: None)


def answers(server: RpcServer) -> bool:
    """Whether a holder of the key is served."""
    channel = own_channel(server)
    try:
        return bool(channel.call("subject", "echo", (True,), {}))
    finally:
        channel.close()


def reset(address: str, data: bytes) -> None:
    """Connect, send these bytes and reset the connection."""
    sock = dial_tcp(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if data:
        sock.send(data)
    sock.close()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("data", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n"])
def test_connections_that_break_at_once_harm_nobody(tls: bool, data: bytes) -> None:
    with subject(tls) as server:
        for _ in range(200):
            reset(server.address, data)
        assert answers(server)


@pytest.mark.parametrize("step", ["_accept", "_receive", "_expire"])
def test_no_exception_of_one_connection_ends_the_acceptor(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    failures = iter([MemoryError(), ValueError("odd"), RuntimeError("can't start new thread")])
    healthy = getattr(Acceptor, step)
    failed = threading.Semaphore(0)

    def flawed(self: Acceptor, *args: object) -> None:
        if (failure := next(failures, None)) is not None:
            failed.release()
            raise failure
        healthy(self, *args)

    monkeypatch.setattr(Acceptor, step, flawed)
    with subject() as server:
        for _ in range(3):
            with dial_tcp(server.address) as sock:
                sock.sendall(b"x")
                assert failed.acquire(timeout=200)
        assert answers(server)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED, errno.EPROTO])
def test_a_refused_accept_is_tried_again(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    accept, refusals = socket.socket.accept, iter([OSError(number, "refused")] * 3)
    accepting = threading.current_thread()

    def refused(self: socket.socket) -> tuple[socket.socket, object]:
        if threading.current_thread() is not accepting and (error := next(refusals, None)) is not None:
            raise error
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", refused)
    with subject() as server:
        assert answers(server)
        wait_until(lambda: next(refusals, None) is None)


class Leaving:
    """Its coroutines would end the event loop that runs them."""

    async def leave(self) -> None:
        raise SystemExit(3)

    async def echo(self, value: int) -> int:
        return value


def test_a_coroutine_that_exits_ends_its_own_call_only() -> None:
    with subject() as server:
        server.add("leaving", Leaving())
        channel = own_channel(server)
        with pytest.raises(RemoteError, match="SystemExit"):
            channel.start("leaving", "leave", (), {}).result(200)
        assert channel.start("leaving", "echo", (1,), {}).result(200) == 1
        channel.close()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize("step", ["fray_rpc.wire.messages.encode_replies", "fray_rpc.wire.messages.decode_calls"])
def test_a_connection_that_fails_within_the_server_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    healthy, failures = resolve(step), iter([error])

    def flawed(*args: object) -> object:
        if (failure := next(failures, None)) is not None:
            raise failure
        return healthy(*args)

    monkeypatch.setattr(step, flawed)
    with subject() as server:
        channel = own_channel(server)
        for actor_id in ("wide", "subject"):
            assert channel.start(actor_id, "echo", (1,), {}).result(200) == 1
        channel.close()


def test_a_server_with_slow_calls_survives_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy, failed = ServerConnection.replace_reader, threading.Event()

    def flawed(self: ServerConnection, number: int) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        healthy(self, number)

    monkeypatch.setattr(ServerConnection, "replace_reader", flawed)
    with subject() as server:
        first, second = own_channel(server), own_channel(server)
        assert first.call("wide", "sleep", (0.1,), {}) == 0.1
        assert failed.is_set()
        waiting = threading.Thread(target=second.call, args=("wide", "wait", (), {}), daemon=True)
        waiting.start()
        wait_until(lambda: bool(first.call("wide", "has_entered", (), {})))
        assert second.start("wide", "echo", (1,), {}).result(200) == 1
        first.call("wide", "open", (), {})
        waiting.join(200)
        assert not waiting.is_alive()
        first.close()
        second.close()


def test_replies_that_cannot_be_read_fail_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*args: object) -> None:
        raise MemoryError

    with subject() as server:
        channel = own_channel(server)
        monkeypatch.setattr("fray_rpc.client.remote_channel.decode_replies", unreadable)
        with pytest.raises(ConnectionLost, match="MemoryError"):
            channel.start("subject", "echo", (1,), {}).result(200)


def test_calls_for_which_no_thread_can_be_started_fail_and_later_ones_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, short = threading.Thread.start, threading.Event()

    def refused(self: threading.Thread) -> None:
        if short.is_set() and self.name == "fray-actor":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with subject() as server:
        channel = own_channel(server)
        short.set()
        calls = [channel.start("wide", "echo", (number,), {}) for number in range(3)]
        for call in calls:
            with pytest.raises(RemoteError, match="thread"):
                call.result(200)
        short.clear()
        assert channel.start("wide", "echo", (1,), {}).result(200) == 1
        channel.close()


class SlowKeys(Keys):
    """A second read of them waits until `gate` is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.asked = threading.Event()

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        if fresh and self.readings:
            self.asked.set()
            assert self.gate.wait(200)
        return super().keys(fresh)


def test_while_keys_are_read_for_strangers_a_holder_of_a_known_key_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    keys = SlowKeys()
    server = serve_subject(keys=keys)
    assert answers(server)
    strangers = [dial_tcp(server.address) for _ in range(50)]
    for number, sock in enumerate(strangers):
        sock.sendall(session_request(f"unknown-{number}"))
    assert keys.asked.wait(200)
    assert answers(server)
    keys.gate.set()
    for sock in strangers:
        assert sock.recv(4096).startswith(b"HTTP/1.1 401")
        sock.close()
    server.close()


def test_a_clusters_keys_are_read_once_for_all_callers_and_delay_no_others() -> None:
    reads: list[int] = []
    gate, reading = threading.Event(), threading.Event()

    def read() -> list[tuple[str, bytes]]:
        if reads:
            reading.set()
            assert gate.wait(200)
        reads.append(1)
        return [("k1", KEY.secret)]

    cache = KeyCache(read)
    assert cache.keys() == [KEY]
    assert cache.keys(fresh=True) == [KEY], "what was just read is fresh"
    cache._read_at -= KEY_READ_INTERVAL
    with ThreadPoolExecutor(20) as pool:
        fresh = [pool.submit(cache.keys, True) for _ in range(20)]
        assert reading.wait(200)
        assert cache.keys() == [KEY]
        gate.set()
        assert all(one.result() == [KEY] for one in fresh)
    assert len(reads) == 2


def session_request(key_id: str) -> bytes:
    return b"POST /session HTTP/1.1\r\nfray-key: %b\r\nfray-nonce: 00\r\ncontent-length: 0\r\n\r\n" % key_id.encode()
