"""A channel over a connection: calls leave in order, many in one request if many are made during one round trip.

**Lost calls.** Their callers are told, and new calls wait until that is done: a new call must not run elsewhere before
those that were made earlier and are lost, and their callers decide about these once they know.

**Replies.** A thread of the channel reads replies that are due while no caller's thread reads them. It starts with the
first call whose caller does not wait at once. Before it reads, it gives the callers time: a thread that waits, or makes
further calls, reads replies itself, without the cost of a change of threads.

**Calls.** A call leaves at once while fewer than `MAX_UNANSWERED` requests are unanswered; otherwise it waits, and
travels with up to `MAX_BATCH` others. Only one thread at a time reads the socket, normally one that waits for a reply:
so a lone synchronous caller sends and receives in its own thread. A thread that waits while another reads is woken once
its reply has arrived.

If the connection breaks, it is opened again to the same server. All calls without replies are then sent again, in order
and with their ids; the server knows which of them it has run. A server with another identity is never asked. When the
server is gone, calls fail with `ConnectionLost`, and code that knows where its actors are may make them again
(`fray.rpc.calling`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from fray_rpc.client.channel import Channel, Kept
from fray_rpc.client.client_calls import PendingCall, ReplySource
from fray_rpc.client.connect import Target, open_connection
from fray_rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_rpc.wire.messages import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    NEW_CALL,
    CallBatch,
    CallId,
    Reply,
    Request,
    decode_replies,
    encode_calls,
)
from fray_rpc.wire.sealed_connection import SealedConnection
from fray_rpc.wire.session import Keyring
from fray_runtime.threads import start_loop, start_thread

LOSS_NEWS_TIMEOUT = 5.0
"""Most seconds that a new call waits until all callers know which calls are lost."""


class LossReport:
    """The report of a closed channel about the calls that it has lost; see the module."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._reporter = 0  # id of the thread that tells the callers

    def tell(self, failed: Iterable[PendingCall]) -> None:
        """Notify the callers of these calls."""
        self._reporter = threading.get_ident()
        try:
            for pending in failed:
                pending.notify()
        finally:
            self._told.set()

    def wait(self) -> None:
        """Return once all callers are told. A callback that is told, and makes a call, does not wait for itself."""
        if self._reporter != threading.get_ident():
            self._told.wait(LOSS_NEWS_TIMEOUT)


PUMP_DELAY = 0.001
"""Seconds that the pump waits for a thread that waits itself, or makes further calls."""


class ReplyPump:
    """A background thread that calls `read` soon after `wake`; see the module.

    Attributes:
        unwatched: calls so far whose callers did not wait at once.
        woken: it will call `read`, which sets this to False.
    """

    def __init__(self, read: Callable[[], None], lock: threading.Lock) -> None:
        """Prepare a pump without a thread yet. lock: the channel's, which guards `woken`."""
        self.unwatched = 0
        self.woken = False
        self._read = read
        self._lock = lock
        self._wanted: threading.Event | None = None
        self._hurry = threading.Event()
        self._ended = False

    def wake(self) -> None:
        """Have the replies read soon, unless a caller's thread begins to read them before."""
        with self._lock:
            if self._wanted is None:
                wanted = threading.Event()
                start_loop(lambda: self._run(wanted), "fray-pump")
                self._wanted = wanted
            self.woken = True
        self._wanted.set()

    def hurry(self) -> None:
        """Read at once when woken: a caller will not read."""
        self._hurry.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        if self._wanted is not None:
            self._wanted.set()

    def _run(self, wanted: threading.Event) -> None:
        while wanted.wait() and not self._ended:
            wanted.clear()
            seen = -1
            while seen != self.unwatched:  # a thread that makes calls without a pause looks for replies itself
                seen = self.unwatched
                if self._hurry.wait(PUMP_DELAY):
                    break
            self._hurry.clear()
            self._read()


MAX_UNANSWERED = 2
"""Most requests under way: one that the server holds until a reply is ready, and one with new calls."""

POLL_EVERY = 64
"""Calls in a row after which the calling thread itself looks for replies; each look costs a system call."""

