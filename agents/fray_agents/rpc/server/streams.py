"""A generator's items on their way to its caller, at the caller's pace.

The caller says up to which item it has room; before that item the generator waits. Items that the caller may still
ask for again, when its connection broke, are kept: never more than the room it gave.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from fray_agents.rpc.server.call_table import (
    CallId,
    Reply,
    ReplyKind,
    ReplyReceiver,
    with_caller,
)
from fray_agents.rpc.wire.serialization import Payload

ORPHAN_TIMEOUT = 60.0  # seconds; a generator whose caller's connection is gone for longer is closed


class ConsumerGone(Exception):
    """Nobody wants more items."""


class ServerStream:
    """The server's end of a stream."""

    def __init__(self, call: CallId, callers: Sequence[ReplyReceiver], limit: int) -> None:
        self._id = call
        self._callers = list(callers)
        self._limit = self._window = limit
        self._items: deque[Reply] = deque()
        self._count = 0
        self._changed = threading.Condition()

    def put(self, packed: Payload) -> None:
        """Send an item; waits until there is room for it.

        Raises:
            ConsumerGone: the generator is to be closed.
        """
        item = Reply(self._id, ReplyKind.ITEM, packed)
        with self._changed:
            while 0 <= self._limit <= self._count:
                if not self._changed.wait(ORPHAN_TIMEOUT) and not any(caller.open for caller in self._callers):
                    raise ConsumerGone
            if self._limit < 0:
                raise ConsumerGone
            self._count += 1
            self._items.append(item)
            for caller in self._callers:
                caller.reply(item)

    @property
    def count(self) -> int:
        """How many items were put."""
        return self._count

    def grant(self, limit: int) -> None:
        """The caller has room for the items before `limit`; negative: it wants no more."""
        with self._changed:
            self._limit = limit if limit < 0 else max(limit, self._limit)
            while self._items and self._count - len(self._items) < self._limit - self._window:
                self._items.popleft()
            self._changed.notify_all()

    def resume(self, caller: ReplyReceiver, have: int, limit: int) -> None:
        """Send what a connection's caller lacks, and from now on what comes, to it too."""
        with self._changed:
            if caller not in self._callers:
                self._callers = with_caller(self._callers, caller)
                first = self._count - len(self._items)
                for item in list(self._items)[max(have - first, 0) :]:
                    caller.reply(item)
        self.grant(limit)
