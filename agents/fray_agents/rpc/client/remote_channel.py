"""A channel over a connection: calls leave in order, many at once when many are made during one round trip.

A call leaves at once while fewer than `MAX_UNANSWERED` requests are unanswered; else it waits and travels with up to
`MAX_BATCH` others. Nobody but who waits reads the socket: a lone synchronous caller sends and receives in its own
thread. Whoever waits while another reads is woken when its reply has come. A pump thread reads when replies are due and
nobody waits.

A connection that breaks is opened again to the same server, and all calls whose replies are missing are asked again,
in order, by their ids: the server knows which it has run. A server of another identity is never asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from fray_agents.rpc.client.channel import Channel, Kept
from fray_agents.rpc.client.client_calls import PendingCall, ReplySource
from fray_agents.rpc.client.connect import Target, open_connection
from fray_agents.rpc.errors import BadMessage, ConnectionLost, NotAuthentic, ServerGone
from fray_agents.rpc.server.call_table import (
    NEW_CALL,
    CallId,
    Reply,
    Request,
)
from fray_agents.rpc.wire.messages import CallBatch, decode_replies, encode_calls
from fray_agents.rpc.wire.sealed_connection import SealedConnection
from fray_agents.rpc.wire.session import Keyring

MAX_UNANSWERED = 2
MAX_BATCH = 512
MAX_BATCH_BYTES = 2**20
POLL_EVERY = 64  # calls made in a row after which their maker looks for replies
PUMP_DELAY = 0.001  # seconds that the pump leaves to somebody who comes to wait
LOSS_NEWS_TIMEOUT = 5.0  # seconds that a new call waits at most until all lost ones are told of
RECONNECT_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0)  # seconds before each attempt to connect again
RECONNECT_TIMEOUT = 20.0  # seconds for all of these attempts together, whoever answers


class RemoteChannel(Channel):
    """Calls to the objects of one server. Usable from any number of threads.

    Args:
        client: names this channel among all that ever were.
        link: the connection, if there is one yet; `target.identity` says to whom.
    """

    def __init__(
        self,
        target: Target,
        keyring: Keyring,
        client: str,
        link: SealedConnection | None,
        on_end: Callable[[RemoteChannel], None],
    ) -> None:
        self.target = target
        self.client = client
        self.closed = False
        self.keyring = keyring
        self._link: SealedConnection | None = link
        self._on_end = on_end
        self._lock = threading.Lock()
        self._next = 1
        self._calls: dict[CallId, PendingCall] = {}  # whose replies are missing, as they were made
        self._queue: deque[PendingCall] = deque()  # not sent yet
        self._grants: dict[CallId, int] = {}
        self._out = 0  # requests without response
        self._sending = False
        self._reading = False
        self._unwatched = 0  # calls for which nobody waited at once
        self._watched = False  # the pump has been told
        self._pump: threading.Event | None = None
        self._announced = threading.Event()
        self._announcing = 0  # the thread that tells of lost calls

    def close(self) -> None:
        """Close the connection; calls that wait for replies fail."""
        self._fail("the channel was closed")

    # Entering and sending.

    def _enter(self, kind: Callable[[ReplySource, Request], Kept], request: Request, wait: bool = False) -> Kept:
        if not self._calls:
            self._glance()
        if self.closed:
            self._await_news_of_loss()
        with self._lock:
            if self.closed:
                raise ConnectionLost(f"the connection to {self.target.tcp} is closed", started=False)
            if request.id == NEW_CALL:
                request = Request(CallId(self.client, self._next), *request[1:])
                self._next += 1
            pending = kind(self, request)
            alone = wait and not self._calls and not self._sending
            self._calls[request.id] = pending
            self._queue.append(pending)
        self._send(alone)
        if not wait:
            self._unwatched += 1
            if self._unwatched % POLL_EVERY == 0:
                self._glance()
            self.watch()
        return pending

    def _send(self, alone: bool = False) -> None:
        """Send what may leave now, unless another thread does."""
        while (ready := self._take(alone)) is not None:
            alone = False
            link, calls, pendings = ready
            try:
                link.send(encode_calls(calls))
            except OSError:  # whoever reads sees it too, and connects again
                _unsend(pendings)
                link.close()
            except BaseException:  # interrupted within a message
                link.close()
                raise
            finally:
                with self._lock:
                    self._sending = False

    def _take(self, alone: bool) -> tuple[SealedConnection, CallBatch, list[PendingCall]] | None:
        with self._lock:
            link = self._link
            if link is None or self._sending or self._out >= MAX_UNANSWERED:
                return None
            if not (self._queue or self._grants or (self._calls and not self._out)):
                return None
            pendings: list[PendingCall] = []
            size = 0
            while self._queue and len(pendings) < MAX_BATCH and size < MAX_BATCH_BYTES:
                pending = self._queue.popleft()
                pending.sent += 1
                size += pending.request.packed.size
                pendings.append(pending)
            grants, self._grants = list(self._grants.items()), {}
            self._out += 1
            self._sending = True
            requests = [pending.request for pending in pendings]
            return (
                link,
                CallBatch(self.client, self._lowest(), alone and len(requests) == 1, requests, grants),
                pendings,
            )

    def _lowest(self) -> int:
        for call in self._calls:
            if call.client == self.client:
                return call.sequence
        return self._next

    def grant(self, call: CallId, limit: int) -> None:
        """Say that a stream's caller has room up to `limit`."""
        with self._lock:
            self._grants[call] = limit
        self._send()
        self.watch()

    # Waiting and reading.

    def wait(self, pending: PendingCall, deadline: float | None) -> None:
        """Return when `pending` is ready, or at the deadline."""
        while not pending.ready:
            with self._lock:
                if pending.ready:
                    return
                mine = not self._reading
                if mine:
                    self._reading = True
                else:
                    event = pending.event = pending.event or threading.Event()
                    event.clear()
            if mine:
                self._read(lambda: pending.ready, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    return
            elif not event.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                return

    def watch(self) -> None:
        """See to it that replies are read though nobody waits for them."""
        if self._reading or self._watched or not self._calls:
            return
        with self._lock:
            self._watched = True
            if self._pump is None:
                self._pump = threading.Event()
                threading.Thread(target=self._run_pump, args=(self._pump,), name="fray-pump", daemon=True).start()
        self._pump.set()

    def _run_pump(self, wanted: threading.Event) -> None:
        while wanted.wait() and not self.closed:
            wanted.clear()
            seen = -1
            while seen != self._unwatched:  # who makes calls as fast as it can looks for replies itself
                seen = self._unwatched
                time.sleep(PUMP_DELAY)
            with self._lock:
                self._watched = False
                if self._reading or not self._calls:
                    continue
                self._reading = True
            self._read(lambda: not self._calls, None)

    def _read(self, enough: Callable[[], bool], deadline: float | None) -> None:
        """Receive until it is enough; this thread has set `_reading`."""
        mending = False
        try:
            while not enough():
                link = self._link
                if link is None:  # somebody with all the time in the world connects again, and goes on reading
                    mending = True
                    threading.Thread(target=self._mend, name="fray-mend", daemon=True).start()
                    return
                if deadline is not None and not link.readable(deadline - time.monotonic()):
                    return
                self._receive(link)
        finally:
            if not mending:
                self._stop_reading()

    def _stop_reading(self) -> None:
        with self._lock:
            self._reading = False
        self.watch()

    def _glance(self) -> None:
        """Take what has come, if nobody else does; perhaps the news that the server is gone."""
        with self._lock:
            link = self._link
            if link is None or self._reading:
                return
            self._reading = True
        try:
            while self._link is link and link.readable(0):
                self._receive(link)
        finally:
            self._stop_reading()

    def _receive(self, link: SealedConnection) -> None:
        try:
            parts = link.receive()
            replies = decode_replies(self.client, parts) if parts is not None else None
        except (BadMessage, NotAuthentic, OSError):
            replies = None
        except Exception as error:  # it would come again, and the thread that reads must not end by it
            self._fail(f"the server's replies cannot be read: {type(error).__name__}: {error}")
            return
        except BaseException:  # interrupted; perhaps within a message
            self._lose(link)
            raise
        if replies is None:
            self._lose(link)
            return
        with self._lock:
            self._out -= 1
            given = [pending for reply in replies if (pending := self._give(reply)) is not None]
        self._send()
        for pending in given:
            pending.announce()

    def _give(self, reply: Reply) -> PendingCall | None:
        pending = self._calls.get(reply.id)
        if pending is not None and pending.take(reply):
            del self._calls[reply.id]
        return pending

    # When the connection breaks.

    def _lose(self, link: SealedConnection) -> None:
        link.close()
        with self._lock:
            if self._link is link:
                self._link = None

    def _mend(self) -> None:
        """Connect to the same server again and read; or all calls fail. This thread has taken over `_reading`."""
        link = self._connect_again()
        if link is None:
            self._stop_reading()
            return
        with self._lock:
            if not self.closed:
                self._link = link
                self._out = 0
                self._queue = deque(self._calls.values())
        if self.closed:
            link.close()
        self._send()
        self._read(lambda: not self._calls, None)

    def _connect_again(self) -> SealedConnection | None:
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
            except Exception as error:  # the keys, too, may be out of reach
                problem = error
        self._fail(f"the server of {self.target.actor_id or self.target.tcp} is gone: {problem}")
        return None

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.closed = True
            link, self._link = self._link, None
            failed, self._calls = list(self._calls.values()), {}
            self._queue.clear()
            for pending in failed:
                pending.fail(ConnectionLost(reason, None if pending.sent else False, pending.id))
        if link is not None:
            link.close()
        if self._pump is not None:
            self._pump.set()
        self._on_end(self)
        self._announcing = threading.get_ident()
        try:
            for pending in failed:
                pending.announce()
        finally:
            self._announced.set()

    def _await_news_of_loss(self) -> None:
        """Wait until everybody knows which calls are lost: a new one should not be made elsewhere before those are."""
        if self._announcing != threading.get_ident():  # who is just told may call again
            self._announced.wait(LOSS_NEWS_TIMEOUT)

    def forked(self, client: str) -> None:
        """In the child of a fork: the connection is the parent's, and so are its calls. The next call opens another."""
        link, calls = self._link, self._calls
        if link is not None:
            link.sock.close()  # not shut down: the parent goes on with it
        self.__init__(self.target, self.keyring, client, None, self._on_end)  # type: ignore[misc]  # as new
        for pending in calls.values():
            pending.fail(ConnectionLost("the call was made before a fork; its reply goes to the parent"))


def _unsend(pendings: list[PendingCall]) -> None:
    """They were not sent completely this time."""
    for pending in pendings:
        pending.sent -= 1
