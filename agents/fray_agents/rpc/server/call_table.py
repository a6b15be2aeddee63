"""Calls as the server knows them, by (client, sequence): each runs at most once, its outcome is kept till it is known.

Invariant: a call never runs twice in one server. Unsafe: a reply is lost with its connection, the client asks again,
and the method runs a second time. Why not here: an id is entered before its call runs and leaves only below the
lowest sequence whose reply its client still lacks, which that client never asks for again. Under the byte bound an
outcome goes, but its id stays, and asking again is answered with `ResultLost`.

Invariant: whoever waits for a reply gets it. Unsafe: a connection breaks, the call is asked for again on another, and
the original comes in after that, read from what the broken one had left: the reply goes there. Why not here: a call has
all its askers whose connections are not known to have ended, and each gets what comes of it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from fray_agents.rpc.wire.serialization import (
    PICKLE,
    Codec,
    Payload,
    pack,
    pack_or_refer,
)

MAX_KEPT_BYTES = 64 * 2**20
"""Outcomes that a server keeps for clients that have not yet said that they have them."""

CLIENT_EXPIRY = 3600.0
"""Seconds after the end of a client's connection in which it may ask for its calls again."""


class CallId(NamedTuple):
    """One call of one client; a client is a channel of a process."""

    client: str
    sequence: int


NEW_CALL = CallId("", 0)
"""The id of a call that no channel has made yet."""


class Journal(Protocol):
    """What a durable actor remembers beyond this server."""

    def known(self, call: CallId) -> bytes | None:
        """The outcome of a call that was applied before this server began."""
        ...

    def applied(self, call: CallId, outcome: bytes, lowest: int) -> None:
        """The call has run; called before its reply leaves. If this raises, no reply is sent.

        Args:
            lowest: its client has the replies of all calls below it.
        """
        ...


class ReplyKind:
    """What a reply says. Plain integers: an enumeration would cost more than the rest of a reply."""

    VALUE = 0
    ERROR = 1
    ITEM = 2  # of a stream; more will come
    END = 3  # of a stream
    NO_SUCH_ACTOR = 4
    RESULT_LOST = 5


class Request(NamedTuple):
    """One call as it travels."""

    id: CallId
    actor_id: str
    method: str
    packed: Payload
    have: int = 0  # of a stream: items that the caller has
    limit: int = 0  # of a stream: the item before which to wait; 0: no stream
    coding: Codec = PICKLE


def packed_call(
    actor_id: str,
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    id: CallId = NEW_CALL,
    by_reference: bool = False,
) -> Request:
    """A call whose arguments are copied now and that is made later, by `Channel.resend`.

    Args:
        by_reference: take arguments that cannot be pickled as they are; whether they can go so is found out later.
    """
    given = (tuple(args), dict(kwargs))
    return Request(id, actor_id, method, (pack_or_refer(given) if by_reference else pack(given)).snapshot())


class Reply(NamedTuple):
    """What a call came to, as it travels."""

    id: CallId
    kind: int
    packed: Payload

    @property
    def size(self) -> int:
        """In bytes."""
        return self.packed.size


class ReplyReceiver(Protocol):
    """Who waits for replies: a connection, or a channel of this process."""

    @property
    def open(self) -> bool:
        """Whether it still may take replies."""
        ...

    def reply(self, reply: Reply) -> None:
        """Take one; never blocks for long."""
        ...


class ActiveStream(Protocol):
    """A stream under way, see `streams`."""

    def resume(self, caller: ReplyReceiver, have: int, limit: int) -> None:
        """Another connection asks for the rest."""
        ...

    def grant(self, limit: int) -> None:
        """Its caller has room up to there; negative: it wants no more."""
        ...


def with_caller(callers: Sequence[ReplyReceiver], caller: ReplyReceiver) -> list[ReplyReceiver]:
    """Those who wait for a call, once `caller` has asked for it too."""
    return [*(other for other in callers if other.open and other is not caller), caller]


S = TypeVar("S", bound=ActiveStream)


class ServedCall:
    """A call on the server. `callers`: who wait for it; `kept`: it may be asked for again."""

    __slots__ = ("callers", "kept", "reply", "request", "stream")

    def __init__(self, request: Request, caller: ReplyReceiver) -> None:
        self.request = request
        self.callers = [caller]
        self.kept = True
        self.reply: Reply | None = None
        self.stream: ActiveStream | None = None


