"""Unexpected exceptions at any request, sleep, decoding or file of an agent's process.

They stand for lack of memory, a failing disk, or a fault in a library. With any exception, either the attempt ends with
a reason, or the agent's process ends and others take over.
"""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import OWNER

if TYPE_CHECKING:
    from tests.simulation.world import World


OFTENER = {"request about a job": 5.0, "reply about a job": 5.0, "file": 30.0, "start of a task": 30.0}
"""Places that an attempt passes only once or twice, and how much more often they raise than others."""


class Mishaps:
    """Draws at each place whether it raises."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate
        self._draw = random.Random(f"mishaps {world.seed}")
        self._befell: dict[str, float] = {}

    def since(self, begin: float, host: str) -> bool:
        """Whether an agent's process on the host had an exception since then."""
        return any(at >= begin and name.startswith(f"{host}.") for name, at in self._befell.items())

    def at(self, place: str) -> None:
        """Perhaps raise, if the current process is an agent's."""
        if not self._rate or not self._world.stormy or self._draw.random() >= self._rate * OFTENER.get(place, 1.0):
            return
        owner = OWNER.get()
        if not any(host.process is owner for host in self._world.hosts):
            return
        error = self._draw.choice(
            [
                MemoryError(),
                OSError(errno.EIO, "Input/output error"),
                OSError(errno.ENOSPC, "No space left on device"),
                ValueError("a fault of a library"),
                RecursionError("maximum recursion depth exceeded"),
                KeyError("a fault of ours"),
            ]
        )
        self._befell[owner.name] = self._world.loop.now
        error.is_mishap = True  # type: ignore[attr-defined]
        self._world.storage.faults[f"exception at a {place}"] += 1
        self._world.note(owner.name, "exception", f"{error!r} at a {place}")
        raise error


def is_mishap(error: BaseException | None) -> bool:
    """Whether the error comes from one that was raised here."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if getattr(one, "is_mishap", False):
            return True
        todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return False
