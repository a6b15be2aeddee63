"""The calls of a channel: calls with one outcome, and calls whose items are consumed as a stream."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fray_rpc.errors import ConnectionLost, NoSuchActor, RemoteError, ResultLost
from fray_rpc.wire.messages import CallId, Reply, ReplyKind, Request
from fray_rpc.wire.serialization import Payload, unpack, unpack_error

STREAM_WINDOW = 16
"""Items of a stream that may be sent before its consumer takes one; they hide the time of a round trip."""

_log = logging.getLogger(__name__)


class ReplySource(Protocol):
    """The channel of a call, which receives its replies."""

    def wait(self, pending: PendingCall, deadline: float | None) -> None:
        """Return when `pending` is ready, or at the deadline, a time of `time.monotonic`."""

    def grant(self, call: CallId, limit: int) -> None:
        """Tell the server that the caller of a stream has room for the items before number `limit`."""

    def ensure_reading(self, at_once: bool = False) -> None:
        """Have replies read in the background. at_once: do not wait for a caller's thread that might read them."""


class PendingCall:
    """A call that receives its replies.

    Attributes:
        request: what was sent, and is sent again if the connection breaks.
        sent: how often it was sent completely.
        ready: there is an outcome or an item to take.
        event: set when it is ready; created by the first thread that has to wait for it.
    """

    __slots__ = ("_channel", "event", "ready", "request", "sent")

    def __init__(self, channel: ReplySource, request: Request) -> None:
        self._channel = channel
        self.request = request
        self.sent = 0
        self.ready = False
        self.event: threading.Event | None = None

    @property
    def id(self) -> CallId:
        return self.request.id

    def take(self, reply: Reply) -> bool:
        """Accept a reply; whether it was the last. Called with the channel's lock held."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End the call with `error`, because no reply will come."""
        raise NotImplementedError

    def notify(self) -> None:
        """Wake the thread that waits; called without the channel's lock."""
        event = self.event
        if event is not None and self.ready:
            event.set()


