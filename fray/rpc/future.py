"""The future of a call to an actor.

It is a standard future, but what makes one (a condition, lists of who waits) is made when somebody asks for it: most
calls are asked for their `result` only.

A call whose connection was lost is sent again as soon as that is known, whether anyone waits for its result or not.
Whether it may be sent again at all is decided in `calling`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from fray.futures import TaskFuture
from fray_agents.rpc.errors import LOST_ERRORS, is_lost

T = TypeVar("T")

_lock = threading.Lock()
"""Guards what changes in a future when its call is lost; losses are rare, so one lock serves all futures."""


class SentCall(Protocol):
    """A call on its way, as its future asks it; `ClientCall` has the words."""

    def result(self, timeout: float | None = None) -> Any: ...

    def done(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Have `function` called with the call once it is done, which may be as late as after `hasten`."""

    def hasten(self) -> None:
        """Somebody waits who does not ask: tell them."""


Again = Callable[[ConnectionError, float], SentCall]
"""Sends a call again that was lost by an error at a time of `time.monotonic`, or raises what its future shall raise."""


class RetryQueue:
    """The calls of one caller that wait to be sent, in order; a thread sends them, which lives while there are any.

    told: what they wait for, for people.
    """

    def __init__(self, told: Callable[[], str]) -> None:
        self.told = told
        self._todo: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self._thread is None

    def put(self, work: Callable[[], None]) -> None:
        """Run `work` after all that was put before."""
        with _lock:
            self._todo.append(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="fray-retry", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with _lock:
                if not self._todo:
                    self._thread = None
                    return
                work = self._todo.popleft()
            work()


class UnsentCall:
    """A call that could not be sent, and so ended at once with `error`."""

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
        """Nothing: it is lost."""


_STANDARD_STATE = frozenset(vars(Future()))


class ActorFuture(TaskFuture[T]):
    """The future of a call; asking for its result cancels nothing, and may be repeated.

        score = future.result(timeout=10)  # in a thread
        score = await future  # in a coroutine; whoever cancels that does not cancel the call

    `concurrent.futures.wait` and `as_completed`, `asyncio.wrap_future` and `asyncio.gather` take it.

    Args:
        call: the call, which was sent or is lost.
        again: called in the queue's thread with the loss and its time (`time.monotonic`). It sends the call once more
            and returns the new one, or raises what the future shall raise.
        queue: of the pool or handle that the call was made with.
    """

    __slots__ = ("_again", "_call", "_moved", "_queue", "_stands")

    def __init__(self, call: SentCall, again: Again, queue: RetryQueue) -> None:
        self._call: SentCall = call  # without super().__init__, see the module
        self._again: Again | None = again
        self._queue = queue
        self._moved: Future[None] | None = None
        self._stands = False
        call.add_done_callback(self._settled)

    def result(self, timeout: float | None = None) -> T:
        """The value that the method returned; waits for it.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            TimeoutError: there is no result yet. The call goes on; ask again.
            CallInterrupted: the actor was lost and the method may have run.
            ActorNotFoundError, ActorUnavailableError: no actor could be reached, or there will be none.
            Exception: whatever the method raised, its cause the remote traceback.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            call = self._call
            try:
                return cast(T, call.result(_seconds_left(deadline)))
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                moved = self._lost(call, error)
            if moved is not None and not wait([moved], _seconds_left(deadline)).done:
                raise TimeoutError(self._late(timeout))
            if moved is not None:
                moved.result()

    def done(self) -> bool:
        """Whether `result` would return or raise at once. Never waits, and asks neither actor nor storage.

        False again while a call whose actor was lost is made once more.
        """
        call, moved = self._call, self._moved
        if moved is not None:
            return moved.done() and moved.exception() is not None
        return bool(call.done()) and not is_lost(call.exception())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise; None if it succeeded, or without a timeout while it is on its way.

        The cause is the traceback in the actor's process.

        Args:
            timeout: seconds to wait for the end. None does not wait: ask `done` first.

        Raises:
            TimeoutError: there is no result yet.
        """
        if timeout is not None:
            return super().exception(timeout)
        if not self.done():
            return None
        moved = self._moved
        return moved.exception() if moved is not None else self._call.exception()

    def cancel(self) -> bool:
        """False: a call that was made is not taken back."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Become a standard future, when the first part of its state is asked for."""
        if name not in _STANDARD_STATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _lock:
            if not self._stands:
                super().__init__()
                self.set_running_or_notify_cancel()
                self._stands = True
                self._call.hasten()
        if self.done():
            self._announce()
        return self.__dict__[name]

    def _told(self) -> str:
        return self._queue.told() if self._moved is not None else "the call runs"

    def _settled(self, call: Any) -> None:
        error = call.exception()
        if is_lost(error):
            self._lost(call, error)
        else:
            self._again = None  # it keeps the call's arguments
            self._announce()

    def _announce(self) -> None:
        """Tell who waits; called once the call is done, and by who makes the standard state: one sees the other."""
        if not self._stands:
            return
        error = self.exception()
        with suppress(InvalidStateError):  # the other has told them
            self.set_exception(error) if error is not None else self.set_result(self.result())

    def _lost(self, call: SentCall, error: ConnectionError) -> Future[None] | None:
        """Send `call` again, which was lost; done when it was sent. None: it has been sent again already."""
        with _lock:
            if call is not self._call:
                return None
            if self._moved is not None:
                return self._moved
            moved = self._moved = Future()
        since = time.monotonic()
        self._queue.put(lambda: self._send(error, since, moved))
        return moved

    def _send(self, error: ConnectionError, since: float, moved: Future[None]) -> None:
        assert self._again is not None, "only what was lost is sent again"
        try:
            call = self._again(error, since)
        except BaseException as failure:
            moved.set_exception(failure)
            self._announce()
            return
        with _lock:
            self._call, self._moved = call, None
        moved.set_result(None)
        call.add_done_callback(self._settled)
        if self._stands:
            call.hasten()


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
