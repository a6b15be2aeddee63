"""Calls and replies, and their layout in messages, each with many of them.

The first part of a message is a pickle of small tuples, with the pickled arguments or result of each call in it. The
other parts are the large buffers of these, in order. A call in a batch is cheap because the list is pickled at once.
"""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fray_rpc.errors import BadMessage
from fray_rpc.wire.buffers import Buffer
from fray_rpc.wire.serialization import PICKLE, Codec, Payload, pack, pack_or_refer

Parts = list[Buffer]

MAX_BATCH = 512
"""Most calls or replies in a message, so that the first does not wait long: so many are encoded in under 1 ms."""

MAX_BATCH_BYTES = 2**20
"""Bytes of payloads beyond which nothing is added to a message, for the same reason."""


class CallId(msgspec.Struct, frozen=True, gc=False):
    """The id of one call, by which its caller may ask for it again.

    Attributes:
        client: id of the channel that made the call, unique among all channels of all times.
        sequence: number of the call on that channel, from 1.
    """

    client: str
    sequence: int


NEW_CALL = CallId("", 0)
"""The id of a call that is not made on any channel yet."""


class ReplyKind:
    """The kinds of replies. Plain integers: an enumeration would cost more than the rest of a reply."""

    VALUE = 0
    ERROR = 1
    ITEM = 2  # of a stream; more will come
    END = 3  # of a stream
    NO_SUCH_ACTOR = 4
    RESULT_LOST = 5


class Request(msgspec.Struct):
    """One call as it is sent. A msgspec struct, as its parts are, for speed: most objects of a call are of these types.

    Attributes:
        payload: its arguments.
        have: number of items of a stream that the caller has.
        limit: number of the item before which the generator of a stream waits; 0: the call is not a stream.
    """

    id: CallId
    actor_id: str
    method: str
    payload: Payload
    have: int = 0
    limit: int = 0
    codec: Codec = PICKLE


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a call, or an item of its stream, as it is sent."""

    id: CallId
    kind: int  # one of `ReplyKind`
    payload: Payload

    @property
    def size(self) -> int:
        return self.payload.size


def packed_call(
    actor_id: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], by_reference: bool = False
) -> Request:
    """A call for `Channel.resend` to make later; its arguments are copied now.

    by_reference: keep arguments that cannot be pickled as they are; `resend` finds out whether they can be sent.
    """
    given = (tuple(args), dict(kwargs))
    return Request(NEW_CALL, actor_id, method, (pack_or_refer(given) if by_reference else pack(given)).snapshot())


class CallBatch(NamedTuple):
    """The calls of one message, and the state of its client's other calls.

    Attributes:
        client: the channel that sends them.
        lowest: the lowest sequence whose reply the client lacks; it never asks for a call below that again.
        alone: the caller waits for this one call, and no other call is under way.
        grants: for running streams, the item before which each generator must wait now; negative: close it.
    """

    client: str
    lowest: int
    alone: bool
    requests: list[Request]
    grants: list[tuple[CallId, int]]


def encode_calls(calls: CallBatch) -> Parts:
    """The parts of a message that `decode_calls` reads."""
    entries = [
        (
            request.id.sequence,
            None if request.id.client == calls.client else request.id.client,
            request.actor_id,
            request.method,
            request.payload.data,
            len(request.payload.buffers),
            request.have,
            request.limit,
        )
        for request in calls.requests
    ]
    grants = [(call.client, call.sequence, limit) for call, limit in calls.grants]
    head = (calls.client, calls.lowest, calls.alone, entries, grants)
    return [pickle.dumps(head, 5), *_buffers(request.payload for request in calls.requests)]


def decode_calls(parts: Sequence[Buffer]) -> CallBatch:
    """The calls of an authenticated message. Raises BadMessage: it has fewer parts than it says."""
    client, lowest, alone, entries, grants = pickle.loads(parts[0])
    payload = _PayloadReader(parts)
    requests = [
        Request(CallId(owner or client, sequence), actor_id, method, payload(data, count), have, limit)
        for sequence, owner, actor_id, method, data, count, have, limit in entries
    ]
    return CallBatch(client, lowest, alone, requests, [(CallId(*call), limit) for *call, limit in grants])


def encode_replies(client: str, replies: list[Reply]) -> Parts:
    """The parts of a message that `decode_replies` reads."""
    entries = [
        (
            reply.id.sequence,
            None if reply.id.client == client else reply.id.client,
            reply.kind,
            reply.payload.data,
            len(reply.payload.buffers),
        )
        for reply in replies
    ]
    return [pickle.dumps(entries, 5), *_buffers(reply.payload for reply in replies)]


def decode_replies(client: str, parts: Sequence[Buffer]) -> list[Reply]:
    """The replies of an authenticated message. Raises BadMessage: it has fewer parts than it says."""
    payload = _PayloadReader(parts)
    return [
        Reply(CallId(owner or client, sequence), kind, payload(data, count))
        for sequence, owner, kind, data, count in pickle.loads(parts[0])
    ]


class _PayloadReader:
    """Joins each pickle with its large buffers, which are the later parts of a message, in order."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts
        self._next = 1

    def __call__(self, data: bytes, count: int) -> Payload:
        if not count:
            return Payload(data)
        begin, self._next = self._next, self._next + count
        if self._next > len(self._parts):
            raise BadMessage("fewer buffers than announced")
        return Payload(data, self._parts[begin : self._next])


def _buffers(payloads: Iterable[Payload]) -> Parts:
    return [buffer for payload in payloads for buffer in payload.buffers]
