"""Runs coroutines for synchronous code in an event loop of a background thread.

User code is synchronous, or runs in an event loop of its own, as in notebooks. So the loop here is never the caller's.
A forked child does not have the thread: it starts its own loop, and objects that were opened in the old loop are opened
again (`fray_coordinator.per_process`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from fray_coordinator.backoff import JITTER, STORE_PAUSES, backoff
from fray_coordinator.errors import StoreError
from fray_coordinator.per_process import PerProcess
from fray_layouts.errors import Permanent
from fray_runtime.threads import nobody_waits, run_event_loop, start_loop, start_thread


class Block(ABC):
    """An object that ends with its block. `async with` ends it in a thread, so other coroutines run on."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await in_thread(lambda: self.__exit__(kind, error, at))


T = TypeVar("T")

log = logging.getLogger("fray")


class WouldDeadlock(Permanent):
    """This call would wait for the thread that it runs on: call it from another thread, or await the service itself."""


def persist_in_thread(act: Callable[[], T], what: str) -> T:
    """`fray_coordinator.persist.persist` for a function that blocks its thread. Logs each failure.

    what: the data that `act` stores or reads, for the log.
    """
    pauses = backoff(*STORE_PAUSES)
    while True:
        try:
            return act()
        except StoreError as error:
            log.warning("%s waits for the storage: %s", what, error)
            time.sleep(next(pauses) * random.uniform(*JITTER))


def running_future() -> Future[Any]:
    """A future that those who wait for it cannot cancel."""
    future = Future[Any]()
    future.set_running_or_notify_cancel()
    return future


class LoopThread:
    """A thread with an event loop. The first call starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result.

        If an exception such as KeyboardInterrupt interrupts the wait, the coroutine is cancelled, and its end is waited
        for. Raises WouldDeadlock if it is called in the loop's own thread.
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
        """Start a coroutine in the loop, without waiting for it."""
        call = _LoopCall(coroutine)
        self._started().call_soon_threadsafe(call.start)
        return call

    async def awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and await its result in the caller's loop. Cancelling the caller cancels it."""
        call = self.start(coroutine)
        try:
            return await asyncio.wrap_future(call.outcome)
        except asyncio.CancelledError:
            self._started().call_soon_threadsafe(call.cancel)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:  # without the lock: finalizers call this, and may interrupt a thread that holds it
            return self._loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = start_loop(lambda: run_event_loop(loop), "fray")
                self._loop = loop
            return self._loop


class _LoopCall(Generic[T]):
    """A coroutine in the loop. `outcome` is set when it has ended, also if it was cancelled."""

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


_loop_thread = PerProcess(LoopThread)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this process's background loop, and wait for its result; see `LoopThread.run`."""
    return _loop_thread.value.run(coroutine)


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine in this process's background loop, and return a future of its result."""
    return _loop_thread.value.start(coroutine).outcome


async def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the background loop, and await its result in the caller's; see `LoopThread.awaited`."""
    return await _loop_thread.value.awaited(coroutine)


async def in_thread(wait: Callable[[], T]) -> T:
    """Await a function that may block for long. It runs in a daemon thread, so it blocks neither the loop nor the exit.

    If the caller is cancelled, the function runs on to its end.
    """
    return await outcome_of(start_in_thread(wait))


async def outcome_of(future: Future[T], cancel: Callable[[], object] | None = None) -> T:
    """Await a future of a thread; cancelling this cancels the future if it does not run yet.

    cancel: cancels the future without blocking this thread; by default `future.cancel`.

    `asyncio.wrap_future` never ends if the future raises StopIteration, which an asyncio future does not take.
    """
    done = running_future()
    future.add_done_callback(lambda _: done.set_result(None))
    try:
        await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        (cancel or future.cancel)()
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result(0)


def start_in_thread(wait: Callable[[], T]) -> Future[T]:
    """Start `wait` in a daemon thread with the caller's context variables, and return a future of its result."""
    outcome: Future[T] = running_future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            value = context.run(wait)
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    start_thread(call, "fray-wait", nobody_waits)  # the outcome is set, and a callback of it has failed
    return outcome


class LoopWaiter(Protocol):
    """How code that serves both coroutines and threads waits for the loop: `awaited` or `blocking`."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> Awaitable[T]: ...


async def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """`run` with the signature of `awaited`, for code that serves both coroutines and threads."""
    return run(coroutine)


def run_unsuspended(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this thread and return its result. It must never suspend: it may only await `blocking`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits for something other than the background loop")


def at_exit(close: Callable[[], None]) -> None:
    """Call `close` when the main thread ends. Functions are called in the reverse order of their registration.

    `atexit` is too late for anything asynchronous, because executors accept no more work then. This is the hook with
    which the standard library stops its executors.
    """
    import concurrent.futures.thread  # noqa: F401 - so that its own hook is registered by now

    threading._register_atexit(close)  # type: ignore[attr-defined]
