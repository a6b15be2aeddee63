"""An impostor that answers for a server, or relays between it and its callers, is detected and delays nobody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fray.actor.caller import ActorAddress, HandleCaller
from fray.cluster import StorageCluster
from fray.queue import HttpQueueServer
from fray.rpc import ActorEndpoint, ActorServer, FixedResolver
from fray.rpc.pool import Resolver
from fray_coordinator.core import LOCAL_SETTINGS, open_core
from fray_rpc import (
    Channel,
    ConnectionLost,
    NotAuthentic,
    RpcKey,
    Target,
    connect,
)
from fray_rpc.client.connect import open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.wire import key_cache
from fray_rpc.wire.key_cache import KeyCache
from fray_rpc.wire.session import KEY_RECHECK_INTERVAL
from fray_rpc.wire.tls import ServerCertificate, start_tls as connect_tls
from tests.support.rpc import (
    KEY,
    Keys,
    dial_tcp,
    serve_subject,
    serving,
    through_proxy,
)
from tests.support.waiting import wait_until

Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """A listening impostor that runs `answer` for each connection in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def attend(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            answer(sock)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=attend, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def silent(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass


def dribbling(sock: socket.socket) -> None:
    """A response whose head never ends."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        sock.sendall(b"y")
        threading.Event().wait(0.02)


def refusing(sock: socket.socket) -> None:
    while sock.recv(4096):
        sock.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")


def pretending(sock: socket.socket) -> None:
    sock.recv(4096)
    sock.sendall(b"HTTP/1.1 200 OK\r\nfray-nonce: 0\r\nfray-proof: 0\r\ncontent-length: 0\r\n\r\n")
    silent(sock)


def web_server(sock: socket.socket) -> None:
    sock.recv(4096)
    sock.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found")
    silent(sock)


def endless(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000)


def reflecting(sock: socket.socket) -> None:
    while data := sock.recv(4096):
        sock.sendall(data)


def garbage(sock: socket.socket) -> None:
    sock.sendall(bytes(range(256)) * 20)
    silent(sock)


IMPOSTORS = [silent, dribbling, refusing, pretending, web_server, endless, reflecting, garbage]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_a_caller_gives_up_an_impostor_in_time(
    monkeypatch: pytest.MonkeyPatch, impostor: Answer, encrypted: bool
) -> None:
    monkeypatch.setattr("fray_rpc.client.connect.CONNECT_TIMEOUT", 0.3)
    with listening(impostor) as address, pytest.raises((ConnectionLost, NotAuthentic)):
        open_connection(Target("subject", address), Keys(encrypted=encrypted))


@pytest.mark.parametrize("impostor", [dribbling, pretending, web_server])
def test_calls_of_a_pool_go_on_to_a_server_with_the_key(monkeypatch: pytest.MonkeyPatch, impostor: Answer) -> None:
    monkeypatch.setattr("fray_rpc.client.connect.CONNECT_TIMEOUT", 0.3)
    with listening(impostor) as taken, serving() as honest:

        class Listed(Resolver):
            def find(self, name: str) -> Sequence[ActorEndpoint]:
                targets = Target(name, taken), honest
                return [FixedResolver(target.tcp).find(name)[0] for target in targets]

            def connect(self, endpoint: ActorEndpoint) -> Channel:
                return connect(endpoint.target, Keys())

        pool = Listed().lookup("subject")
        assert [pool.echo(number) for number in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("impostor", [dribbling, pretending, web_server])
def test_calls_to_an_actor_look_for_it_again(monkeypatch: pytest.MonkeyPatch, impostor: Answer) -> None:
    monkeypatch.setattr("fray_rpc.client.connect.CONNECT_TIMEOUT", 0.3)
    with StorageCluster(f"memory://{uuid.uuid4()}", namespace="space") as cluster, listening(impostor) as taken:
        server = ActorServer(cluster)
        server.register("actor", Echo())
        server.serve_background()
        caller = HandleCaller(cluster, ActorAddress("space", "actor", "actor-0-1", "actor-0-1"))
        there = server.records["actor"]
        dead = replace(there, address=taken, unix="", nonce="of the one that died")
        found = iter([dead])
        monkeypatch.setattr(caller, "_find", lambda: next(found, there))
        assert caller.call("echo", (1,), {}) == 1
        server.shutdown()


def test_calls_end_though_the_keys_cannot_be_read_when_the_connection_breaks() -> None:
    class Away(Keys):
        def keys(self, fresh: bool = False) -> list[RpcKey]:
            raise RuntimeError("the bucket is away")

    with serving() as target, through_proxy(target) as (proxy, channel):
        assert isinstance(channel, RemoteChannel)
        channel.keyring = Away()
        call = channel.start("wide", "wait", (), {})
        proxy.cut()
        with pytest.raises(ConnectionLost, match="the bucket is away"):
            call.result(200)


# --- between a caller and a server


class Echo:
    def echo(self, value: Any) -> Any:
        return value


def passing_on(address: str, certificate: ServerCertificate | None, encrypted: bool) -> Answer:
    """Says to each of the two what the other said.

    Args:
        certificate: is shown to the caller; None: the caller is spoken to plainly.
        encrypted: whether the server is spoken to so.
    """

    def answer(sock: socket.socket) -> None:
        caller = sock
        if certificate is not None:
            caller = certificate.wrap(sock)
            assert isinstance(caller, ssl.SSLSocket)
            caller.do_handshake()
        server = dial_tcp(address)
        with caller, connect_tls(server, "")[0] if encrypted else server as up:
            while data := caller.recv(4096):
                up.sendall(data)
                if not (reply := up.recv(4096)):
                    return
                caller.sendall(reply)

    return answer


@pytest.mark.parametrize(("to_caller", "to_server"), [(False, True), (True, True), (True, False)])
def test_a_relay_between_caller_and_server_is_detected(to_caller: bool, to_server: bool) -> None:
    server = serve_subject(tls=to_server)
    own = ServerCertificate() if to_caller else None
    for stripped in (False, True):
        shown = own.fingerprint if own is not None and not stripped else ""
        with listening(passing_on(server.address, own, to_server)) as address:
            target = Target("subject", address, identity=server.identity, fingerprint=shown)
            with pytest.raises(NotAuthentic, match="relays our messages"):
                open_connection(target, Keys(encrypted=to_caller))
    server.close()


def test_without_a_fingerprint_an_encrypting_cluster_is_called_encrypted_all_the_same() -> None:
    with serving(tls=True) as target:
        stripped, keys = target._replace(fingerprint="", unix=""), Keys(encrypted=True)
        with through_proxy(stripped, keys) as (proxy, channel):
            assert channel.call("subject", "echo", ("the secret word",), {}) == "the secret word"
            assert not any(b"the secret word" in data for data in proxy.said)


def test_an_encrypting_clusters_caller_sends_nothing_to_a_plain_server() -> None:
    said: list[bytes] = []

    def plain(sock: socket.socket) -> None:
        said.append(sock.recv(4096))

    with listening(plain) as address, pytest.raises(ConnectionLost):
        open_connection(Target("subject", address), Keys(encrypted=True))
    assert not any(b"/session" in data for data in said)


@pytest.fixture
def encrypting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageCluster]:
    with StorageCluster(str(tmp_path_factory.mktemp("root"))) as cluster:

        async def make() -> None:
            await (await open_core(cluster.root, replace(LOCAL_SETTINGS, encrypt=True))).store.close()

        asyncio.run(make())
        yield cluster


def test_no_server_of_an_encrypting_cluster_answers_a_plain_caller(encrypting: StorageCluster) -> None:
    with HttpQueueServer(cluster=encrypting) as queues:
        queues.new_queue("prompts").push("the secret word")
        server = ActorServer(encrypting)
        server.register("prompts", Echo())
        server.serve_background()
        keys = encrypting.keyring
        for address, method, args in (
            (f"127.0.0.1:{queues.port}", "peek", (1,)),
            (server.address, "echo", ("the secret word",)),
        ):
            with pytest.raises(ConnectionLost):
                open_connection(Target("prompts", address), Keys(*keys.keys()))
            with through_proxy(Target("prompts", address), keys) as (proxy, channel):
                assert b"the secret word" in pickle.dumps(channel.call("prompts", method, args, {}))
                assert not any(b"the secret word" in data for data in (*proxy.said, *proxy.heard))
        server.shutdown()


# --- keys that callers know


class Bucket:
    """A stand-in for the place of the keys; a read waits until `gate` is set."""

    def __init__(self, *keys: RpcKey) -> None:
        self.current = keys
        self.gate = threading.Event()
        self.gate.set()
        self.reads = 0

    def read(self) -> list[tuple[str, bytes]]:
        assert self.gate.wait(200)
        self.reads += 1
        return [(key.id, key.secret) for key in self.current]


class Cache(KeyCache):
    encrypted = False


NEW = RpcKey("k2", b"the second secret of them")


def aged(bucket: Bucket) -> Cache:
    """A cache that read the keys long ago, so that it reads them again."""
    cache = Cache(bucket.read)
    cache.keys()
    cache._read_at -= KEY_RECHECK_INTERVAL
    return cache


def test_a_server_with_a_dropped_key_is_not_trusted() -> None:
    bucket = Bucket(KEY)
    caller = aged(bucket)
    bucket.current = (NEW,)
    impostor = serve_subject()  # it has the dropped key
    with pytest.raises(NotAuthentic):
        open_connection(Target("subject", impostor.address), caller)
    impostor.close()


def test_calls_go_on_with_known_keys_while_the_storage_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_cache, "REFRESH_WAIT", 0.01)
    bucket = Bucket(KEY)
    caller = aged(bucket)
    bucket.gate.clear()
    bucket.current = (NEW,)
    assert [caller.keys(), caller.keys()] == [[KEY], [KEY]]
    bucket.gate.set()
    wait_until(lambda: caller.keys() == [NEW])
    assert bucket.reads == 2, "one attempt for both"


def test_keys_that_cannot_be_read_again_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = aged(Bucket(KEY))

    def away() -> list[tuple[str, bytes]]:
        raise OSError("the bucket is away")

    monkeypatch.setattr(caller, "_read", away)
    assert caller.keys() == [KEY]


def test_the_child_of_a_fork_reads_keys_though_its_parent_was_about_to() -> None:
    bucket = Bucket(KEY)
    caller = aged(bucket)
    bucket.gate.clear()
    reading = threading.Thread(target=caller.keys, args=(True,))
    reading.start()
    wait_until(caller._lock.locked)
    child = os.fork()
    if not child:
        bucket.gate = threading.Event()
        bucket.gate.set()
        os._exit(caller.keys(fresh=True) != [KEY])
    bucket.gate.set()
    reading.join()
    assert os.waitpid(child, 0)[1] == 0
