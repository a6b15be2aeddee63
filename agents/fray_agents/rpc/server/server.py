"""Objects served at an address: over TCP, and over a Unix socket for callers on the same host."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fray_agents.rpc.client import local_channel
from fray_agents.rpc.server.acceptor import Acceptor
from fray_agents.rpc.server.call_table import CallTable, Journal
from fray_agents.rpc.server.connection import ServerConnection, Watchdog, WireProtocol
from fray_agents.rpc.server.executor import ActorExecutor, MethodLookup
from fray_agents.rpc.server.json_protocol import JsonProtocol
from fray_agents.rpc.server.listeners import (
    address_of,
    certificate_if,
    listen_tcp,
    listen_unix,
)
from fray_agents.rpc.wire.framing import HttpMessage
from fray_agents.rpc.wire.handshake import http_response, speaks_json
from fray_agents.rpc.wire.messages import PickleProtocol
from fray_agents.rpc.wire.sealed_connection import SealedConnection
from fray_agents.rpc.wire.session import Keyring, RpcKey, Session
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray_agents.rpc.server.event_loop import EventLoopThread


class RpcServer:
    """Serves objects to callers that hold the cluster's key.

    Args:
        keyring: the keys; read again when a caller names one that is not known, and each minute.
        host: address to bind.
        port: 0 takes a free one.
        unix_dir: directory for a Unix socket, made if absent, for this user only; None: no Unix socket.
        tls: encrypt TCP connections, under a certificate made for this server.
        by_reference: callers in this process give and get what cannot be pickled as it is.
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
        self._relief = Watchdog()
        self._loop: EventLoopThread | None = None
        self._door = Acceptor(listeners, self.identity, keyring, self._receive, certificate, changed=self._keys_changed)

    def add(
        self,
        actor_id: str,
        target: object,
        *,
        max_concurrency: int = 1,
        methods: MethodLookup | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Serve `target` under `actor_id`, one more if it is served already: all of them share its calls' turns.

        Args:
            max_concurrency: how many calls of it may run at once, under all its names; with 1 they run in order.
            methods: gives what to call for a method's name; by default the target's public attributes.
            journal: makes its calls outlive this server.

        Raises:
            InvalidInput: `target` is served already, with another `max_concurrency`.
        """
        actor = next((known for known in self._actors.values() if known.target is target), None)
        if actor is None:
            finder = methods or public_methods(target)
            actor = ActorExecutor(target, finder, max_concurrency, self.table, journal, self._event_loop)
        elif actor.limit != max_concurrency:
            remedy = f"the object is served under another name with {actor.limit}, and its calls share their turns"
            raise InvalidInput("max_concurrency", max_concurrency, remedy)
        self._actors[actor_id] = actor

    def remove(self, actor_id: str) -> None:
        """Serve it no more under that id; if it has no other, calls that run go on, and those that wait are refused."""
        actor = self._actors.pop(actor_id, None)
        if actor is not None and actor not in self._actors.values():
            actor.close()

    def actor(self, actor_id: str) -> ActorExecutor | None:
        """The actor served by that id."""
        return self._actors.get(actor_id)

    def start(self) -> None:
        """Accept calls from now on, in threads of their own."""
        local_channel.add_server(self)
        self._door.start()

    def close(self, grace: float = 0.0) -> None:
        """Stop: no new connections, then up to `grace` seconds for calls that run and replies on their way."""
        deadline = time.monotonic() + grace
        local_channel.remove_server(self)
        self._door.close()
        if self.unix_path:
            Path(self.unix_path).unlink(missing_ok=True)
        for actor in self._actors.values():
            actor.close()
        for actor in self._actors.values():
            actor.quiet(deadline - time.monotonic())
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.drained(max(deadline - time.monotonic(), 0.1))
            connection.close()
        if self._loop is not None:
            self._loop.close()

    def abandon(self) -> None:
        """In the child of a fork: let go of the sockets, or callers would not see when the server itself dies."""
        self._door.abandon()
        for connection in self._connections:
            connection.abandon()

    def _receive(self, sock: socket.socket, session: Session, message: HttpMessage) -> None:
        in_json = speaks_json(session, message)
        sock.sendall(http_response(200))
        connection = ServerConnection(
            _protocol_for(sock, session, in_json), session.key, self, self._relief, self._forget
        )
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError:  # no thread can be started
            self._forget(connection)
            connection.close()
            raise

    def _keys_changed(self, keys: Sequence[RpcKey]) -> None:
        """End what was opened with a key that is gone; its callers come back with another one, if they have one."""
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
                from fray_agents.rpc.server.event_loop import EventLoopThread

                self._loop = EventLoopThread()
            return self._loop


def _protocol_for(sock: socket.socket, session: Session, in_json: bool) -> WireProtocol:
    if in_json:
        return JsonProtocol(sock, session.to_server, session.to_client)
    return PickleProtocol(SealedConnection(sock, requests=True, incoming=session.to_server, outgoing=session.to_client))


def public_methods(target: object) -> Callable[[str], Callable[..., Any]]:
    """Finds methods whose names do not begin with an underscore; `__call__` is one too."""

    def find(name: str) -> Callable[..., Any]:
        if name.startswith("_") and name != "__call__":
            raise AttributeError(f"{type(target).__name__!r} has no public method {name!r}")
        method: Callable[..., Any] = getattr(target, name)
        return method

    return find
