"""Isolation of suspected poison items: a suspect is delivered only to a process in which no other item is out.

An item whose lease ran out counts no more: its process has died, or is late and will find its lease lost. An item that
a server passes on counts in the client process that asked for it.
"""

from typing import Protocol
from weakref import WeakValueDictionary

from fray_coordinator.per_process import PerProcess


class Outstanding(Protocol):
    """An item that a process works on. suspect: it must be alone there."""

    suspect: bool

    def is_over(self) -> bool:
        """Whether its lease ran out."""


class PoisonIsolation:
    """The items that are out in one process, from whatever queues."""

    def __init__(self) -> None:
        self._suspects: set[Outstanding] = set()
        self._others: set[Outstanding] = set()

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return _all_over(self._suspects) and (not suspect or _all_over(self._others))

    def enter(self, item: Outstanding) -> None:
        """Count an item as out until it leaves."""
        (self._suspects if item.suspect else self._others).add(item)

    def leave(self, item: Outstanding) -> None:
        self._suspects.discard(item)
        self._others.discard(item)


def isolation_of(process: str) -> PoisonIsolation:
    """The isolation of a process: "" is this one; a server's clients have the names that they send with their calls."""
    if process:
        return _of_clients.setdefault(process, PoisonIsolation())
    return _of_this_process.value


def _all_over(items: set[Outstanding]) -> bool:
    return all(item.is_over() for item in items)


_of_this_process = PerProcess(PoisonIsolation)
_of_clients: WeakValueDictionary[str, PoisonIsolation] = WeakValueDictionary()
"""Each is kept alive by the items that are out there."""
