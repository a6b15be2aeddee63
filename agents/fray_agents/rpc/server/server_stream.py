"""The server's end of a stream: sends the items of a generator as its caller has room for them.

A caller says up to which item it has room, and the generator waits before that item. Items that the caller may ask for
again are kept: never more than the room that it granted.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fray_agents.rpc.wire.messages import CallId, Reply, ReplyKind
from fray_agents.rpc.wire.serialization import Payload

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
