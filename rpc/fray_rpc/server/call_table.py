"""The calls that a server knows, by (client, sequence): each runs at most once; outcomes stay until acknowledged.

**Streams.** The items of a generator are sent as the caller has room for them. A caller says up to which item it has
room, and the generator waits before that item. Items that the caller may ask for again are kept: never more than the
room that it granted.

**Calls.**

**Invariant.** A call never runs twice in one server. **Unsafe sequence.** A reply is lost with its connection, the
client asks again, and the method runs a second time. **Why this cannot happen.** An id is entered before its call runs.
It is removed only below the lowest sequence whose reply its client still lacks, which that client never asks for again.
When outcomes take too much memory the oldest are dropped, but their ids stay, and a repeated request for one is
answered with `ResultLost`.

**Invariant.** Every receiver that waits for a reply gets it. **Unsafe sequence.** A connection breaks, and the client
asks for the call again on a new one. Then the server reads the original request from the buffer of the broken
connection, and sends the reply there. **Why this cannot happen.** A call keeps all its receivers whose connections are
not known to have ended, and each of them gets the outcome.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fray_rpc.wire.buffers import within_limit
from fray_rpc.wire.messages import NEW_CALL, CallId, Reply, ReplyKind, Request
from fray_rpc.wire.serialization import Payload

ORPHAN_TIMEOUT = 60.0
"""Seconds after which a waiting generator is closed if all connections of its caller are gone: three times the time for
which a caller tries to reconnect (`remote_channel.RECONNECT_TIMEOUT`)."""


class ConsumerGone(Exception):
    """No caller wants more items of a stream."""


class ReplyReceiver(Protocol):
    """A receiver of replies: a connection, or a channel in this process."""

    @property
    def open(self) -> bool:
        """Whether it can still receive replies."""

    def reply(self, reply: Reply) -> None:
        """Accept a reply; never blocks for long."""


def with_receiver(receivers: Sequence[ReplyReceiver], receiver: ReplyReceiver) -> list[ReplyReceiver]:
    """The receivers of a call after `receiver` has asked for it too, without closed ones."""
    return [*(other for other in receivers if other.open and other is not receiver), receiver]


class ServerStream:
    """The server's end of a stream."""

    def __init__(self, call: CallId, receivers: Sequence[ReplyReceiver], limit: int) -> None:
        self._id = call
        self._receivers = list(receivers)
        self._limit = self._window = limit
        self._items: deque[Reply] = deque()
        self._count = 0
        self._changed = threading.Condition()

    def put(self, payload: Payload) -> None:
        """Send an item once the caller has room for it.

        Raises ConsumerGone: the caller wants no more items, or has been gone for `ORPHAN_TIMEOUT`.
        """
        item = Reply(self._id, ReplyKind.ITEM, payload)
        with self._changed:
            while 0 <= self._limit <= self._count:
                if not self._changed.wait(ORPHAN_TIMEOUT) and not any(receiver.open for receiver in self._receivers):
                    raise ConsumerGone
            if self._limit < 0:
                raise ConsumerGone
            self._count += 1
            self._items.append(item)
            for receiver in self._receivers:
                receiver.reply(item)

    @property
    def count(self) -> int:
        return self._count

    def grant(self, limit: int) -> None:
        """Note that the caller has room for the items before number `limit`; negative: it wants no more."""
        with self._changed:
            self._limit = limit if limit < 0 else max(limit, self._limit)
            while self._items and self._count - len(self._items) < self._limit - self._window:
                self._items.popleft()
            self._changed.notify_all()

    def resume(self, receiver: ReplyReceiver, have: int, limit: int) -> None:
        """Send `receiver` the items from number `have` on, and all further ones."""
        with self._changed:
            if receiver not in self._receivers:
                self._receivers = with_receiver(self._receivers, receiver)
                first = self._count - len(self._items)
                for item in list(self._items)[max(have - first, 0) :]:
                    receiver.reply(item)
        self.grant(limit)


MAX_KEPT_BYTES = 64 * 2**20
"""Most bytes of outcomes that a server keeps for clients which have not acknowledged them, within its task's limit."""

CLIENT_EXPIRY = 3600.0
"""Seconds after the end of its connection in which a client may ask for its calls again; clients try for seconds."""


class Journal(Protocol):
    """The calls that a durable actor remembers beyond the life of this server."""

    def known(self, call: CallId) -> bytes | None:
        """The outcome of a call that was applied before this server began; None: it must run."""

    def applied(self, call: CallId, outcome: bytes, lowest: int) -> None:
        """Record that the call has run; called before its reply leaves. If this raises, no reply is sent.

        lowest: the client has the replies of all calls below it.
        """


class ServedCall:
    """A call on the server.

    Attributes:
        request: the call; its arguments are dropped once it has ended.
        receivers: connections that wait for its reply.
        kept: its client may ask for it again.
        reply: its outcome, once it has ended.
        stream: the stream, while it runs.
    """

    __slots__ = ("kept", "receivers", "reply", "request", "stream")

    def __init__(self, request: Request, receiver: ReplyReceiver) -> None:
        self.request = request
        self.receivers = [receiver]
        self.kept = True
        self.reply: Reply | None = None
        self.stream: ServerStream | None = None


