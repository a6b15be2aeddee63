"""A connection on the server: a thread reads calls, and replies leave as soon as there is a request to answer.

A watchdog finds calls that block their connections, because the connections' reading threads run them.

HTTP answers each request once and in order, but a slow call must not delay the replies of quick ones. So a response
carries all replies that are ready, of any calls. A request is held until there is a reply. When another request comes,
the held one is answered at once, without replies if none is ready. The client keeps a request here for as long as it
lacks replies.

A caller that waits for a single call says so, and the reading thread then runs the call itself, without a hand-over
between threads. If that takes too long, the `Watchdog` starts another thread that reads.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Protocol

from fray_rpc.errors import BadMessage, NotAuthentic
from fray_rpc.server.call_table import CallTable, ServedCall
from fray_rpc.server.executor import ActorExecutor
from fray_rpc.wire.http_connection import LARGE_BODY
from fray_rpc.wire.messages import MAX_BATCH, MAX_BATCH_BYTES, CallBatch, Reply, ReplyKind
from fray_rpc.wire.session import RpcKey
from fray_runtime.threads import new_thread, start_loop, start_thread

INLINE_LIMIT = 0.002
"""Seconds that a call may occupy its connection's reading thread: ten times the duration of most calls."""

_log = logging.getLogger(__name__)


class InlineCaller(Protocol):
    """A connection whose reading thread runs calls itself."""

    def replace_reader(self, number: int) -> None:
        """Start another thread that reads, if the reading thread still runs the calls with that number."""


class Watchdog:
    """Finds calls that occupy the reading threads of their connections for too long, and starts replacements."""

    def __init__(self) -> None:
        self._busy: dict[InlineCaller, tuple[int, float]] = {}
        self._numbers = itertools.count(1)
        self._awake = threading.Event()
        self._started = False

    def begin(self, connection: InlineCaller) -> int:
        """Note that calls begin in the reading thread of `connection`; returns their number."""
        number = next(self._numbers)
        self._busy[connection] = number, time.monotonic()
        if not self._started:
            self._start()
        if not self._awake.is_set():
            self._awake.set()
        return number

    def end(self, connection: InlineCaller) -> None:
        self._busy.pop(connection, None)

    def _start(self) -> None:
        self._started = True
        try:
            start_loop(self._watch, "fray-watchdog")
        except RuntimeError:
            self._started = False
            raise

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while self._awake.wait():
            time.sleep(INLINE_LIMIT)
            now = time.monotonic()
            for connection, (number, since) in list(self._busy.items()):
                idle_since = now
                if now - since >= INLINE_LIMIT:
                    self._busy.pop(connection, None)
                    self._replace_reader(connection, number)
            if now - idle_since > 1.0:
                self._awake.clear()
                if self._busy:  # a call began just before the event was cleared
                    self._awake.set()
                idle_since = now

    def _replace_reader(self, connection: InlineCaller, number: int) -> None:
        try:
            connection.replace_reader(number)
        except Exception:  # no thread can be started: the client waits until the call has ended
            _log.exception("a call blocks its connection")


class ServedActors(Protocol):
    """The calls and actors of a server, as its connections see them."""

    table: CallTable

    def actor(self, actor_id: str) -> ActorExecutor | None:
        """The actor that is served under an id; None if there is none."""


class WireProtocol(Protocol):
    """The protocol that a connection speaks: it reads the calls of one client, and writes replies."""

    @property
    def may_reconnect(self) -> bool:
        """Whether the client may ask for its calls again on another connection."""

    def receive(self) -> CallBatch | None:
        """The calls of the next request; None if the client has closed the connection.

        Raises:
            BadMessage, NotAuthentic: the request violates the protocol or its seal; the connection must be closed.
            OSError: the connection is broken.
        """

    def send(self, client: str, replies: list[Reply]) -> None:
        """Answer a request with `replies`; two threads must not call this at once. Raises OSError: it is broken."""

    def close(self) -> None:
        """Wake threads that wait in `receive` or `send`, and close the connection."""

    def abandon(self) -> None:
        """In the child of a fork: close the socket, which the parent still uses."""


