"""Every port and Unix socket with every kind of stranger: their cost is bounded, and a holder of the key is served."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import secrets
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import StorageCluster
from fray.queue import HttpQueueServer
from fray.rpc import ActorServer
from fray_agents.rpc import (
    Keyring,
    RpcKey,
    RpcServer,
    Target,
)
from fray_agents.rpc.client.connect import open_connection
from fray_agents.rpc.client.remote_channel import RemoteChannel
from fray_agents.rpc.hints import HintServer, send_hint
from fray_agents.rpc.server import accepted_keys
from fray_agents.rpc.server.acceptor import MAX_UNAUTHENTICATED, Acceptor
from fray_agents.rpc.wire.session import Session
from tests.support.rpc import (
    KEY,
    Keys,
    dial_tcp,
    serve_subject,
)
from tests.support.waiting import wait_until


@dataclass
class Port:
    """Something that listens.

    Attributes:
        connect: as a stranger.
        honest: does what it is there for, with the key, over a new connection; raises if that fails.
    """

    acceptor: Acceptor
    connect: Callable[[], socket.socket]
    honest: Callable[[], object]


def calling(target: Target, keys: Keyring, method: str, *args: Any) -> Callable[[], object]:
    def call() -> object:
        link, _ = open_connection(target, keys)
        channel = RemoteChannel(target, keys, secrets.token_hex(4), link, lambda channel: None)
        try:
            return channel.call(target.actor_id, method, args, {})
        finally:
            channel.close()

    return call


@contextlib.contextmanager
def a_server(unix_dir: Path | None = None, tls: bool = False) -> Iterator[Port]:
    server = serve_subject(unix_dir=unix_dir, tls=tls)

    def connect() -> socket.socket:
        if not server.unix_path:
            return dial_tcp(server.address)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(server.unix_path)
        return sock

    target = Target("subject", server.address, server.unix_path, server.identity, server.fingerprint)
    yield Port(server._acceptor, connect, calling(target, Keys(), "echo", 1))
    server.close()


@contextlib.contextmanager
def an_agents() -> Iterator[Port]:
    server = HintServer(Keys(), "127.0.0.1", {"submitted": lambda: True})
    server.start()
    target = Target("agent", server.address, identity=server.identity)
    yield Port(server._acceptor, lambda: dial_tcp(server.address), lambda: send_hint(target, Keys(), "submitted"))
    server.close()


def _port(server: RpcServer, address: str, cluster: StorageCluster, name: str, method: str, *args: Any) -> Port:
    honest = calling(Target(name, address), cluster.keyring, method, *args)
    return Port(server._acceptor, lambda: dial_tcp(address), honest)


@contextlib.contextmanager
def a_queues() -> Iterator[Port]:
    with StorageCluster(f"memory://{uuid.uuid4()}") as cluster, HttpQueueServer(cluster=cluster) as server:
        server.new_queue("prompts")
        yield _port(server._server, f"127.0.0.1:{server.port}", cluster, "prompts", "counts")


class Echo:
    def echo(self, value: int) -> int:
        return value


@contextlib.contextmanager
def an_actors() -> Iterator[Port]:
    with StorageCluster(f"memory://{uuid.uuid4()}", namespace="space") as cluster:
        server = ActorServer(cluster)
        server.register("actor", Echo())
        server.serve_background()
        yield _port(server._server, server.address, cluster, "actor", "echo", 1)
        server.shutdown()


PORTS = ["tcp", "tls", "unix", "agent", "queues", "actors"]


@pytest.fixture(params=PORTS)
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setattr(accepted_keys, "KEY_READ_INTERVAL", 0.0)
    makers: dict[str, Callable[[], contextlib.AbstractContextManager[Port]]] = {
        "tcp": a_server,
        "tls": lambda: a_server(tls=True),
        "unix": lambda: a_server(unix_dir=tmp_path / "rpc"),
        "agent": an_agents,
        "queues": a_queues,
        "actors": an_actors,
    }
    with makers[request.param]() as made:
        made.honest()
        yield made


# --- attacks: each leaves its connections to be closed by the test


def session(key_id: bytes = b"k1", nonce: bytes = b"00") -> bytes:
    return b"POST /session HTTP/1.1\r\nhost: x\r\nfray-key: %b\r\nfray-nonce: %b\r\ncontent-length: 0\r\n\r\n" % (
        key_id,
        nonce,
    )


def proof(value: bytes, path: bytes = b"/proof") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\nfray-proof: %b\r\nfray-seal: %b\r\ncontent-length: 0\r\n\r\n" % (
        path,
        value,
        value,
    )


def header(answer: bytes, name: bytes) -> bytes:
    _, _, rest = answer.partition(b"fray-%b: " % name)
    return rest.partition(b"\r\n")[0]


def saying(*pieces: bytes) -> Callable[[Port], list[socket.socket]]:
    def attack(port: Port) -> list[socket.socket]:
        sock = port.connect()
        with contextlib.suppress(OSError):  # the server may close before the end
            for piece in pieces:
                sock.sendall(piece)
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


def idle(port: Port) -> list[socket.socket]:
    return [port.connect() for _ in range(MAX_UNAUTHENTICATED + 100)]


def unknown_keys(port: Port) -> list[socket.socket]:
    return [saying(session(b"unknown-%d" % number))(port)[0] for number in range(100)]


def many_sessions(port: Port) -> list[socket.socket]:
    return saying(session() * 200)(port) + saying(*[session(b"unknown")] * 200)(port)


def reflected(port: Port) -> list[socket.socket]:
    """The server's own proofs, sent back as ours."""
    first, second = port.connect(), port.connect()
    with contextlib.suppress(OSError):
        first.settimeout(5)
        second.settimeout(5)
        first.sendall(session())
        told = first.recv(4096)
        second.sendall(session(nonce=header(told, b"nonce")))
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


