"""A connection on the server: a thread reads calls, replies leave as soon as there is a request to answer.

HTTP answers each request once, in order, but a slow call must not hold up the replies of quick ones. So a response
holds whatever replies are ready, of any call. A request is held until there is one; when another request comes, the
one held is answered at once, if need be with nothing. The client keeps a request here for as long as it lacks
replies.

A caller that waits for a single call says so, and the reading thread runs it itself: no hand-over between threads. If
that takes longer than a moment, `Watchdog` puts another thread in its place, so that nobody is kept waiting for it.
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

from fray_agents.rpc.errors import BadMessage, NotAuthentic
from fray_agents.rpc.server.call_table import (
    CallTable,
    Reply,
    ReplyKind,
    ServedCall,
)
from fray_agents.rpc.server.executor import ActorExecutor
from fray_agents.rpc.wire.framing import LARGE_BODY
from fray_agents.rpc.wire.messages import CallBatch
from fray_agents.rpc.wire.serialization import Payload
from fray_agents.rpc.wire.session import RpcKey

INLINE_LIMIT = 0.002
"""Seconds that a call may keep its connection's reading thread."""

MAX_BATCH = 512
MAX_BATCH_BYTES = 2**20

_log = logging.getLogger(__name__)


class ServedActors(Protocol):
    """What a connection needs of its server."""

    table: CallTable

    def actor(self, actor_id: str) -> ActorExecutor | None:
        """The actor served by that id."""
        ...


class WireProtocol(Protocol):
    """Carries calls to a server and replies back, for one client."""

    @property
    def comes_back(self) -> bool:
        """Whether the client may ask for its calls again on another connection."""
        ...

    def receive(self) -> CallBatch | None:
        """The calls of the next request; None when the client has closed.

        Raises:
            BadMessage, NotAuthentic: the connection must be closed.
            OSError: it is broken.
        """
        ...

    def send(self, client: str, replies: list[Reply]) -> None:
        """Answer a request with these; never from two threads at once. Raises OSError: the connection is broken."""
        ...

    def close(self) -> None:
        """Wake whoever waits in `receive` or `send`, and close."""
        ...

    def abandon(self) -> None:
        """In the child of a fork: close the socket, which is the parent's."""
        ...


class Watchdog:
    """Looks, while calls run in reading threads, whether one runs for too long."""

    def __init__(self) -> None:
        self._busy: dict[ServerConnection, tuple[int, float]] = {}
        self._numbers = itertools.count(1)
        self._awake = threading.Event()
        self._started = False

    def begin(self, connection: ServerConnection) -> int:
        """A call begins in the reading thread of `connection`; its number."""
        number = next(self._numbers)
        self._busy[connection] = number, time.monotonic()
        if not self._awake.is_set():
            self._awake.set()
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="fray-relief", daemon=True).start()
        return number

    def end(self, connection: ServerConnection) -> None:
        """It has ended."""
        self._busy.pop(connection, None)

    def _watch(self) -> None:
        idle_since = time.monotonic()
        while self._awake.wait():
            time.sleep(INLINE_LIMIT)
            now = time.monotonic()
            for connection, (number, since) in list(self._busy.items()):
                idle_since = now
                if now - since >= INLINE_LIMIT:
                    self._busy.pop(connection, None)
                    self._relieve(connection, number)
            if now - idle_since > 1.0:
                self._awake.clear()
                if self._busy:  # it began while we were about to sleep
                    self._awake.set()
                idle_since = now

    def _relieve(self, connection: ServerConnection, number: int) -> None:
        try:
            connection.relieve(number)
        except Exception:  # no thread can be started: its client waits until the call has ended
            _log.exception("a call holds up its connection")


