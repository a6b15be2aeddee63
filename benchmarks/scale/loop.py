"""Virtual time for millions of timers: `tests.support.virtual`, at a third of the cost.

The timers are in a heap of tuples, which compare without Python code, and nothing asks the operating system, because
there are no sockets.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any, TypeVarTuple

from tests.support.virtual import EPOCH, VirtualLoop

Ts = TypeVarTuple("Ts")


class ManyTimersLoop(VirtualLoop):
    """Runs what is ready; when nothing is, its time jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        super().__init__()

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready:
            assert self._timers, "every task waits for something that nobody will do"
            self.now = max(self.now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self.now:
            ready.append(heapq.heappop(self._timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


class LoopClock:
    """The time of one loop as a `Clock`."""

    def __init__(self, loop: ManyTimersLoop) -> None:
        self._loop = loop

    def boottime(self) -> float:
        return self._loop.now

    def wall(self) -> float:
        return EPOCH + self._loop.now

    async def sleep(self, seconds: float) -> None:
        over = self._loop.create_future()
        self._loop.call_at(self._loop.now + seconds, _settle, over)
        await over


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
