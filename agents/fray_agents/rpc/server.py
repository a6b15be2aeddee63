"""Objects served at an address: over TCP, and over a Unix socket for callers on the same host."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fray_agents.rpc import local
from fray_agents.rpc.calls import Journal, Table
from fray_agents.rpc.connection import Connection, Relief
from fray_agents.rpc.door import Door
from fray_agents.rpc.engine import Actor, Methods
from fray_agents.rpc.link import Link
from fray_agents.rpc.session import Keyring

if TYPE_CHECKING:
    from fray_agents.rpc.loop import Loop

BACKLOG = 1024


class Server:
    """Serves objects to callers that hold the cluster's key.

    Args:
        keyring: the keys; read again when a caller names one that is not known.
        host: address to bind.
        port: 0 takes a free one.
        unix_dir: directory for a Unix socket, made if absent, for this user only; None: no Unix socket.
        tls: encrypt TCP connections, under a certificate made for this server.
    """

    def __init__(
        self,
        keyring: Keyring,
        host: str = "127.0.0.1",
        port: int = 0,
        unix_dir: Path | None = None,
        tls: bool = False,
    ) -> None:
        self.identity = secrets.token_hex(16)
        self.table = Table()
        self.fingerprint = ""
        self.unix_path = ""
        self._context: Any = None
        if tls:
            from fray_agents.rpc import tls as tls_module

            self._context, self.fingerprint = tls_module.server_context()
        tcp = _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
        self.address = _text(tcp.getsockname())
        listeners = [tcp]
        if unix_dir is not None:
            listeners.append(self._listen_unix(unix_dir))
        self.keyring = keyring
        self._actors: dict[str, Actor] = {}
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._relief = Relief()
        self._loop: Loop | None = None
        self._door = Door(listeners, self.identity, keyring, self._welcome, self._wrap)

    def add(
        self,
        actor_id: str,
        target: object,
        *,
        max_concurrency: int = 1,
        methods: Methods | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Serve `target` under `actor_id`.

        Args:
            max_concurrency: how many calls of it may run at once; with 1 they run in order.
            methods: gives what to call for a method's name; by default the target's public attributes.
            journal: makes its calls outlive this server.
        """
        finder = methods or public_methods(target)
        self._actors[actor_id] = Actor(finder, max_concurrency, self.table, journal, self._event_loop)

    def remove(self, actor_id: str) -> None:
        """Serve it no more; calls that run go on, those that wait are refused."""
        actor = self._actors.pop(actor_id, None)
        if actor is not None:
            actor.close()

    def actor(self, actor_id: str) -> Actor | None:
        """The actor served by that id."""
        return self._actors.get(actor_id)

    def start(self) -> None:
        """Accept calls from now on, in threads of their own."""
        local.publish(self)
        self._door.start()

    def close(self, grace: float = 0.0) -> None:
        """Stop: no new connections, then up to `grace` seconds for calls that run and replies on their way."""
        deadline = time.monotonic() + grace
        local.withdraw(self)
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

    def _listen_unix(self, directory: Path) -> socket.socket:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(directory, 0o700)
        self.unix_path = str(directory / f"{self.identity[:12]}.sock")
        return _listen(socket.AF_UNIX, self.unix_path)

    def _wrap(self, sock: socket.socket) -> socket.socket:
        if self._context is None or sock.family == socket.AF_UNIX:
            return sock
        wrapped: socket.socket = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped

    def _welcome(self, link: Link) -> None:
        connection = Connection(link, self, self._relief, self._forget)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.start()
        except RuntimeError:  # no thread can be started
            self._forget(connection)
            connection.close()
            raise

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _event_loop(self) -> Loop:
        with self._lock:
            if self._loop is None:
                from fray_agents.rpc.loop import Loop

                self._loop = Loop()
            return self._loop


def public_methods(target: object) -> Callable[[str], Callable[..., Any]]:
    """Finds methods whose names do not begin with an underscore; `__call__` is one too."""

    def find(name: str) -> Callable[..., Any]:
        if name.startswith("_") and name != "__call__":
            raise AttributeError(f"{type(target).__name__!r} has no public method {name!r}")
        method: Callable[..., Any] = getattr(target, name)
        return method

    return find


def _listen(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    if family == socket.AF_UNIX:
        os.chmod(address, 0o600)  # nobody else could reach it before: its directory is 0700
    sock.listen(BACKLOG)
    return sock


def _text(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
