"""Every kind of port and Unix socket that Fray opens, as a stranger and as a holder of the key meet it.

`ROWS` is the table of all of them. Its names are the rows of docs/security.md, which `test_port_table.py` compares with
the code.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fray.cluster import StorageCluster
from fray.queue import HttpQueueServer
from fray.rpc import ActorServer
from fray_rpc import Keyring, RpcServer, Target
from fray_rpc.client.connect import open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.hints import HintServer, send_hint
from fray_rpc.server.acceptor import Acceptor
from fray_rpc.wire.tls import start_tls
from tests.support.rpc import Keys, Proxy, dial_tcp, serve_subject


@dataclass
class Port:
    """Something that listens.

    Attributes:
        acceptor: its acceptor of connections.
        dial: opens a connection to it, without TLS.
        connect: opens a connection as a stranger does.
        target: its address for a holder of the key.
        key_id: the id of the key that it accepts.
        use: does what the port is there for, with the key, over a new connection to a target; raises if that fails.
        close: ends the server.
    """

    acceptor: Acceptor
    dial: Callable[[], socket.socket]
    connect: Callable[[], socket.socket]
    target: Target
    key_id: bytes
    use: Callable[[Target], object]
    close: Callable[[], None]

    def honest(self) -> None:
        self.use(self.target)

    def overheard(self, alter_reply: Callable[[bytes], bytes] = bytes) -> list[bytes]:
        """What a holder of the key said to the server in a connection, as somebody between the two heard it."""
        proxy = Proxy(self.dial)
        proxy.alter_reply = alter_reply
        try:
            self.use(self.target._replace(tcp=proxy.address, unix=""))
            return list(proxy.said)
        finally:
            proxy.close()


class Place:
    """Where the servers of a test live: those of one place have the same keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = f"memory://{uuid.uuid4()}"
        self._open = contextlib.ExitStack()

    @cached_property
    def cluster(self) -> StorageCluster:
        return self._open.enter_context(StorageCluster(self._root, namespace="space"))

    def close(self) -> None:
        self._open.close()


def _call(keys: Keyring, method: str, args: tuple[Any, ...], target: Target) -> None:
    link, _ = open_connection(target, keys)
    channel = RemoteChannel(target, keys, secrets.token_hex(4), link, lambda channel: None)
    try:
        channel.call(target.actor_id, method, args, {})
    finally:
        channel.close()


def _port(server: RpcServer, name: str, keys: Keyring, method: str, *args: Any, close: Callable[[], None]) -> Port:
    target = Target(name, server.address, identity=server.identity, fingerprint=server.fingerprint)
    dial = partial(dial_tcp, server.address)
    key_id = keys.keys()[0].id.encode()
    return Port(server._acceptor, dial, dial, target, key_id, partial(_call, keys, method, args), close)


def a_server(place: Place, tls: bool = False) -> Port:
    server = serve_subject(tls=tls)
    return _port(server, "subject", Keys(), "echo", 1, close=server.close)


def met_in_tls(place: Place) -> Port:
    """Strangers, too, speak TLS with it."""
    port = a_server(place, tls=True)
    port.connect = lambda: start_tls(port.dial(), "")[0]
    return port


def on_one_host(place: Place) -> Port:
    server = serve_subject(unix_dir=place.folder / "rpc")
    port = _port(server, "subject", Keys(), "echo", 1, close=server.close)

    def dial() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(server.unix_path)
        return sock

    port.dial = port.connect = dial
    port.target = port.target._replace(unix=server.unix_path)
    return port


HINTS: list[str] = []
"""The hints that servers have taken."""


def an_agents(place: Place) -> Port:
    def take() -> bool:
        HINTS.append("submitted")
        return True

    server = HintServer(Keys(), "127.0.0.1", {"submitted": take})
    server.start()
    target = Target("agent", server.address, identity=server.identity)
    dial = partial(dial_tcp, server.address)
    use = partial(send_hint, keyring=Keys(), hint="submitted")
    return Port(server._acceptor, dial, dial, target, b"k1", use, server.close)


def a_queues(place: Place) -> Port:
    server = HttpQueueServer(cluster=place.cluster)
    server.start()
    server.new_queue("prompts")
    return _port(server._server, "prompts", place.cluster.keyring, "counts", close=server.close)


class _Echo:
    def echo(self, value: int) -> int:
        return value


def an_actors(place: Place) -> Port:
    server = ActorServer(place.cluster)
    server.register("actor", _Echo())
    server.serve_background()
    return _port(server._server, "actor", place.cluster.keyring, "echo", 1, close=server.shutdown)


PORTS: dict[str, Callable[[Place], Port]] = {
    "tcp": a_server,
    "tls": partial(a_server, tls=True),
    "tls, spoken": met_in_tls,
    "unix": on_one_host,
    "agent": an_agents,
    "queues": a_queues,
    "actors": an_actors,
}
OVER_TCP = [name for name in PORTS if name != "unix"]

ROWS: dict[str, set[str]] = {
    "calls": {"tcp", "tls", "tls, spoken", "actors"},
    "calls on one host": {"unix"},
    "queue server": {"queues"},
    "hints": {"agent"},
    "ports of jobs": set(),  # bound, so that nobody else takes them; nothing of Fray listens there
    "actors on Iris": set(),  # Iris's own server
}
"""By row of the page: the kinds of `PORTS` that tests attack for it."""


# --- what strangers say


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


# --- what they cost


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