class ServerConnection:
    """One connection of a client.

    Args:
        key: the key with which it was opened.
        on_end: called when it has ended.
    """

    def __init__(
        self,
        protocol: WireProtocol,
        key: RpcKey,
        server: ServedActors,
        watchdog: Watchdog,
        on_end: Callable[[ServerConnection], None],
    ) -> None:
        self.key = key
        self._protocol = protocol
        self._server = server
        self._watchdog = watchdog
        self._on_end = on_end
        self._state = threading.Lock()  # not a Condition, for speed: each reply takes it
        self._all_sent = threading.Condition(self._state)
        self._ready: deque[Reply] = deque()
        self._unanswered = 0  # requests without response
        self._unreplied = 0  # calls without reply
        self._sending = False
        self._inline = 0  # number of the calls that the reading thread runs itself; 0: none
        self._client = ""
        self._reader: threading.Thread | None = None
        self.open = True

    def start(self) -> None:
        """Begin to read. Raises RuntimeError: no thread can be started."""
        reader = new_thread(self._read, "fray-connection", lambda error: self._end())
        before, self._reader = self._reader, reader
        try:
            reader.start()
        except RuntimeError:
            self._reader = before
            raise

    def replace_reader(self, number: int) -> None:
        """Start another thread that reads, if the reading thread still runs the calls with that number."""
        with self._state:
            if self._inline == number:
                self.start()
                self._inline = 0

    def close(self) -> None:
        """End the connection; replies that are ready are not sent."""
        self._protocol.close()

    def abandon(self) -> None:
        """In the child of a fork: close the socket, which the parent still uses."""
        self._protocol.abandon()

    def reply(self, reply: Reply) -> None:
        """Send a reply with the next response, which may be at once."""
        with self._state:
            if not self.open:
                return  # the table keeps it, and the client asks again
            self._ready.append(reply)
            self._unreplied -= reply.kind != ReplyKind.ITEM
            if self._sending or not self._unanswered:
                return
        self._flush()

    def flushed(self, timeout: float) -> bool:
        """Whether all ready replies leave within `timeout` seconds."""
        with self._state:
            return self._all_sent.wait_for(lambda: not self.open or not (self._ready or self._sending), timeout)

    def _read(self) -> None:
        try:
            while threading.current_thread() is self._reader:
                calls = self._protocol.receive()
                if calls is None:
                    break
                self._handle(calls)
            else:
                return
        except (BadMessage, NotAuthentic) as error:
            _log.warning("a connection is closed: %s", error)
        except OSError:
            pass  # it broke; the client reconnects if it lacks replies
        except Exception:
            _log.exception("a connection is closed: its client has another version of Fray, or is broken")
        self._end()

    def _handle(self, calls: CallBatch) -> None:
        self._client = calls.client
        with self._state:
            self._unanswered += 1
            self._unreplied += len(calls.requests)
        for call, limit in calls.grants:
            stream = self._server.table.stream(call)
            if stream is not None:
                stream.grant(limit)
        with self._server.table.turn(calls.client):
            new = self._server.table.admit(calls.client, calls.lowest, calls.requests, self)
            actor = self._reserve(new, calls.alone)
            if actor is None:
                self._submit(new)
        if actor is not None:
            self._run_inline(actor, new)
        self._flush()

    def _reserve(self, calls: list[ServedCall], alone: bool) -> ActorExecutor | None:
        """The actor of these calls, if this thread may run them now.

        It may not run calls that could run concurrently, as they must not wait for one another. Nor may it run a
        stream, which waits for its consumer.
        """
        if not calls or calls[0].request.limit:
            return None
        actor_id = calls[0].request.actor_id
        actor = self._server.actor(actor_id)
        if actor is None or not (alone or actor.one_at_a_time):
            return None
        if any(served.request.actor_id != actor_id or served.request.limit for served in calls):
            return None
        return actor if actor.reserve(len(calls)) else None

    def _run_inline(self, actor: ActorExecutor, calls: list[ServedCall]) -> None:
        with self._state:  # in one step, so that a watchdog that finds the number also finds these calls running
            self._inline = number = self._watchdog.begin(self)
        try:
            actor.run_reserved(calls)
        finally:
            self._watchdog.end(self)
            with self._state:
                self._inline = 0 if self._inline == number else self._inline

    def _submit(self, calls: list[ServedCall]) -> None:
        for actor_id, group in groupby(calls, key=lambda served: served.request.actor_id):
            actor = self._server.actor(actor_id)
            if actor is not None:
                actor.submit(list(group))
                continue
            for served in group:
                self._server.table.refuse(served)

    def _flush(self) -> None:
        """Answer requests that can be answered; another thread sends a large response, unless this one may wait."""
        while (batch := self._next_batch()) is not None:
            reading = threading.current_thread() is self._reader  # it may wait, as its client waits for this response
            if reading or sum(reply.size for reply in batch) <= LARGE_BODY // 2 or not self._send_elsewhere(batch):
                self._send(batch)
            else:
                return

    def _send_elsewhere(self, batch: list[Reply]) -> bool:
        """Have another thread send; whether one could be started."""
        try:
            start_thread(lambda: self._send_and_flush(batch), "fray-flush", lambda error: self._protocol.close())
        except RuntimeError:
            return False
        return True

    def _send_and_flush(self, batch: list[Reply]) -> None:
        self._send(batch)
        self._flush()

    def _next_batch(self) -> list[Reply] | None:
        """The replies that this thread must send now; None: there are none, or another thread is sending."""
        with self._state:
            answer = self._unanswered and (self._ready or self._unanswered > 1 or not self._unreplied)
            if self._sending or not self.open or not answer:
                if not self._ready:
                    self._all_sent.notify_all()  # for `flushed`
                return None
            self._sending = True
            self._unanswered -= 1
            batch: list[Reply] = []
            size = 0
            while self._ready and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
                batch.append(self._ready.popleft())
                size += batch[-1].size
            return batch

    def _send(self, batch: list[Reply]) -> None:
        try:
            self._protocol.send(self._client, batch)
        except OSError:
            self._protocol.close()  # the reading thread notices, and ends
        except Exception:
            _log.exception("a connection is closed: its replies could not be sent")
            self._protocol.close()
        with self._state:
            self._sending = False

    def _end(self) -> None:
        with self._state:
            self.open = False
            self._all_sent.notify_all()
        self._protocol.close()
        self._server.table.client_left(self._client, for_good=not self._protocol.may_reconnect)
        self._on_end(self)