class _KnownClient:
    """The calls of one client by sequence; `left_at`: the time at which its connection ended."""

    __slots__ = ("calls", "left_at", "lowest", "turn")

    def __init__(self) -> None:
        self.calls: dict[int, ServedCall] = {}
        self.lowest = 0
        self.left_at = math.inf
        self.turn = threading.Lock()


class CallTable:
    """All calls that a server knows. max_bytes: most bytes of kept outcomes."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, _KnownClient] = {}
        self._bytes = 0
        self._max_bytes = within_limit(MAX_KEPT_BYTES) if max_bytes is None else max_bytes

    def turn(self, client: str) -> threading.Lock:
        """The lock to hold from admitting a client's calls until each is queued at its actor.

        Without it, two connections of one client, the broken one and the new one, could overtake one another.
        """
        with self._lock:
            return self._client(client).turn

    def admit(self, client: str, lowest: int, requests: list[Request], receiver: ReplyReceiver) -> list[ServedCall]:
        """Enter calls of `receiver`; returns those that were not known before, which the caller must run.

        lowest: `client` has the replies of all its calls below it.
        """
        new: list[ServedCall] = []
        known: list[tuple[Request, ServedCall | None]] = []
        with self._lock:
            known_client = self._client(client)
            known_client.left_at = math.inf
            self._forget(known_client, lowest)
            for request in requests:
                owner = self._client(request.id.client)
                served = owner.calls.get(request.id.sequence)
                if served is not None or request.id.sequence < owner.lowest:
                    known.append((request, served))
                    continue
                served = owner.calls[request.id.sequence] = ServedCall(request, receiver)
                new.append(served)
        for request, served in known:
            self._join(request, served, receiver)
        return new

    def complete(self, served: ServedCall, reply: Reply) -> None:
        """Keep the outcome of a call that has ended, and send it to all receivers."""
        with self._lock:
            served.reply = reply
            served.request = _ANSWERED  # its arguments are not needed any more
            receivers, served.receivers = served.receivers, []
            if served.kept:
                self._bytes += reply.size
            if self._bytes > self._max_bytes:
                self._evict()
        for receiver in receivers:
            receiver.reply(reply)

    def refuse(self, served: ServedCall) -> None:
        """Answer a call that did not run because its actor is not served here (any more)."""
        self.complete(served, Reply(served.request.id, ReplyKind.NO_SUCH_ACTOR, _NOTHING))

    def begin_stream(self, served: ServedCall) -> ServerStream:
        """Begin the stream of a call, for all its receivers; a connection that asks for the call later joins it."""
        with self._lock:
            request = served.request
            stream = served.stream = ServerStream(request.id, served.receivers, request.limit)
        return stream

    def stream(self, call: CallId) -> ServerStream | None:
        """The stream of a call, if it is running."""
        with self._lock:
            served = self._client(call.client).calls.get(call.sequence)
            return served.stream if served is not None else None

    def lowest(self, client: str) -> int:
        """The sequence number below which a client has the replies of all its calls."""
        with self._lock:
            return self._client(client).lowest

    def client_left(self, client: str, for_good: bool = False) -> None:
        """Note that a client's connection has ended; the client may come back unless it left `for_good`."""
        now = time.monotonic()
        with self._lock:
            if client in self._clients:
                self._clients[client].left_at = -math.inf if for_good else now
            for name in [name for name, known in self._clients.items() if known.left_at < now - CLIENT_EXPIRY]:
                self._forget(self._clients.pop(name), sys.maxsize)

    def _client(self, name: str) -> _KnownClient:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _KnownClient()
            client.left_at = time.monotonic()
        return client

    def _join(self, request: Request, served: ServedCall | None, receiver: ReplyReceiver) -> None:
        """Add `receiver` to a known call that its client asked for again, or send it the kept reply."""
        with self._lock:
            if served is None:
                reply: Reply | None = Reply(request.id, ReplyKind.RESULT_LOST, _NOTHING)
                stream = None
            else:
                reply, stream = served.reply, served.stream
                if reply is None:
                    served.receivers = with_receiver(served.receivers, receiver)
        if stream is not None:
            stream.resume(receiver, request.have, request.limit)
        if reply is not None:
            receiver.reply(reply)

    def _forget(self, client: _KnownClient, lowest: int) -> None:
        client.lowest = max(client.lowest, lowest)
        known: list[int] = []
        for sequence in client.calls:  # in one pass: each search for the first key skips all deleted ones
            if sequence >= lowest:
                break
            known.append(sequence)
        for sequence in known:
            served = client.calls.pop(sequence)
            served.kept = False
            if served.reply is not None:
                self._bytes -= served.reply.size

    def _evict(self) -> None:
        """Drop outcomes of the oldest calls until half of the bound is free; the calls' ids stay."""
        for client in self._clients.values():
            for served in client.calls.values():
                if served.reply is not None and served.reply.size:
                    self._bytes -= served.reply.size
                    served.reply = Reply(served.reply.id, ReplyKind.RESULT_LOST, _NOTHING)
                    if self._bytes <= self._max_bytes // 2:
                        return


_NOTHING = Payload(b"")
_ANSWERED = Request(NEW_CALL, "", "", _NOTHING)
