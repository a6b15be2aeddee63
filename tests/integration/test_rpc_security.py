"""A server does nothing for a caller without the key, and a caller trusts no server without the key."""

from __future__ import annotations

import pickle
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fray_rpc import (
    ConnectionLost,
    NotAuthentic,
    RpcKey,
    RpcServer,
    Target,
    connect,
)
from fray_rpc.client.connect import open_connection, open_session
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.server import acceptor, server as rpc_server
from fray_rpc.server.connection import ServerConnection
from fray_rpc.wire.handshake import ClientHandshake, http_request
from fray_rpc.wire.messages import CallBatch, CallId, encode_calls, packed_call
from fray_rpc.wire.session import KEY_READ_INTERVAL, Session
from tests.support.rpc import (
    KEY,
    AheadOfTime,
    Keys,
    Subject,
    dial_tcp,
    ended,
    serve_subject,
    serving,
    through_proxy,
)
from tests.support.waiting import wait_until

SESSION = b"POST /session HTTP/1.1\r\nhost: x\r\nfray-key: k1\r\nfray-nonce: 00\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RpcServer]:
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    server = serve_subject()
    yield server
    server.close()


@pytest.fixture
def target() -> Iterator[Target]:
    with serving() as target:
        yield target


def own_channel(target: Target, keys: Keys) -> RemoteChannel:
    """A channel that is not shared, and uses TCP even within this process."""
    link, _ = open_connection(target, keys)
    return RemoteChannel(target, keys, secrets.token_hex(4), link, lambda channel: None)


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_call_before_the_answer_to_the_proof_ends_the_connection(server: RpcServer) -> None:
    """Whoever reads the connection after the proof would wait for it for ever."""

    def impatient(handshake: ClientHandshake, session: Session) -> socket.socket:
        proof = http_request(b"/proof", proof=session.to_server.proof())
        handshake.sock.sendall(proof + b"POST /calls HTTP/1.1\r\nhost: x\r\n")
        return handshake.sock

    sock, _ = open_session(Target("subject", server.address), Keys(), None, impatient)
    with sock:
        assert ended(sock, 20) == b""


def test_a_caller_that_never_reads_its_replies_delays_no_other_and_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fray_rpc.wire.http_connection.STALL_TIMEOUT", 1.0)
    server = serve_subject()
    link, _ = open_connection(Target("subject", server.address), Keys())
    large = packed_call("wide", "echo", (b"x" * 2**25,), {})
    call = msgspec.structs.replace(large, id=CallId("greedy", 1))
    link.send(encode_calls(CallBatch("greedy", 1, True, [call], [])))
    wait_until(lambda: any(connection._sending for connection in server._connections))
    other = own_channel(Target("subject", server.address), Keys())
    assert other.call("wide", "echo", (1,), {}) == 1
    other.close()
    wait_until(lambda: not server._connections)
    link.close()
    server.close()


def test_a_server_waits_once_for_all_callers_that_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve_subject()
    callers = [own_channel(Target("subject", server.address), Keys()) for _ in range(10)]
    assert [caller.call("subject", "echo", (1,), {}) for caller in callers] == [1] * 10
    waited: list[float] = []

    def stalled(self: ServerConnection, timeout: float) -> bool:
        waited.append(timeout)
        ahead.by += max(timeout, 0.0)
        return False

    ahead = AheadOfTime()
    monkeypatch.setattr(rpc_server, "time", ahead)
    monkeypatch.setattr(ServerConnection, "flushed", stalled)
    server.close()
    assert len(waited) == 10
    assert sum(max(timeout, 0.0) for timeout in waited) <= rpc_server.MIN_FLUSH
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("path", [b"/calls", b"/proof", b"/session"])
def test_without_the_key_nothing_is_unpickled(server: RpcServer, tmp_path: Path, path: bytes) -> None:
    body = pickle.dumps(Bomb(tmp_path / "exploded"))
    with dial_tcp(server.address) as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
        assert ended(sock, 20) == b""
    with dial_tcp(server.address) as sock:
        sock.sendall(SESSION)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\nfray-proof: 00\r\ncontent-length: 0\r\n\r\n" % path)
        assert b" 200 " not in ended(sock, 20)
    assert not (tmp_path / "exploded").exists()


def test_a_wrong_secret_and_an_unknown_key_are_refused(server: RpcServer) -> None:
    target = Target("subject", server.address)
    with pytest.raises(NotAuthentic):
        open_connection(target, Keys(RpcKey("k1", b"another secret 0123456789")))
    with pytest.raises(NotAuthentic, match="knows none of the keys k9"):
        open_connection(target, Keys(RpcKey("k9", KEY.secret)))
    with pytest.raises(ValueError, match="at least 16"):
        RpcKey("k1", b"short")


def test_only_callers_with_the_key_share_a_channel(server: RpcServer, target: Target) -> None:
    """Once a caller with another cluster's key got the channel of a caller with the right key in the same process."""
    for meant in (Target("subject", server.address), target, target._replace(identity="")):
        shared = connect(meant, Keys())
        assert connect(meant, Keys(RpcKey("k2", b"the next secret 0123456789"), KEY)) is shared
        for wrong in (RpcKey("k1", b"another secret 0123456789"), RpcKey("k9", KEY.secret)):
            with pytest.raises(NotAuthentic):
                connect(meant, Keys(wrong))
        assert connect(meant, Keys()) is shared


