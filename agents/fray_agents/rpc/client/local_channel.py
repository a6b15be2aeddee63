"""Servers of this very process: called directly, everything pickled all the same, or by reference if they say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fray_agents.rpc.client.channel import Channel, Kept
from fray_agents.rpc.client.client_calls import PendingCall, ReplySource
from fray_agents.rpc.errors import ConnectionLost
from fray_agents.rpc.server.call_table import (
    NEW_CALL,
    CallId,
    Reply,
    ReplyKind,
    Request,
)
from fray_agents.rpc.wire.serialization import (
    BY_REFERENCE,
    PICKLE,
    Payload,
    pack,
    pack_or_refer,
)

if TYPE_CHECKING:
    from fray_agents.rpc.client.connect import Target
    from fray_agents.rpc.server.server import RpcServer

_servers: dict[str, RpcServer] = {}  # by identity


def add_server(server: RpcServer) -> None:
    """It serves from now on."""
    _servers[server.identity] = server


def remove_server(server: RpcServer) -> None:
    """It ends."""
    _servers.pop(server.identity, None)


def forget_servers() -> None:
    """In the child of a fork: the servers are the parent's."""
    for server in _servers.values():
        server.abandon()
    _servers.clear()


def find_server(target: Target) -> RpcServer | None:
    """The server of this process that `target` means."""
    if target.identity:
        return _servers.get(target.identity)
    return next((server for server in list(_servers.values()) if server.address == target.tcp), None)


class LocalChannel(Channel):
    """Calls to a server of this process. Who waits for a call runs it in its own thread, if it may begin at once."""

    def __init__(self, server: RpcServer, client: str) -> None:
        self.client = client
        self.keyring = server.keyring
        self._server = server
        self._coding = BY_REFERENCE if server.by_reference else PICKLE
        self._lock = threading.Lock()
        self._calls: dict[CallId, PendingCall] = {}
        self._next = 1

    @property
    def closed(self) -> bool:  # type: ignore[override]  # the server decides
        """Whether the server has ended."""
        return self._server.identity not in _servers

    @property
    def open(self) -> bool:
        """As a caller of the server."""
        return not self.closed

    def close(self) -> None:
        """Nothing to close."""

    def reply(self, reply: Reply) -> None:
        """Called by the server."""
        with self._lock:
            pending = self._calls.get(reply.id)
            if pending is not None and pending.take(reply):
                del self._calls[reply.id]
        if pending is not None:
            pending.announce()

    def wait(self, pending: PendingCall, deadline: float | None) -> None:
        """Return when `pending` is ready, or at the deadline."""
        while not pending.ready:
            with self._lock:
                event = pending.event = pending.event or threading.Event()
                event.clear()
                if pending.ready:
                    return
            if not event.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                return

    def grant(self, call: CallId, limit: int) -> None:
        """Say that a stream's caller has room up to `limit`."""
        stream = self._server.table.stream(call)
        if stream is not None:
            stream.grant(limit)

    def watch(self) -> None:
        """Replies come by themselves."""

    def _pack(self, value: object) -> Payload:
        return pack_or_refer(value) if self._coding is BY_REFERENCE else pack(value)

    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        with self._lock:
            if self.closed:
                raise ConnectionLost("the server of this process has ended", started=False)
            if request.id == NEW_CALL:
                request = request._replace(id=CallId(self.client, self._next), coding=self._coding)
                self._next += 1
            pending = kind(self, request)
            lowest = next((call.sequence for call in self._calls if call.client == self.client), request.id.sequence)
            self._calls[request.id] = pending
            records = self._server.table.admit(self.client, lowest, [request], self)
        actor = self._server.actor(request.actor_id)
        for record in records:
            if actor is None:
                self._server.table.complete(record, Reply(request.id, ReplyKind.NO_SUCH_ACTOR, Payload(b"")))
            elif wait and actor.reserve(1):
                actor.run_reserved(records)
            else:
                actor.submit(records)
        return pending
