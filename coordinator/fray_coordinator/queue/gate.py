"""What is out in each process: an item that may have killed one is handed out only where nothing else is out.

A lease that ran out counts no more: whoever had it is gone, or is late and will be told. What a server passes on is out
in the process that asked for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary


class Gate:
    """One for each process, whatever queues it consumes."""

    def __init__(self) -> None:
        self._suspects: set[Out] = set()
        self._others: set[Out] = set()

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return _over(self._suspects) and (not suspect or _over(self._others))

    def enter(self, suspect: bool, over: Callable[[], bool]) -> Out:
        """Count an item as out until it leaves. over: whether its lease ran out."""
        out = Out(self, suspect, over)
        self.put(out)
        return out

    def put(self, out: Out) -> None:
        (self._suspects if out.suspect else self._others).add(out)

    def leave(self, out: Out) -> None:
        (self._suspects if out.suspect else self._others).discard(out)


@dataclass(eq=False, frozen=True, slots=True)
class Out:
    """An item in the hands of the process of that gate. suspect: it must stay alone there."""

    gate: Gate
    suspect: bool
    over: Callable[[], bool]


def gate_of(process: str) -> Gate:
    """The gate of a process: "" is this one, others are what their calls name them by."""
    if process:
        return _afar.setdefault(process, Gate())
    return _here.setdefault(os.getpid(), Gate())


def _over(out: set[Out]) -> bool:
    return all(one.over() for one in out)


_here: dict[int, Gate] = {}
"""By pid: in the hands of a fork nothing is."""
_afar: WeakValueDictionary[str, Gate] = WeakValueDictionary()
"""As long as something is out there."""