def test_a_request_sent_twice_on_its_connection_runs_once(target: Target) -> None:
    with through_proxy(target) as (proxy, channel):
        proxy.alter_request = lambda data: data * 2 if data.startswith(b"POST /calls") else data
        calls = [channel.call("subject", "note", (number,), {}) for number in range(3)]
    assert calls == [0, 1, 2]
    assert connect(target, Keys()).call("subject", "notes", (), {}) == [0, 1, 2]


def _once(change: Callable[[bytes], bytes], where: Callable[[bytes], bool]) -> Callable[[bytes], bytes]:
    """Alter the first piece for which `where` holds."""
    left = [1]

    def alter(data: bytes) -> bytes:
        if left and where(data):
            left.clear()
            return change(data)
        return data

    return alter


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", [-1, -20])
def test_an_altered_request_is_refused_and_asked_again(target: Target, at: int) -> None:
    with through_proxy(target) as (proxy, channel):
        proxy.alter_request = _once(lambda data: _flip(data, at), lambda data: data.startswith(b"POST /calls"))
        assert channel.call("subject", "note", ("original",), {}) == "original"
    assert connect(target, Keys()).call("subject", "notes", (), {}) == ["original"]


def test_an_altered_large_body_is_refused_and_asked_again(target: Target) -> None:
    array = np.arange(500_000.0)
    with through_proxy(target) as (proxy, channel):
        proxy.alter_request = _once(lambda data: _flip(data, 30_000), lambda data: len(data) > 30_000)
        assert channel.call("subject", "keep", (array,), {}) == array.sum()
        proxy.alter_reply = _once(lambda data: _flip(data, 10_000), lambda data: len(data) > 10_000)
        np.testing.assert_array_equal(channel.call("subject", "kept_array", (), {}), array)


def test_a_forged_reply_is_not_believed(target: Target) -> None:
    with through_proxy(target) as (proxy, channel):
        proxy.alter_reply = _once(lambda data: _flip(data, -1), lambda data: True)
        assert channel.call("subject", "note", ("original",), {}) == "original"
        answers: list[bytes] = []

        def repeat(data: bytes) -> bytes:
            answers.append(data)
            return answers[0]

        proxy.alter_reply = repeat
        assert channel.start("subject", "echo", (1,), {}).result(200) == 1
        with pytest.raises(ConnectionLost):  # an earlier reply again, and again at each attempt to come back
            channel.call("subject", "echo", (2,), {})


def test_a_process_that_took_over_the_port_is_found_out(target: Target) -> None:
    impostor = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def answer() -> None:
        for _ in range(2):
            sock, _ = impostor.accept()
            with sock:
                asked.append(sock.recv(4096))
                identity = target.identity.encode()
                sock.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nfray-identity: %b\r\n"
                    b"fray-nonce: 00\r\nfray-proof: 00\r\n\r\n" % identity
                )
                asked.append(sock.recv(4096))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with impostor:
        taken = target._replace(tcp=f"127.0.0.1:{impostor.getsockname()[1]}")
        for _ in range(2):
            with pytest.raises(NotAuthentic):
                open_connection(taken, Keys())
        thread.join(200)
    assert [part for part in asked if part and not part.startswith(b"POST /session")] == []


def test_no_memory_is_taken_for_a_length_that_is_not_authenticated(server: RpcServer) -> None:
    target = Target("subject", server.address, "", server.identity)
    link, _ = open_connection(target, Keys())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = b"POST /calls HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000000\r\nfray-seal: %b\r\n\r\n" % (b"0" * 32)
    link.sock.sendall(head + b"x" * 100)
    assert link.receive() is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


