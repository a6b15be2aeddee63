"""A seeded event loop in virtual time, whose every step belongs to a participant that can crash or freeze.

The seed chooses the next step among those that are ready. A participant stands for a process. A *crash* drops all its
steps for ever, exactly at an await, so that nothing is cancelled and no `finally` runs. A *freeze* holds them back
until it wakes up, while time goes on.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Handler = Callable[..., object]
OWNER: ContextVar[Participant] = ContextVar("owner")


class Participant:
    """One process. mode: "up", "frozen" or "gone"; signals: its handlers; on_crash: called at its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = "up"
        self.asleep_since = float("inf")
        self.held: list[Step] = []
        self.signals: dict[int, Callable[[], object]] = {}
        self.on_crash: list[Callable[[], object]] = []
        self._context = copy_context()
        self._context.run(OWNER.set, self)

    def __repr__(self) -> str:
        return self.name

    def context(self) -> Context:
        return self._context.copy()


class Step:
    """A callback to run in a context; the loop's handle."""

    __slots__ = ("args", "callback", "cancelled_", "context", "owner", "when_")

    def __init__(self, callback: Handler, args: tuple[Any, ...], context: Context, when: float) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.owner = context[OWNER]
        self.when_ = when
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self.when_


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(NumberedTask._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.AbstractEventLoop):
    """The loop.

    Attributes:
        now: virtual seconds.
        broken: set to an error, it ends the run at once.
        steps: how many steps ran.
    """

    def __init__(self, seed: str) -> None:
        self.now = 0.0
        self.broken: BaseException | None = None
        self.steps = 0
        self.on_error: Callable[[dict[str, Any]], None] = lambda context: None
        self._pick = random.Random(f"scheduler {seed}").random
        self._ready: list[Step] = []
        self._timers: list[tuple[float, int, Step]] = []
        self._serial = itertools.count()
        self._tasks: list[NumberedTask] = []
        self._swept = 1000
        NumberedTask._numbers = itertools.count()

    # --- driving it

    def advance(self, until: float) -> None:
        """Run all steps up to the time `until`."""
        asyncio._set_running_loop(self)
        try:
            self._advance(until)
        finally:
            asyncio._set_running_loop(None)

    def _advance(self, until: float) -> None:
        ready, timers, pick = self._ready, self._timers, self._pick
        while True:
            while ready:
                index = int(pick() * len(ready))
                step = ready[index]
                ready[index] = ready[-1]
                ready.pop()
                if step.cancelled_:
                    continue
                owner = step.owner
                if owner.mode != "up":
                    if owner.mode == "frozen":
                        owner.held.append(step)
                    continue
                self.steps += 1
                step.context.run(step.callback, *step.args)
                if self.broken is not None:
                    raise self.broken
            while timers and timers[0][2].cancelled_:
                heapq.heappop(timers)
            if not timers or timers[0][0] > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                ready.append(heapq.heappop(timers)[2])

    def freeze(self, owner: Participant) -> None:
        """Stop the participant until it is woken, whatever it holds."""
        if owner.mode == "up":
            owner.mode, owner.asleep_since = "frozen", self.now

    def wake(self, owner: Participant) -> None:
        """Let a frozen participant continue: all timers that expired meanwhile are due now."""
        if owner.mode == "frozen":
            owner.mode, owner.asleep_since = "up", float("inf")
            self._ready.extend(owner.held)
            owner.held = []

    def crash(self, owner: Participant) -> None:
        """End the participant."""
        if owner.mode == "gone":
            return
        owner.mode = "gone"
        owner.held = []
        for heard in owner.on_crash:
            heard()

    def bury(self) -> None:
        """Close all unfinished coroutines after the run, without letting them do anything more."""
        self._ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task)
        finally:
            asyncio._set_running_loop(None)
            self._ready.clear()
            self._timers.clear()
            self._tasks.clear()

    # --- the interface of asyncio's loops

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Any:
        step = Step(callback, args, copy_context() if context is None else context, self.now)
        self._ready.append(step)
        return step

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        step = Step(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._serial), step))
        return step

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> Any:
        task = NumberedTask(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)  # a crashed participant's tasks must not be collected: that would run their `finally`
        if len(self._tasks) > self._swept:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
            self._swept = 2 * len(self._tasks) + 1000
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        OWNER.get().signals[sig] = lambda: callback(*args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Do nothing: cancelled timers are skipped when they are due."""


def _close(task: NumberedTask) -> None:
    coroutine = task.get_coro()
    for _ in range(8):  # a `finally` that awaits survives one close
        try:
            coroutine.close()
            return
        except BaseException:
            continue