HUGE = b"99999999999999999999"
ATTACKS: dict[str, Callable[[Port], list[socket.socket]]] = {
    "random bytes": random_bytes,
    "resets": resets,
    "half closed": half_closed,
    "idle": idle,
    "half a handshake": lambda port: [saying(session())(port)[0] for _ in range(50)],
    "an endless head": saying(b"POST /session HTTP/1.1\r\n", *[b"x: y\r\n" * 500] * 20),
    "an endless line": saying(b"POST /", *[b"x" * 4096] * 20),
    "a huge body": saying(session().replace(b"length: 0", b"length: 4000000000"), b"x" * 4096),
    "a length beyond numbers": saying(session().replace(b"length: 0", b"length: " + HUGE)),
    "a negative length": saying(session().replace(b"length: 0", b"length: -1")),
    "two lengths": saying(session().replace(b"length: 0", b"length: 0\r\ncontent-length: 9")),
    "chunks": saying(session().replace(b"content-length: 0", b"transfer-encoding: chunked"), b"5\r\nhello\r\n"),
    "a huge second body": saying(session(), proof(b"0").replace(b"length: 0", b"length: 4000000000"), b"x" * 4096),
    "no key": saying(b"POST /session HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
    "odd key": saying(session(b"\xff\xfe\x00")),
    "unknown keys": unknown_keys,
    "wrong proofs": lambda port: [saying(session(), proof(b"0" * 32, path))(port)[0] for path in (b"/proof", b"/hint")],
    "many sessions": many_sessions,
    "reflected": reflected,
    "calls at once": saying(proof(b"0" * 32, b"/calls")),
    "calls in JSON at once": saying(proof(b"0" * 64, b"/v1/actors/subject/methods/echo")),
    "calls in JSON without a proof": saying(session(), proof(b"0" * 64, b"/v1/actors/subject/methods/echo")),
    "descriptors": descriptors,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_cost_their_share_and_keep_nobody_away(port: Port, attack: str) -> None:
    threads, files = threading.active_count(), open_files()
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
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def more_descriptors() -> Iterator[None]:
    """The descriptors of strangers and of the server all belong to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