def test_a_message_that_stands_still_ends_its_connection(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr("fray_rpc.wire.http_connection.STALL_TIMEOUT", 1.0)
    server = serve_subject()
    link, _ = open_connection(Target("subject", server.address), Keys())
    link.sock.sendall(b"POST /calls HTTP/1.1\r\nhost: x\r\ncontent-le")
    assert link.receive() is None
    server.close()


def test_a_flood_of_connections_leaves_calls_alone(target: Target) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    channel = connect(target, Keys())
    waiting = channel.start("wide", "wait", (), {})
    flood = []
    try:
        for _ in range(2000):
            flood.append(dial_tcp(target.tcp))
            flood[-1].sendall(SESSION[:30])
        assert channel.call("wide", "echo", (1,), {}) == 1
        late = own_channel(target, Keys())
        late.call("wide", "open", (), {})
        assert waiting.result(200)
        late.close()
        flood[0].settimeout(acceptor.HANDSHAKE_TIMEOUT / 2)
        assert flood[0].recv(1) == b"", "the oldest have made room, long before they would be sent away"
    finally:
        for sock in flood:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_keys_rotate_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    old, new = KEY, RpcKey("k2", b"the second secret of them")
    ours, theirs = Keys(old), Keys(old)
    server = serve_subject(keys=theirs)
    target = Target("subject", server.address, "", server.identity)
    before = own_channel(target, ours)
    ours.current = ours.served = [new, old]
    theirs.current = [new, old]
    with_new = own_channel(target, ours)  # the server reads its keys again
    assert theirs.readings == 2
    ours.served, ours.current = [old], [new]
    theirs.current = theirs.served = [new]
    with_newest = own_channel(target, ours)  # the caller reads its keys again
    assert [channel.call("subject", "echo", (1,), {}) for channel in (before, with_new, with_newest)] == [1, 1, 1]
    server.close()


def refused(address: str, key: RpcKey) -> bool:
    """Whether a server refuses a new connection with that key."""
    try:
        open_connection(Target("", address), Keys(key))[0].close()
    except NotAuthentic:
        return True
    return False


def test_a_dropped_key_opens_no_connection_and_its_open_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "KEY_RECHECK_INTERVAL", 0.05)
    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    old, new = KEY, RpcKey("k2", b"the second secret of them")
    ours, theirs = Keys(old), Keys(new, old)
    server = serve_subject(keys=theirs)
    target = Target("subject", server.address, "", server.identity)
    leaked, honest, other = own_channel(target, Keys(old)), own_channel(target, ours), own_channel(target, Keys(new))
    assert [channel.call("subject", "echo", (1,), {}) for channel in (leaked, honest, other)] == [1, 1, 1]
    link = other._connection
    theirs.current = [new]
    ours.current = [new]
    wait_until(lambda: refused(server.address, old))
    with pytest.raises(ConnectionLost):
        leaked.call("subject", "note", ("leaked",), {})
    assert honest.call("subject", "note", ("honest",), {}) == "honest", "it reads its keys again"
    assert other.call("subject", "notes", (), {}) == ["honest"]
    assert other._connection is link, "whose key is still accepted is left alone"
    for channel in (honest, other):
        channel.close()
    server.close()


def test_a_server_that_was_never_called_reads_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "KEY_RECHECK_INTERVAL", 0.01)
    keys = Keys()
    server = serve_subject(keys=keys)
    for _ in range(10):
        with dial_tcp(server.address) as sock:
            sock.sendall(b"garbage")
            assert ended(sock, 20) == b""
    assert keys.readings == 0
    server.close()


def test_strangers_cannot_make_the_server_read_its_keys_again_and_again() -> None:
    keys = Keys()
    server = serve_subject(keys=keys)

    def stranger(number: int) -> None:
        with pytest.raises(NotAuthentic):
            open_connection(Target("subject", server.address), Keys(RpcKey(f"unknown-{number}", KEY.secret)))

    began = time.monotonic()
    with ThreadPoolExecutor(20) as strangers:
        list(strangers.map(stranger, range(40)))
    assert 1 <= keys.readings <= 2 + (time.monotonic() - began) / KEY_READ_INTERVAL
    server.close()


def test_keys_that_cannot_be_read_send_one_caller_away_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Keys):
        def keys(self, fresh: bool = False) -> list[RpcKey]:
            if self.readings:
                raise OSError("the bucket is away")
            return super().keys(fresh)

    monkeypatch.setattr(acceptor, "KEY_READ_INTERVAL", 0.0)
    server = serve_subject(keys=Broken())
    target = Target("subject", server.address, "", server.identity)
    before = own_channel(target, Keys())
    with pytest.raises(ConnectionLost):
        open_connection(target, Keys(RpcKey("unknown", KEY.secret)))
    after = own_channel(target, Keys())
    assert [channel.call("subject", "echo", (1,), {}) for channel in (before, after)] == [1, 1]
    before.close()
    after.close()
    server.close()


def test_another_certificate_is_refused_before_anything_is_said() -> None:
    with serving(tls=True) as target:
        assert connect(target, Keys()).call("subject", "echo", (1,), {}) == 1
        with pytest.raises(NotAuthentic, match="certificate"):
            open_connection(target._replace(fingerprint="0" * 64), Keys())
        with pytest.raises(ConnectionLost):  # plain bytes to a TLS server
            open_connection(target._replace(fingerprint=""), Keys())


def test_tls_hides_the_messages() -> None:
    with serving(tls=True) as target, through_proxy(target) as (proxy, channel):
        assert channel.call("subject", "echo", ("the secret word",), {}) == "the secret word"
        assert not any(b"the secret word" in data for data in proxy.said)
    with serving() as target, through_proxy(target) as (proxy, channel):
        channel.call("subject", "echo", ("the secret word",), {})
        assert any(b"the secret word" in data for data in proxy.said)


def test_an_unpicklable_reply_of_a_holder_of_the_key_is_told(server: RpcServer) -> None:
    subject = Subject()
    server.add("closing", subject)
    channel = own_channel(Target("closing", server.address, "", server.identity), Keys())
    with pytest.raises(RuntimeError, match="cannot be pickled"):
        channel.call("closing", "lock", (), {})
    channel.close()
