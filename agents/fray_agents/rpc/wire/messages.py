"""How calls and replies are laid out in the parts of a message.

The first part is a pickle of small tuples, with the pickled arguments or result of every call in it; the other parts
are their large buffers, in order. Pickling the whole list at once is what makes a call among many cheap.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fray_agents.rpc.errors import BadMessage
from fray_agents.rpc.server.call_table import CallId, Reply, Request
from fray_agents.rpc.wire.buffers import Buffer
from fray_agents.rpc.wire.sealed_connection import SealedConnection
from fray_agents.rpc.wire.serialization import Payload

Parts = list[Buffer]


class CallBatch(NamedTuple):
    """What a caller sends."""

    client: str
    lowest: int  # the lowest sequence whose reply the caller lacks
    alone: bool  # the caller waits for this one call, and nothing else is under way
    requests: list[Request]
    grants: list[tuple[CallId, int]]  # room for the items of streams


def encode_calls(calls: CallBatch) -> Parts:
    """For `decode_calls`."""
    entries = [
        (
            sequence,
            None if client == calls.client else client,
            actor_id,
            method,
            packed.data,
            len(packed.buffers),
            have,
            limit,
        )
        for (client, sequence), actor_id, method, packed, have, limit, _ in calls.requests
    ]
    head = (calls.client, calls.lowest, calls.alone, entries, [(*call, limit) for call, limit in calls.grants])
    return [pickle.dumps(head, 5), *_buffers(request.packed for request in calls.requests)]


def decode_calls(parts: Sequence[Buffer]) -> CallBatch:
    """The calls of an authenticated message."""
    client, lowest, alone, entries, grants = pickle.loads(parts[0])
    take = _PartReader(parts)
    requests = [
        Request(CallId(owner or client, sequence), actor_id, method, take(data, count), have, limit)
        for sequence, owner, actor_id, method, data, count, have, limit in entries
    ]
    return CallBatch(client, lowest, alone, requests, [(CallId(*call), limit) for *call, limit in grants])


def encode_replies(client: str, replies: list[Reply]) -> Parts:
    """For `decode_replies`."""
    entries = [
        (sequence, None if owner == client else owner, kind, packed.data, len(packed.buffers))
        for (owner, sequence), kind, packed in replies
    ]
    return [pickle.dumps(entries, 5), *_buffers(reply.packed for reply in replies)]


def decode_replies(client: str, parts: Sequence[Buffer]) -> list[Reply]:
    """The replies of an authenticated message."""
    take = _PartReader(parts)
    return [
        Reply(CallId(owner or client, sequence), kind, take(data, count))
        for sequence, owner, kind, data, count in pickle.loads(parts[0])
    ]


class PickleProtocol:
    """A server's end of a link that carries tables; see `connection.Wire`."""

    comes_back = True

    def __init__(self, link: SealedConnection) -> None:
        self._link = link

    def receive(self) -> CallBatch | None:
        parts = self._link.receive()
        return None if parts is None else decode_calls(parts)

    def send(self, client: str, replies: list[Reply]) -> None:
        self._link.send(encode_replies(client, replies))

    def close(self) -> None:
        self._link.close()

    def abandon(self) -> None:
        self._link.abandon()


class _PartReader:
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


def _buffers(packed: Iterable[Payload]) -> Parts:
    return [buffer for one in packed for buffer in one.buffers]