class ServerConnection:
    """One client's link.

    Args:
        key: that it was opened with.
        ended: called when it is over.
    """

    def __init__(
        self,
        wire: WireProtocol,
        key: RpcKey,
        serving: ServedActors,
        relief: Watchdog,
        ended: Callable[[ServerConnection], None],
    ) -> None:
        self.key = key
        self._wire = wire
        self._serving = serving
        self._relief = relief
        self._on_end = ended
        self._state = threading.Condition()
        self._ready: deque[Reply] = deque()
        self._held = 0  # requests without response
        self._due = 0  # calls without reply
        self._sending = False
        self._here = 0  # which calls the reading thread runs itself; 0: none
        self._client = ""
        self._reader: threading.Thread | None = None
        self.open = True

    def start(self) -> None:
        """Begin to read."""
        reader = threading.Thread(target=self._read, name="fray-connection", daemon=True)
        before, self._reader = self._reader, reader
        try:
            reader.start()
        except RuntimeError:
            self._reader = before
            raise

    def relieve(self, number: int) -> None:
        """The reading thread runs these calls for too long: another one reads from now on."""
        with self._state:
            if self._here == number:
                self.start()
                self._here = 0

    def close(self) -> None:
        """End it; replies that are ready are not sent."""
        self._wire.close()

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        self._wire.abandon()

    def reply(self, reply: Reply) -> None:
        """Send it with the next response, which may be at once."""
        with self._state:
            if not self.open:
                return  # it is kept, and asked for again
            self._ready.append(reply)
            self._due -= reply.kind != ReplyKind.ITEM
            if self._sending or not self._held:
                return
        self._flush()

    def drained(self, timeout: float) -> bool:
        """Wait until replies that are ready have left; whether they have."""
        with self._state:
            return self._state.wait_for(lambda: not self.open or not (self._ready or self._sending), timeout)

    def _read(self) -> None:
        try:
            while threading.current_thread() is self._reader:
                calls = self._wire.receive()
                if calls is None:
                    break
                self._handle(calls)
            else:
                return
        except (BadMessage, NotAuthentic) as error:
            _log.warning("a connection is closed: %s", error)
        except OSError:
            pass  # it broke; the client comes back if it lacks anything
        except Exception:
            _log.exception("a connection is closed: its client is another version of this, or broken")
        self._end()

    def _handle(self, calls: CallBatch) -> None:
        self._client = calls.client
        with self._state:
            self._held += 1
            self._due += len(calls.requests)
        for call, limit in calls.grants:
            stream = self._serving.table.stream(call)
            if stream is not None:
                stream.grant(limit)
        with self._serving.table.turn(calls.client):
            new = self._serving.table.admit(calls.client, calls.lowest, calls.requests, self)
            actor = self._reserve(new, calls.alone)
            if actor is None:
                self._submit(new)
        if actor is not None:
            self._run_here(actor, new)
        self._flush()

    def _reserve(self, records: list[ServedCall], alone: bool) -> ActorExecutor | None:
        """The actor whose calls these are, if this thread may run them at once.

        Calls that may run together must not wait for one another here, and a stream waits for its consumer.
        """
        if not records or records[0].request.limit:
            return None
        actor_id = records[0].request.actor_id
        actor = self._serving.actor(actor_id)
        if actor is None or not (alone or actor.one_at_a_time):
            return None
        if any(record.request.actor_id != actor_id or record.request.limit for record in records):
            return None
        return actor if actor.reserve(len(records)) else None

    def _run_here(self, actor: ActorExecutor, records: list[ServedCall]) -> None:
        number = self._relief.begin(self)
        with self._state:
            self._here = number
        try:
            actor.run_reserved(records)
        finally:
            self._relief.end(self)
            with self._state:
                self._here = 0 if self._here == number else self._here

    def _submit(self, records: list[ServedCall]) -> None:
        for actor_id, group in groupby(records, key=lambda record: record.request.actor_id):
            actor = self._serving.actor(actor_id)
            if actor is not None:
                actor.submit(list(group))
                continue
            for record in group:
                self._refuse(record)

    def _refuse(self, record: ServedCall) -> None:
        self._serving.table.complete(record, Reply(record.request.id, ReplyKind.NO_SUCH_ACTOR, Payload(b"")))

    def _flush(self) -> None:
        """Answer what can be answered; a large response by a thread that may wait for its receiver."""
        while (batch := self._next_batch()) is not None:
            reading = threading.current_thread() is self._reader  # may wait: its client reads, it waits for this
            if not reading and sum(reply.size for reply in batch) > LARGE_BODY // 2:
                threading.Thread(target=self._send_and_flush, args=(batch,), name="fray-flush", daemon=True).start()
                return
            self._send(batch)

    def _send_and_flush(self, batch: list[Reply]) -> None:
        self._send(batch)
        self._flush()

    def _next_batch(self) -> list[Reply] | None:
        """The replies to send now, by this thread; None: there are none, or another thread sends."""
        with self._state:
            answer = self._held and (self._ready or self._held > 1 or not self._due)
            if self._sending or not self.open or not answer:
                if not self._ready:
                    self._state.notify_all()  # for `drained`
                return None
            self._sending = True
            self._held -= 1
            batch: list[Reply] = []
            size = 0
            while self._ready and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
                batch.append(self._ready.popleft())
                size += batch[-1].size
            return batch

    def _send(self, batch: list[Reply]) -> None:
        try:
            self._wire.send(self._client, batch)
        except OSError:
            self._wire.close()  # the reading thread sees it, and ends
        except Exception:
            _log.exception("a connection is closed: its replies could not be sent")
            self._wire.close()
        with self._state:
            self._sending = False

    def _end(self) -> None:
        with self._state:
            self.open = False
            self._state.notify_all()
        self._wire.close()
        self._serving.table.left(self._client, for_good=not self._wire.comes_back)
        self._on_end(self)