RECONNECT_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Seconds before each attempt to reconnect: a live server answers one of them, and a dead one is given up soon."""

RECONNECT_TIMEOUT = 20.0
"""Most seconds for all of these attempts, if each has to wait for an answer: twice `CONNECT_TIMEOUT`."""


class RemoteChannel(Channel):
    """Makes calls over one connection; see the module.

    Args:
        client: id of this channel, unique among all channels of all times.
        connection: connected to the server that `target.identity` names; None: the first call opens one.
        on_end: called when the channel is closed.
    """

    def __init__(
        self,
        target: Target,
        keyring: Keyring,
        client: str,
        connection: SealedConnection | None,
        on_end: Callable[[RemoteChannel], None],
    ) -> None:
        self.target = target
        self.client = client
        self.closed = False
        self.keyring = keyring
        self._connection: SealedConnection | None = connection
        self._on_end = on_end
        self._lock = threading.Lock()
        self._next = 1
        self._calls: dict[CallId, PendingCall] = {}  # calls without a reply, in the order in which they were made
        self._queue: deque[PendingCall] = deque()  # those of them that are not sent yet
        self._grants: dict[CallId, int] = {}  # grants of streams that are not sent yet
        self._unanswered = 0  # requests without response
        self._sending = False
        self._reading = False
        self._pump = ReplyPump(self._read_for_all, self._lock)
        self._loss_report = LossReport()

    def close(self) -> None:
        """Close the connection; calls that wait for replies fail."""
        self._fail("the channel was closed")

    # Entering and sending.

    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        if not self._calls:
            self._poll()
        if self.closed:
            self._loss_report.wait()
        with self._lock:
            if self.closed:
                raise ConnectionLost(f"the connection to {self.target.tcp} is closed", started=False)
            if request.id is NEW_CALL:
                request.id = CallId(self.client, self._next)
                self._next += 1
            pending = kind(self, request)
            alone = wait and not self._calls and not self._sending
            self._calls[request.id] = pending
            self._queue.append(pending)
            sends = not self._sending and self._unanswered < MAX_UNANSWERED
        if sends:  # otherwise the thread that makes room for a request sends this one too
            self._send(alone)
        if not wait:
            self._pump.unwatched += 1
            if self._pump.unwatched % POLL_EVERY == 0:
                self._poll()
            self.ensure_reading()
        return pending

    def _send(self, alone: bool = False) -> None:
        """Send the calls that may leave now, unless another thread is sending."""
        while (ready := self._next_batch(alone)) is not None:
            alone = False
            connection, calls, pendings = ready
            try:
                connection.send(encode_calls(calls))
            except OSError:  # the reading thread sees it too, and reconnects
                _mark_unsent(pendings)
                connection.close()
            except BaseException:  # interrupted within a message
                connection.close()
                raise
            finally:
                with self._lock:
                    self._sending = False

    def _next_batch(self, alone: bool) -> tuple[SealedConnection, CallBatch, list[PendingCall]] | None:
        with self._lock:
            connection = self._connection
            if connection is None or self._sending or self._unanswered >= MAX_UNANSWERED:
                return None
            if not (self._queue or self._grants or (self._calls and not self._unanswered)):
                return None
            pendings: list[PendingCall] = []
            size = 0
            while self._queue and len(pendings) < MAX_BATCH and size < MAX_BATCH_BYTES:
                pending = self._queue.popleft()
                pending.sent += 1
                size += pending.request.payload.size
                pendings.append(pending)
            grants, self._grants = list(self._grants.items()), {}
            self._unanswered += 1
            self._sending = True
            requests = [pending.request for pending in pendings]
            calls = CallBatch(self.client, self._lowest(), alone and len(requests) == 1, requests, grants)
            return connection, calls, pendings

    def _lowest(self) -> int:
        for call in self._calls:
            if call.client == self.client:
                return call.sequence
        return self._next

    def grant(self, call: CallId, limit: int) -> None:
        """Tell the server that the caller of a stream has room for the items before number `limit`."""
        with self._lock:
            self._grants[call] = limit
        self._send()
        self.ensure_reading()

    # Waiting and reading.

    def wait(self, pending: PendingCall, deadline: float | None) -> None:
        """Return when `pending` is ready, or at the deadline, a time of `time.monotonic`."""
        while not pending.ready:
            with self._lock:
                if pending.ready:
                    return
                reads_here = not self._reading
                if reads_here:
                    self._reading = True
                else:
                    event = pending.event = pending.event or threading.Event()
                    event.clear()
            if reads_here:
                self._read(lambda: pending.ready, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    return
            elif not event.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                return

    def ensure_reading(self, at_once: bool = False) -> None:
        """Have replies read in the background. at_once: do not wait for a caller's thread that might read them."""
        if at_once and not self._reading:
            self._pump.hurry()
        if self._calls and not self._reading and not self._pump.woken:
            self._pump.wake()

    def _read_for_all(self) -> None:
        """Receive until no call waits for a reply, unless another thread reads."""
        with self._lock:
            self._pump.woken = False
            if self._reading or not self._calls:
                return
            self._reading = True
        self._read(lambda: not self._calls, None)

    def _read(self, enough: Callable[[], bool], deadline: float | None) -> None:
        """Receive until `enough()` or the deadline; this thread must have set `_reading`."""
        reconnecting = False
        try:
            while not enough():
                connection = self._connection
                if connection is None:  # a thread without a deadline reconnects, and takes over the reading
                    start_thread(self._reconnect, "fray-reconnect", self._reconnect_failed)
                    reconnecting = True
                    return
                if deadline is not None and not connection.readable(deadline - time.monotonic()):
                    return
                self._receive(connection)
        finally:
            if not reconnecting:
                self._stop_reading()

    def _stop_reading(self) -> None:
        with self._lock:
            self._reading = False
        self.ensure_reading()

    def _poll(self) -> None:
        """Receive replies that have arrived, unless another thread reads; this may show that the server is gone."""
        with self._lock:
            connection = self._connection
            if connection is None or self._reading:
                return
            self._reading = True
        try:
            while self._connection is connection and connection.readable(0):
                self._receive(connection)
        finally:
            self._stop_reading()

    def _receive(self, connection: SealedConnection) -> None:
        try:
            parts = connection.receive()
            replies = decode_replies(self.client, parts) if parts is not None else None
        except (BadMessage, NotAuthentic, OSError):
            replies = None
        except Exception as error:  # it would recur, and must not end the thread that reads
            self._fail(f"the server's replies cannot be read: {type(error).__name__}: {error}")
            return
        except BaseException:  # interrupted, perhaps within a message
            self._lose(connection)
            raise
        if replies is None:
            self._lose(connection)
            return
        with self._lock:
            self._unanswered -= 1
            ready_calls = [pending for reply in replies if (pending := self._deliver(reply)) is not None]
        self._send()
        for pending in ready_calls:
            pending.notify()

    def _deliver(self, reply: Reply) -> PendingCall | None:
        pending = self._calls.get(reply.id)
        if pending is not None and pending.take(reply):
            del self._calls[reply.id]
        return pending

    # When the connection breaks.

    def _lose(self, connection: SealedConnection) -> None:
        connection.close()
        with self._lock:
            if self._connection is connection:
                self._connection = None

    def _reconnect(self) -> None:
        """Reconnect to the same server and read, or fail all calls. This thread has taken over `_reading`."""
        connection = self._open_again()
        if connection is None:
            self._stop_reading()
            return
        with self._lock:
            if not self.closed:
                self._connection = connection
                self._unanswered = 0
                self._queue = deque(self._calls.values())
        if self.closed:
            connection.close()
        self._send()
        self._read(lambda: not self._calls, None)

    def _reconnect_failed(self, error: BaseException) -> None:
        """Fail all calls: the thread that read their replies, or was to reconnect, has failed."""
        self._fail(f"the connection cannot be used: {type(error).__name__}: {error}")
        self._stop_reading()

    def _open_again(self) -> SealedConnection | None:
        problem: Exception | None = None
        deadline = time.monotonic() + RECONNECT_TIMEOUT
        for pause in RECONNECT_PAUSES:
            time.sleep(pause)
            if self.closed:
                return None
            try:
                return open_connection(self.target, self.keyring, deadline)[0]
            except ServerGone as error:
                problem = error
                break
            except Exception as error:  # for example the keys cannot be read now
                problem = error
        self._fail(f"the server of {self.target.actor_id or self.target.tcp} is gone: {problem}")
        return None

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.closed = True
            connection, self._connection = self._connection, None
            failed, self._calls = list(self._calls.values()), {}
            self._queue.clear()
            for pending in failed:
                call = pending.id.client, pending.id.sequence
                pending.fail(ConnectionLost(reason, None if pending.sent else False, call))
        if connection is not None:
            connection.close()
        self._pump.end()
        self._on_end(self)
        self._loss_report.tell(failed)

    def forked(self, client: str) -> None:
        """In the child of a fork: leave the connection and its calls to the parent; the next call opens a new one."""
        connection, calls = self._connection, self._calls
        if connection is not None:
            connection.sock.close()  # not shut down, because the parent still uses it
        self.__init__(self.target, self.keyring, client, None, self._on_end)  # type: ignore[misc]  # as new
        for pending in calls.values():
            pending.fail(ConnectionLost("the call was made before a fork; its reply goes to the parent"))


def _mark_unsent(pendings: list[PendingCall]) -> None:
    """Note that these calls were not sent completely this time."""
    for pending in pendings:
        pending.sent -= 1
