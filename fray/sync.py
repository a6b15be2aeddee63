"""Runs coroutines for synchronous code: one background thread has an event loop, and any thread may wait for it.

User code is synchronous, and may itself run inside an event loop, as notebooks do; so the loop here is never the
caller's. A fork copies no threads: the child forgets the loop and starts one of its own, and what was opened in the old
loop is opened anew (`fray_coordinator.per_loop`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Generic, Protocol, TypeVar

from fray_coordinator.backoff import STORE_PAUSES, backoff
from fray_coordinator.errors import StoreError
from fray_layouts.errors import Permanent

T = TypeVar("T")

log = logging.getLogger("fray")


class WouldDeadlock(Permanent):
    """This call would wait for the thread that it runs on: call it from another thread, or await the service itself."""


def persist(act: Callable[[], T], waits: str) -> T:
    """Repeat `act` until the storage has done it, through outages and refusals; blocks the calling thread.

    waits: what is to be stored, for the log.
    """
    pauses = backoff(*STORE_PAUSES)
    while True:
        try:
            return act()
        except StoreError as error:
            log.warning("%s waits for the storage: %s", waits, error)
            time.sleep(next(pauses))


def running_future() -> Future[Any]:
    """A future that nobody who waits for it can cancel."""
    future = Future[Any]()
    future.set_running_or_notify_cancel()
    return future


class LoopThread:
    """A thread with an event loop, started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result.

        An exception that interrupts this, such as KeyboardInterrupt, cancels the coroutine and waits for its end.
        Raises WouldDeadlock: called from the loop's own thread.
        """
        call: _LoopCall[T] | None = None
        try:
            call = _LoopCall(coroutine)
            if threading.current_thread() is self._thread:
                call.cancel()
                raise WouldDeadlock()
            self._started().call_soon_threadsafe(call.start)
            return call.outcome.result()
        except BaseException:
            if call is None:
                coroutine.close()
            elif not call.outcome.done():
                self._started().call_soon_threadsafe(call.cancel)
                wait([call.outcome])
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> _LoopCall[T]:
        """Begin a coroutine in the loop, without waiting for it."""
        call = _LoopCall(coroutine)
        self._started().call_soon_threadsafe(call.start)
        return call

    async def awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and await its result in the caller's own; a cancelled caller cancels it."""
        call = self.start(coroutine)
        try:
            return await asyncio.wrap_future(call.outcome)
        except asyncio.CancelledError:
            self._started().call_soon_threadsafe(call.cancel)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:  # without the lock: finalizers call this, wherever the thread is interrupted
            return self._loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="fray", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop


class _LoopCall(Generic[T]):
    """A coroutine in the loop; `outcome` is set when it has ended, however it was cancelled."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = running_future()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        if self.outcome.done():
            return  # cancelled before it began
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.outcome.done():
            self._coroutine.close()
            self.outcome.set_exception(CancelledError())

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


_loop_thread = LoopThread()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this process's background loop, and wait for its result; see `LoopThread.run`."""
    return _loop_thread.run(coroutine)


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Begin a coroutine in this process's background loop, and return a future of its result."""
    return _loop_thread.start(coroutine).outcome


async def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the background loop, and await its result in the caller's; see `LoopThread.awaited`."""
    return await _loop_thread.awaited(coroutine)


async def in_thread(wait: Callable[[], T]) -> T:
    """Await a function that blocks for long, in a daemon thread: neither the caller's loop nor the program's end waits.

    A cancelled caller leaves the function to its end.
    """
    return await asyncio.wrap_future(start_in_thread(wait))


def start_in_thread(wait: Callable[[], T]) -> Future[T]:
    """Begin `wait` in a daemon thread, within the caller's context, and return a future of its result."""
    outcome: Future[T] = running_future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            outcome.set_result(context.run(wait))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, name="fray-wait", daemon=True).start()
    return outcome


class LoopWaiter(Protocol):
    """How code that is written once for both kinds of callers waits for the loop: `awaited` or `blocking`."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> Awaitable[T]: ...


async def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """`run` with the signature of `awaited`, for code that is written once for both kinds of callers."""
    return run(coroutine)


def run_unsuspended(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because all that it awaits is `blocking`, in this thread, to its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits for something other than the background loop")


def at_exit(close: Callable[[], None]) -> None:
    """Call `close` when the main thread ends; what was registered last is called first.

    `atexit` is too late for anything asynchronous: by then executors take no more work. This is the hook by which the
    standard library stops its executors.
    """
    import concurrent.futures.thread  # noqa: F401 - so that its own hook is registered by now

    threading._register_atexit(close)  # type: ignore[attr-defined]


def _forget() -> None:
    global _loop_thread
    _loop_thread = LoopThread()


os.register_at_fork(after_in_child=_forget)
