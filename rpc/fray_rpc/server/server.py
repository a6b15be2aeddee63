"""A server of objects at an address: over TCP, and over a Unix socket for callers on the same host."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fray_layouts.errors import InvalidInput
from fray_rpc.server.acceptor import Acceptor
from fray_rpc.server.call_table import CallTable, Journal
from fray_rpc.server.connection import ServerConnection, Watchdog, WireProtocol
from fray_rpc.server.executor import ActorExecutor, MethodLookup
from fray_rpc.server.protocols import JsonProtocol, PickleProtocol
from fray_rpc.wire.handshake import http_response, speaks_json
from fray_rpc.wire.http_connection import HttpMessage, host_and_port
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.session import Keyring, RpcKey, Session

if TYPE_CHECKING:
    from fray_rpc.server.event_loop import EventLoopThread
    from fray_rpc.wire.tls import ServerCertificate


BACKLOG = 1024
"""Connections that the kernel queues until they are accepted: all members of a large gang may connect at once."""


def listen_tcp(host: str, port: int = 0) -> socket.socket:
    """A socket that listens at `host`; port 0 chooses a free one."""
    return _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))


def listen_unix(path: Path) -> socket.socket:
    """A Unix socket that listens at `path`, in a directory that only this user can enter."""
    sock = _listen(socket.AF_UNIX, str(path))
    os.chmod(path, 0o600)
    return sock


def address_of(sock: socket.socket) -> str:
    """The "host:port" of a TCP socket."""
    return host_and_port(*sock.getsockname()[:2])


def certificate_if(encrypted: bool) -> ServerCertificate | None:
    """A new certificate, if the server encrypts connections; else None."""
    if not encrypted:
        return None
    from fray_rpc.wire.tls import ServerCertificate

    return ServerCertificate()


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen(BACKLOG)
    return sock


MIN_FLUSH = 0.1
"""Least seconds that a closing server waits for its connections to send their ready replies, even without a grace."""

_serving: dict[str, RpcServer] = {}
"""The active servers of this process, by identity."""


def server_of_process(identity: str, address: str) -> RpcServer | None:
    """The server of this process with that identity or, if that is empty, at that "host:port"."""
    if identity:
        return _serving.get(identity)
    return next((server for server in list(_serving.values()) if server.address == address), None)


def abandon_servers() -> None:
    """In the child of a fork: release the servers, which belong to the parent."""
    for server in _serving.values():
        server.abandon()
    _serving.clear()


class RpcServer:
    """Serves objects to callers that hold a key of the cluster.

    Args:
        keyring: the keys; read again when a caller names an unknown one, and every minute.
        host: address to bind.
        port: 0 chooses a free one.
        unix_dir: a directory that only this user can enter, for a Unix socket; None: no Unix socket.
        tls: encrypt TCP connections, with a certificate that is created for this server.
        by_reference: callers in this process pass and receive values that cannot be pickled without pickling.

    Attributes:
        identity: id of this server, unique among all servers of all times.
        address: the "host:port" on which it listens.
        unix_path: path of its Unix socket; "" if there is none.
        fingerprint: of its certificate; "" if it does not encrypt.
        is_serving: it was started, and neither closed nor left to the parent of a fork.
    """

    def __init__(
        self,
        keyring: Keyring,
        host: str = "127.0.0.1",
        port: int = 0,
        unix_dir: Path | None = None,
        tls: bool = False,
        by_reference: bool = False,
    ) -> None:
        self.identity = secrets.token_hex(16)
        self.is_serving = False
        self.table = CallTable()
        certificate = certificate_if(tls)
        self.fingerprint = certificate.fingerprint if certificate is not None else ""
        self.unix_path = str(unix_dir / f"{self.identity[:12]}.sock") if unix_dir is not None else ""
        listeners = [listen_tcp(host, port)]
        self.address = address_of(listeners[0])
        if self.unix_path:
            listeners.append(listen_unix(Path(self.unix_path)))
        self.keyring = keyring
        self.by_reference = by_reference
        self._actors: dict[str, ActorExecutor] = {}
        self._connections: set[ServerConnection] = set()
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._loop: EventLoopThread | None = None
        self._acceptor = Acceptor(
            listeners, self.identity, keyring, self._on_authenticated, certificate, on_keys=self._close_dropped
        )

    def add(
        self,
        actor_id: str,
        target: object,
        *,
        max_concurrency: int = 1,
        methods: MethodLookup | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Serve `target` under `actor_id`, which may be one of several ids; calls under all of them share its limit.

        Args:
            max_concurrency: most calls that may run at once; with 1 they run in order.
            methods: finds the function for a method's name; by default among the target's public attributes.
            journal: remembers its calls beyond the life of this server.

        Raises:
            InvalidInput: `target` is served already, with another `max_concurrency`.
        """
        actor = next((known for known in self._actors.values() if known.target is target), None)
        if actor is None:
            finder = methods or public_methods(target)
            actor = ActorExecutor(target, finder, max_concurrency, self.table, journal, self._event_loop)
        elif actor.limit != max_concurrency:
            remedy = f"the object is already served under another name with {actor.limit}; both names share one limit"
            raise InvalidInput("max_concurrency", max_concurrency, remedy)
        self._actors[actor_id] = actor

    def remove(self, actor_id: str) -> None:
        """Stop serving `actor_id`; if its object has no other id, waiting calls are refused, and running ones go on."""
        actor = self._actors.pop(actor_id, None)
        if actor is not None and actor not in self._actors.values():
            actor.close()

    def actor(self, actor_id: str) -> ActorExecutor | None:
        """The executor of the actor that is served under an id; None if there is none."""
        return self._actors.get(actor_id)

    def start(self) -> None:
        """Accept calls from now on, in separate threads."""
        _serving[self.identity] = self
        self.is_serving = True
        self._acceptor.start()

    def close(self, grace: float = 0.0) -> None:
        """Stop accepting, then wait up to `grace` seconds for running calls and for replies that are being sent."""
        deadline = time.monotonic() + grace
        _serving.pop(self.identity, None)
        self.is_serving = False
        self._acceptor.close()
        if self.unix_path:
            Path(self.unix_path).unlink(missing_ok=True)
        for actor in self._actors.values():
            actor.close()
        for actor in self._actors.values():
            actor.wait_until_idle(deadline - time.monotonic())
        with self._lock:
            connections = list(self._connections)
        deadline = max(deadline, time.monotonic() + MIN_FLUSH)  # for all together: clients that never read may be many
        for connection in connections:
            connection.flushed(deadline - time.monotonic())
            connection.close()
        if self._loop is not None:
            self._loop.close()

    def abandon(self) -> None:
        """In the child of a fork: close the sockets; otherwise callers would not notice the death of the parent."""
        self.is_serving = False
        self._acceptor.abandon()
        for connection in self._connections:
            connection.abandon()

    def _on_authenticated(self, sock: socket.socket, session: Session, message: HttpMessage) -> None:
        in_json = speaks_json(session, message)
        sock.sendall(http_response(200))
        connection = ServerConnection(
            _protocol_for(sock, session, in_json), session.key, self, self._watchdog, self._forget
        )
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError:  # no thread can be started
            self._forget(connection)
            connection.close()
            raise

    def _close_dropped(self, keys: Sequence[RpcKey]) -> None:
        """Close connections that were opened with a dropped key; callers with another key reconnect."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.key not in keys:
                connection.close()

    def _forget(self, connection: ServerConnection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _event_loop(self) -> EventLoopThread:
        with self._lock:
            if self._loop is None:
                from fray_rpc.server.event_loop import EventLoopThread

                self._loop = EventLoopThread()
            return self._loop


def _protocol_for(sock: socket.socket, session: Session, in_json: bool) -> WireProtocol:
    if in_json:
        return JsonProtocol(sock, session.to_server, session.to_client)
    return PickleProtocol(SealedConnection(sock, requests=True, incoming=session.to_server, outgoing=session.to_client))


def public_methods(target: object) -> Callable[[str], Callable[..., Any]]:
    """A lookup of the methods of `target` whose names do not begin with an underscore, and of `__call__`."""

    def find(name: str) -> Callable[..., Any]:
        if name.startswith("_") and name != "__call__":
            raise AttributeError(f"{type(target).__name__!r} has no public method {name!r}")
        method: Callable[..., Any] = getattr(target, name)
        return method

    return find
