"""The future of a call to an actor.

It is a standard future, but the state of a standard future (a condition, lists of waiters) is created only when it is
used, because most calls are only asked for their `result`.

A call whose connection was lost is sent again as soon as that is known, even if nobody waits for its result. `calling`
decides whether it may be sent again at all.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from fray.futures import TaskFuture
from fray.sync import running_future
from fray.wait_line import Waiters
from fray_rpc.errors import LOST_ERRORS, is_lost
from fray_runtime.threads import start_loop

T = TypeVar("T")

_lock = threading.Lock()
"""Guards the fields of a future that change when its call is lost. Losses are rare, so all futures share one lock."""


class SentCall(Protocol):
    """A call that was sent, as far as its future uses it. `ClientCall` documents the methods."""

    def result(self, timeout: float | None = None) -> Any: ...

    def done(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Call `function` with the call once it is done. Some kinds of calls do so only after `hasten`."""

    def hasten(self) -> None:
        """Call the callbacks as soon as the call is done, because somebody waits who does not call `result`."""


Resend = Callable[[ConnectionError, float], SentCall]
"""Sends a lost call again, or raises the error that its future is to raise. The arguments are the error by which it was
lost, and the time of the loss on the clock of `time.monotonic`."""


class RetryQueue:
    """The calls of one caller that wait to be sent, in order. A thread sends them, and lives while there are any.

    Attributes:
        waiters: those who wait for the calls.

    Args:
        waiting_reason: returns the reason why they wait, for people.
    """

    def __init__(self, waiting_reason: Callable[[], str]) -> None:
        self.waiting_reason = waiting_reason
        self.waiters = Waiters()
        self._todo: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self._thread is None

    def put(self, work: Callable[[], None]) -> None:
        """Run `work` after all earlier work."""
        with _lock:
            self._todo.append(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_loop(self._work, "fray-retry")

    def _work(self) -> None:
        while True:
            with _lock:
                if not self._todo:
                    self._thread = None
                    return
                work = self._todo.popleft()
            work()


class UnsentCall:
    """A call that could not be sent, and ended at once with `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        raise self._error

    def done(self) -> bool:
        return True

    def exception(self) -> Exception:
        return self._error

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        function(self)

    def hasten(self) -> None:
        """Do nothing: the call has ended."""


async def until_done(call: SentCall) -> None:
    """Wait until a call is done. Cancelling the wait does not cancel the call."""
    done = running_future()
    call.add_done_callback(lambda _: done.set_result(None))
    call.hasten()
    await asyncio.wrap_future(done)


_STANDARD_STATE = frozenset(vars(Future()))


class ActorFuture(TaskFuture[T]):
    """The future of a call to an actor. Its result may be asked for again, also after a timeout.

        score = future.result(timeout=10)  # in a thread
        score = await future  # in a coroutine; cancelling it does not cancel the call

    It works with `concurrent.futures.wait` and `as_completed`, `asyncio.wrap_future` and `asyncio.gather`.

    Args:
        call: the call, which was sent or is lost.
        resend: sends the call again; called in the queue's thread.
        queue: the queue of the pool or handle that made the call.
    """

    __slots__ = ("_call", "_is_standard", "_queue", "_resend", "_resent")

    def __init__(self, call: SentCall, resend: Resend, queue: RetryQueue) -> None:
        self._call: SentCall = call  # without super().__init__, see the module's docstring
        self._resend: Resend | None = resend
        self._queue = queue
        self._resent: Future[None] | None = None  # while the call waits to be sent again: done once it was sent
        self._is_standard = False
        call.add_done_callback(self._settled)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, and return the value that the method returned.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            TimeoutError: there is no result yet. The call goes on, and its result can be asked for again.
            CallInterrupted: the actor was lost and the method may have run.
            ActorNotFoundError, ActorUnavailableError: no actor could be reached, or there will never be one.
            Exception: what the method raised, with the remote traceback as its cause.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            call = self._call
            try:
                return cast(T, call.result(_seconds_left(deadline)))
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                resent = self._lost(call, error)
            if resent is None:
                continue
            with self._queue.waiters:
                is_sent = wait([resent], _seconds_left(deadline)).done
            if not is_sent:
                raise TimeoutError(self._timeout_message(timeout))
            resent.result()

    def done(self) -> bool:
        """Whether `result` would return or raise at once. It never waits, and makes no request.

        It becomes False again if the call's actor was lost and the call is made again.
        """
        call, resent = self._call, self._resent
        if resent is not None:
            return resent.done() and resent.exception() is not None
        return bool(call.done()) and not is_lost(call.exception())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise; None if the call succeeded, or without a timeout while it runs.

        Its cause is the traceback in the actor's process.

        Args:
            timeout: seconds to wait for the end. None does not wait: ask `done` first.

        Raises:
            TimeoutError: there is no result yet.
        """
        if timeout is not None:
            with self._queue.waiters:
                return super().exception(timeout)
        if not self.done():
            return None
        resent = self._resent
        return resent.exception() if resent is not None else self._call.exception()

    def cancel(self) -> bool:
        """Return False: a call cannot be cancelled once it was made."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Create the state of a standard future when the first part of it is used."""
        if name not in _STANDARD_STATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _lock:
            if not self._is_standard:
                super().__init__()
                self.set_running_or_notify_cancel()
                self._is_standard = True
                self._call.hasten()
        if self.done():
            self._announce()
        return self.__dict__[name]

    async def _awaited(self) -> T:
        with self._queue.waiters:
            return await super()._awaited()

    def _progress_text(self) -> str:
        return self._queue.waiting_reason() if self._resent is not None else "the call runs"

    def _settled(self, call: Any) -> None:
        error = call.exception()
        if is_lost(error):
            self._lost(call, error)
        else:
            self._resend = None  # frees the call's arguments
            self._announce()

    def _announce(self) -> None:
        """Set the outcome in the standard state, which wakes those who wait.

        It is called when the call is done, and when the standard state is created: whichever comes later sets it.
        """
        if not self._is_standard:
            return
        error = self.exception()
        with suppress(InvalidStateError):  # both came at the same time, and the other one has set it
            self.set_exception(error) if error is not None else self.set_result(self.result())

    def _lost(self, call: SentCall, error: ConnectionError) -> Future[None] | None:
        """Queue the lost `call` to be sent again. Returns a future that is done once it was sent.

        None if it has already been sent again.
        """
        with _lock:
            if call is not self._call:
                return None
            if self._resent is not None:
                return self._resent
            resent = self._resent = Future()
        since = time.monotonic()
        self._queue.put(lambda: self._send(error, since, resent))
        return resent

    def _send(self, error: ConnectionError, since: float, resent: Future[None]) -> None:
        assert self._resend is not None, "only lost calls are sent again"
        try:
            call = self._resend(error, since)
        except BaseException as failure:
            resent.set_exception(failure)
            self._announce()
            return
        with _lock:
            self._call, self._resent = call, None
        resent.set_result(None)
        call.add_done_callback(self._settled)
        if self._is_standard:
            call.hasten()


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
