"""A channel to one server: the same interface whether the server is across a network or in this process.

Calls to a server of this process go to it directly, pickled unless the server takes references; `remote_channel` has
the others.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import structs

from fray_rpc.client.client_calls import STREAM_WINDOW, ClientCall, ClientStream, PendingCall, ReplySource
from fray_rpc.errors import ConnectionLost
from fray_rpc.server.server import RpcServer
from fray_rpc.wire.messages import NEW_CALL, CallId, Reply, Request
from fray_rpc.wire.serialization import (
    BY_REFERENCE,
    PICKLE,
    Payload,
    ReferencePayload,
    pack,
    pack_or_refer,
    unpicklable_arguments,
)
from fray_rpc.wire.session import Keyring

Kept = TypeVar("Kept", bound=PendingCall)


class Channel(ABC):
    """Makes calls to the objects of one server; any number of threads may use it.

    Attributes:
        closed: no more calls can be made: the server is gone, or `close` was called.
        keyring: a caller needs a key of it to use this channel.
    """

    closed: bool
    keyring: Keyring

    def call(
        self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None = None
    ) -> Any:
        """Call and wait.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            ConnectionLost: the channel is closed.
            InvalidInput: an argument cannot be pickled.
            Exception: any error of `ClientCall.result`.
        """
        payload = self._pack_arguments(method, args, kwargs)
        pending = self._enter(ClientCall, Request(NEW_CALL, actor_id, method, payload), wait=True)
        try:
            return pending.result(timeout)
        finally:
            if not pending.ready:  # the caller goes on, and may change values that the call still needs
                pending.request.payload = payload.snapshot()

    def start(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClientCall:
        """Make a call without waiting. The arguments are copied, so they may change afterwards.

        Raises:
            ConnectionLost: the channel is closed.
            InvalidInput: an argument cannot be pickled.
        """
        payload = self._pack_arguments(method, args, kwargs).snapshot()
        return self._enter(ClientCall, Request(NEW_CALL, actor_id, method, payload))

    def resend(self, request: Request) -> ClientCall:
        """Make a call that was packed before (`messages.packed_call`), or that was lost with another channel.

        Raises:
            ConnectionLost: the channel is closed.
            Exception: the arguments cannot be pickled, and the server is not in this process.
        """
        if isinstance(request.payload, ReferencePayload):
            request = structs.replace(request, payload=self._pack(request.payload.value))
        return self._enter(ClientCall, request)

    def stream(self, actor_id: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """The items of a generator as it yields them; the generator pauses when it is `STREAM_WINDOW` items ahead."""
        payload = self._pack_arguments(method, args, kwargs).snapshot()
        return self._enter(ClientStream, Request(NEW_CALL, actor_id, method, payload, 0, STREAM_WINDOW)).items()

    def _pack_arguments(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
        try:
            return self._pack((args, kwargs))
        except Exception as error:  # pickling may run any code of the user
            raise unpicklable_arguments(method, args, kwargs, error) from error

    def _pack(self, value: object) -> Payload:
        return pack(value)

    @abstractmethod
    def close(self) -> None:
        """Close the channel; calls that wait for replies fail."""

    @abstractmethod
    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        """Send a call. wait: the caller waits for the reply at once."""


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