class _KnownClient:
    __slots__ = ("left", "lowest", "records", "turn")

    def __init__(self) -> None:
        self.records: dict[int, ServedCall] = {}
        self.lowest = 0
        self.left = math.inf  # when its connection ended
        self.turn = threading.Lock()


class CallTable:
    """All calls that a server knows."""

    def __init__(self, bound: int = MAX_KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, _KnownClient] = {}
        self._bytes = 0
        self._bound = bound

    def turn(self, client: str) -> threading.Lock:
        """Held from admitting calls until each has its place with its actor: two connections of one client, the broken
        one and the next, must not overtake one another.
        """
        with self._lock:
            return self._client(client).turn

    def admit(self, client: str, lowest: int, requests: list[Request], caller: ReplyReceiver) -> list[ServedCall]:
        """Enter calls; those that were not known before are returned and must be run.

        Args:
            lowest: `client` has the replies of all calls below it.
        """
        new: list[ServedCall] = []
        known: list[tuple[Request, ServedCall | None]] = []
        with self._lock:
            known_client = self._client(client)
            known_client.left = math.inf
            self._forget(known_client, lowest)
            for request in requests:
                owner = self._client(request.id.client)
                record = owner.records.get(request.id.sequence)
                if record is not None or request.id.sequence < owner.lowest:
                    known.append((request, record))
                    continue
                record = owner.records[request.id.sequence] = ServedCall(request, caller)
                new.append(record)
        for request, record in known:
            self._again(request, record, caller)
        return new

    def complete(self, record: ServedCall, reply: Reply) -> None:
        """The call has ended: keep what came of it, and tell its callers."""
        with self._lock:
            record.reply = reply
            record.request = _ANSWERED  # its arguments are not needed any more
            callers, record.callers = record.callers, []
            if record.kept:
                self._bytes += reply.size
            if self._bytes > self._bound:
                self._evict()
        for caller in callers:
            caller.reply(reply)

    def begin(self, record: ServedCall, make: Callable[[list[ReplyReceiver]], S]) -> S:
        """Make the call's stream, for all who wait for it; who joins from now on finds it."""
        with self._lock:
            stream = record.stream = make(record.callers)
        return stream

    def stream(self, call: CallId) -> ActiveStream | None:
        """The stream under way by that id."""
        with self._lock:
            record = self._client(call.client).records.get(call.sequence)
            return record.stream if record is not None else None

    def lowest(self, client: str) -> int:
        """The client has the replies of all calls below it."""
        with self._lock:
            return self._client(client).lowest

    def left(self, client: str, for_good: bool = False) -> None:
        """Its connection has ended; it may come back, unless that was `for_good`."""
        now = time.monotonic()
        with self._lock:
            if client in self._clients:
                self._clients[client].left = -math.inf if for_good else now
            for name in [name for name, known in self._clients.items() if known.left < now - CLIENT_EXPIRY]:
                self._forget(self._clients.pop(name), sys.maxsize)

    def _client(self, name: str) -> _KnownClient:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _KnownClient()
            client.left = time.monotonic()
        return client

    def _again(self, request: Request, record: ServedCall | None, caller: ReplyReceiver) -> None:
        """A known call was asked for again: join it, or have what is kept of it."""
        with self._lock:
            if record is None:
                reply: Reply | None = Reply(request.id, ReplyKind.RESULT_LOST, _NOTHING)
                stream = None
            else:
                reply, stream = record.reply, record.stream
                if reply is None:
                    record.callers = with_caller(record.callers, caller)
        if stream is not None:
            stream.resume(caller, request.have, request.limit)
        if reply is not None:
            caller.reply(reply)

    def _forget(self, client: _KnownClient, lowest: int) -> None:
        client.lowest = max(client.lowest, lowest)
        while client.records:
            sequence = next(iter(client.records))
            if sequence >= lowest:
                return
            record = client.records.pop(sequence)
            record.kept = False
            if record.reply is not None:
                self._bytes -= record.reply.size

    def _evict(self) -> None:
        """Make room, oldest first, down to half of the bound; the ids stay."""
        for client in self._clients.values():
            for record in client.records.values():
                if record.reply is not None and record.reply.size:
                    self._bytes -= record.reply.size
                    record.reply = Reply(record.reply.id, ReplyKind.RESULT_LOST, _NOTHING)
                    if self._bytes <= self._bound // 2:
                        return


_NOTHING = Payload(b"")
_ANSWERED = Request(NEW_CALL, "", "", _NOTHING)
