"""A channel to a server of this process: calls go to it directly, pickled unless the server takes references."""

import threading
import time
from collections.abc import Callable

from fray_agents.rpc.client.channel import Channel, Kept
from fray_agents.rpc.client.client_calls import PendingCall, ReplySource
from fray_agents.rpc.errors import ConnectionLost
from fray_agents.rpc.server.server import RpcServer
from fray_agents.rpc.wire.messages import NEW_CALL, CallId, Reply, Request
from fray_agents.rpc.wire.serialization import BY_REFERENCE, PICKLE, Payload, pack, pack_or_refer


class LocalChannel(Channel):
    """Makes calls to a server of this process; a caller that waits runs the call in its own thread if possible."""

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
        return not self._server.is_serving

    @property
    def open(self) -> bool:
        """Whether it can still receive replies."""
        return not self.closed

    def close(self) -> None:
        """Do nothing: there is no connection, and the server ends its calls."""

    def reply(self, reply: Reply) -> None:
        """Receive a reply; called by the server."""
        with self._lock:
            pending = self._calls.get(reply.id)
            if pending is not None and pending.take(reply):
                del self._calls[reply.id]
        if pending is not None:
            pending.notify()

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
        """Tell the stream that its caller has room up to `limit`."""
        stream = self._server.table.stream(call)
        if stream is not None:
            stream.grant(limit)

    def ensure_reading(self, at_once: bool = False) -> None:
        """Do nothing: the server delivers replies directly."""

    def _pack(self, value: object) -> Payload:
        return pack_or_refer(value) if self._coding is BY_REFERENCE else pack(value)

    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        with self._lock:
            if self.closed:
                raise ConnectionLost("the server of this process has ended", started=False)
            if request.id is NEW_CALL:
                request.id, request.codec = CallId(self.client, self._next), self._coding
                self._next += 1
            pending = kind(self, request)
            lowest = next((call.sequence for call in self._calls if call.client == self.client), request.id.sequence)
            self._calls[request.id] = pending
            calls = self._server.table.admit(self.client, lowest, [request], self)
        actor = self._server.actor(request.actor_id)
        for served in calls:
            if actor is None:
                self._server.table.refuse(served)
            elif wait and actor.reserve(1):
                actor.run_reserved(calls)
            else:
                actor.submit(calls)
        return pending