class ClientCall(PendingCall):
    """A call that was made; any thread may ask for its outcome, any number of times."""

    __slots__ = ("_callbacks", "_error", "_reply", "_unpacked", "_value")

    def __init__(self, channel: ReplySource, request: Request) -> None:
        self._channel = channel  # without super().__init__, which would be most of the cost of a call
        self.request = request
        self.sent = 0
        self.ready = False
        self.event = None
        self._reply: Reply | None = None
        self._unpacked = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[ClientCall], object]] = []  # not a deque, which takes 600 bytes even if empty

    def done(self) -> bool:
        if not self.ready:
            self._channel.ensure_reading()
        return self.ready

    def hasten(self) -> None:
        """Have the reply read as soon as it arrives, because no thread waits for it, but for example a coroutine."""
        if not self.ready:
            self._channel.ensure_reading(at_once=True)

    def result(self, timeout: float | None = None) -> Any:
        """The value that the method returned; waits for it.

        Args:
            timeout: seconds to wait; None: for ever. After a timeout the call goes on, and may be asked again.

        Raises:
            TimeoutError: the outcome did not arrive in time.
            ConnectionLost, NoSuchActor, ResultLost: there will be no outcome.
            BaseException: the exception that the method raised, with the remote traceback as its cause.
        """
        if not self.ready:
            self._wait(timeout)
        if not self._unpacked:
            self._unpack()
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise, or None; waits as `result` does."""
        self._wait(timeout)
        self._unpack()
        return self._error

    def add_done_callback(self, function: Callable[[ClientCall], object]) -> None:
        """Call `function(call)` once the outcome is here, in the thread that sees it first; at once if it is here."""
        self._callbacks.append(function)
        if self.ready:
            self._run_callbacks()
        else:
            self._channel.ensure_reading()

    def take(self, reply: Reply) -> bool:
        self._reply = reply
        self.ready = True
        return True

    def fail(self, error: Exception) -> None:
        self._error = error
        self._unpacked = self.ready = True

    def notify(self) -> None:
        super().notify()
        if self._callbacks:
            self._run_callbacks()

    def _wait(self, timeout: float | None) -> None:
        self._channel.wait(self, None if timeout is None else time.monotonic() + timeout)
        if not self.ready:
            name = f"{self.request.actor_id}.{self.request.method}"
            raise TimeoutError(
                f"{name} has not answered in {timeout:.3g} s; it goes on, and its result can be asked for again"
            )

    def _unpack(self) -> None:
        if self._unpacked or self._reply is None:
            return
        try:
            self._value, self._error = decode_reply(self._reply, self.request)
        except BaseException as error:  # for example a value whose class cannot be imported here
            self._error = undecodable(self.request, error)
        self._unpacked = True
        self._reply = None

    def _run_callbacks(self) -> None:
        """Run each callback once, even if two threads call this."""
        while True:
            try:
                function = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                function(self)
            except BaseException:
                _log.exception("a callback of %s.%s failed", self.request.actor_id, self.request.method)


class ClientStream(PendingCall):
    """A call of a generator method: its items, in order."""

    __slots__ = ("_end", "_error", "_have", "_items", "_taken")

    def __init__(self, channel: ReplySource, request: Request) -> None:
        super().__init__(channel, request)
        self._items: deque[Payload] = deque()
        self._have = 0
        self._taken = 0
        self._end: int | None = None
        self._error: BaseException | None = None

    def take(self, reply: Reply) -> bool:
        if reply.kind == ReplyKind.ITEM:
            self._items.append(reply.payload)
            self._have += 1
            self.request.have = self._have
        elif reply.kind == ReplyKind.END:
            self._end = unpack(reply.payload)
        else:
            _, self._error = decode_reply(reply, self.request)
        self.ready = bool(self._items) or self._over
        return self._over

    def fail(self, error: Exception) -> None:
        if isinstance(error, ConnectionLost) and self._have:
            error.started = True
        self._error = error
        self.ready = True

    def items(self) -> Iterator[Any]:
        """The items; if their consumer stops, the generator is closed."""
        try:
            while (payload := self._next()) is not None:
                yield self._read(payload)
        finally:
            if not self._over:
                self._channel.grant(self.id, -1)

    @property
    def _over(self) -> bool:
        return self._error is not None or self._have == self._end

    def _next(self) -> Payload | None:
        self._channel.wait(self, None)
        if not self._items:
            if self._error is not None:
                raise self._error
            return None
        payload = self._items.popleft()
        self.ready = bool(self._items) or self._over
        self._taken += 1
        if self._taken % (STREAM_WINDOW // 2) == 0 and not self._over:
            self._grant_more()
        return payload

    def _grant_more(self) -> None:
        limit = self._taken + STREAM_WINDOW
        self.request.limit = limit
        self._channel.grant(self.id, limit)

    def _read(self, payload: Payload) -> Any:
        try:
            return unpack(payload)
        except Exception as error:
            raise undecodable(self.request, error) from error


def decode_reply(reply: Reply, request: Request) -> tuple[Any, BaseException | None]:
    """The value of a reply, or the exception to raise."""
    if reply.kind == ReplyKind.VALUE:
        return unpack(reply.payload), None
    if reply.kind == ReplyKind.ERROR:
        return None, unpack_error(reply.payload)
    if reply.kind == ReplyKind.NO_SUCH_ACTOR:
        return None, NoSuchActor(f"actor {request.actor_id!r} is not served there (any more); look it up again")
    return None, ResultLost(f"{request.actor_id}.{request.method} ran, but its result was dropped to make room")


def undecodable(request: Request, error: BaseException) -> Exception:
    """The error for a result that cannot be unpickled here because of `error`."""
    problem = RemoteError(f"the result of {request.method!r} cannot be unpickled here: {type(error).__name__}: {error}")
    problem.__cause__ = error
    return problem
