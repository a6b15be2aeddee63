"""What is out in each process: an item that may have killed one is handed out only where nothing else is out.

A lease that ran out counts no more: whoever had it is gone, or is late and will be told. What a server passes on is out
in the process that asked for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary


class PoisonIsolation:
    """One for each process, whatever queues it consumes."""

    def __init__(self) -> None:
        self._suspects: set[HandedOut] = set()
        self._others: set[HandedOut] = set()

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return _all_over(self._suspects) and (not suspect or _all_over(self._others))

    def enter(self, suspect: bool, over: Callable[[], bool]) -> HandedOut:
        """Count an item as out until it leaves. over: whether its lease ran out."""
        out = HandedOut(self, suspect, over)
        self.put(out)
        return out

    def put(self, out: HandedOut) -> None:
        (self._suspects if out.suspect else self._others).add(out)

    def leave(self, out: HandedOut) -> None:
        (self._suspects if out.suspect else self._others).discard(out)


@dataclass(eq=False, frozen=True, slots=True)
class HandedOut:
    """An item in the hands of the process of that gate. suspect: it must stay alone there."""

    gate: PoisonIsolation
    suspect: bool
    over: Callable[[], bool]


def isolation_of(process: str) -> PoisonIsolation:
    """The gate of a process: "" is this one, others are what their calls name them by."""
    if process:
        return _of_clients.setdefault(process, PoisonIsolation())
    return _of_this_process.setdefault(os.getpid(), PoisonIsolation())


def _all_over(out: set[HandedOut]) -> bool:
    return all(one.over() for one in out)


_of_this_process: dict[int, PoisonIsolation] = {}
"""By pid: in the hands of a fork nothing is."""
_of_clients: WeakValueDictionary[str, PoisonIsolation] = WeakValueDictionary()
"""As long as something is out there."""
