"""Isolation of suspected poison items: a suspect is delivered only to a process in which no other item is out.

An item counts until its process ends it, whether or not that can be written. One whose lease ran out and is not being
written counts no more: its process has died, or is late. If an item is then handed out beside which it could not be,
its claim ends, since any later write under that claim would bring it back. An item that a server passes on counts in
the client process that asked for it.
"""

import itertools
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakValueDictionary

from fray_coordinator.per_process import PerProcess


class Outstanding(Protocol):
    """An item that a process works on. suspect: it must be alone there."""

    suspect: bool

    def is_over(self) -> bool:
        """Whether its lease ran out, and no write is under way that renews it."""

    def end_claim(self) -> None:
        """Let nothing more be done under its lease."""


class PoisonIsolation:
    """The items that are out in one process, from whatever queues."""

    def __init__(self) -> None:
        self._suspects: set[Outstanding] = set()
        self._others: set[Outstanding] = set()

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return all(item.is_over() for item in self._obstacles(suspect))

    def enter(self, item: Outstanding) -> None:
        """Count an item as out until it leaves. The claims of items that were in its way end."""
        for other in self._obstacles(item.suspect):
            if other.is_over():
                other.end_claim()
        (self._suspects if item.suspect else self._others).add(item)

    def leave(self, item: Outstanding) -> None:
        self._suspects.discard(item)
        self._others.discard(item)

    def _obstacles(self, suspect: bool) -> Iterator[Outstanding]:
        """The items beside which an item may not be handed out until they are over."""
        return itertools.chain(self._suspects, self._others if suspect else ())


def isolation_of(process: str) -> PoisonIsolation:
    """The isolation of a process: "" is this one; a server's clients have the names that they send with their calls."""
    if process:
        return _of_clients.setdefault(process, PoisonIsolation())
    return _of_this_process.value


_of_this_process = PerProcess(PoisonIsolation)
_of_clients: WeakValueDictionary[str, PoisonIsolation] = WeakValueDictionary()
"""Each is kept alive by the items that are out there."""
