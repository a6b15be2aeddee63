"""The outcome of a call that is on its way.

A call whose connection was lost is sent again as soon as that is known, whether anyone waits for its result or not;
whether it may be sent again at all is decided by whoever made it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar, cast

from fray.futures import HasReadySignal
from fray_agents.rpc import ClientCall
from fray_agents.rpc.errors import ConnectionLost, NoSuchActor, NotAuthentic, RemoteTraceback

T = TypeVar("T")

_lock = threading.Lock()
"""Guards what changes in a future when its call is lost; losses are rare, so one lock serves all futures."""


LOST_ERRORS = (ConnectionLost, NoSuchActor, NotAuthentic)
"""What a call ends with when the actor is not there, or no longer."""


def is_lost(error: BaseException | None) -> bool:
    """Whether a call failed because its actor is gone; False if the method raised this, having called another."""
    return isinstance(error, LOST_ERRORS) and not isinstance(error.__cause__, RemoteTraceback)


class RetryQueue:
    """Sends lost calls again in the order in which they were lost, in a thread that lives while there are any."""

    def __init__(self) -> None:
        self._todo: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether everything that was put has been done."""
        return self._thread is None

    def put(self, work: Callable[[], None]) -> None:
        """Do `work` after what was put before."""
        with _lock:
            self._todo.append(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="fray-again", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with _lock:
                if not self._todo:
                    self._thread = None
                    return
                work = self._todo.popleft()
            work()


class SentCall(Protocol):
    """A call that was sent, or one that could not be sent and so was lost at once."""

    def result(self, timeout: float | None = None) -> Any: ...

    def done(self) -> bool: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None: ...


class UnsentCall:
    """Stands for a call that is not on its way: `error` says what it waits for."""

    def __init__(self, error: ConnectionError) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        raise self._error

    def done(self) -> bool:
        return True

    def exception(self) -> ConnectionError:
        return self._error

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        function(self)


class ActorFuture(HasReadySignal, Generic[T]):
    """What a call will have returned; asking cancels nothing, and may be repeated.

    Args:
        call: the call, already sent.
        again: called in the lane's thread with the loss and the time (`time.monotonic`) of it; sends the call once
            more and returns the new one, or raises what the future shall raise.
        lane: of the pool or handle that the call was made with.
    """

    __slots__ = ("_again", "_call", "_coming", "_lane", "_moved")

    def __init__(self, call: SentCall, again: Callable[[ConnectionError, float], ClientCall], lane: RetryQueue) -> None:
        self._call: SentCall = call
        self._again: Callable[[ConnectionError, float], ClientCall] | None = again
        self._lane = lane
        self._moved: Future[None] | None = None
        self._coming: Future[None] | None = None
        call.add_done_callback(self._settled)

    def result(self, timeout: float | None = None) -> T:
        """What the method returned; waits for it.

        Args:
            timeout: seconds.

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
            if moved is not None:
                moved.result(_seconds_left(deadline))

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        call, moved = self._call, self._moved
        if moved is not None:
            return moved.done() and moved.exception() is not None
        return bool(call.done()) and not is_lost(call.exception())

    def exception(self) -> BaseException | None:
        """What `result` would raise; None while the call is on its way, or if it succeeded."""
        if not self.done():
            return None
        moved = self._moved
        return moved.exception() if moved is not None else self._call.exception()

    @property
    def ready_signal(self) -> Future[None]:
        """Done as soon as `result` would not wait."""
        with _lock:
            coming = self._coming = self._coming or Future()
        if self.done():
            self._announce()
        return coming

    def _settled(self, call: Any) -> None:
        error = call.exception()
        if is_lost(error):
            self._lost(call, error)
        else:
            self._again = None  # it keeps the call's arguments
            self._announce()

    def _announce(self) -> None:
        """Called once it is done, and by who asks whether it is: of the two, one sees the other's doing."""
        if self._coming is None:
            return
        with _lock:
            if not self._coming.done():
                self._coming.set_result(None)

    def _lost(self, call: SentCall, error: ConnectionError) -> Future[None] | None:
        """What ends when `call`, which was lost, was sent again; None if it was already."""
        with _lock:
            if call is not self._call:
                return None
            if self._moved is not None:
                return self._moved
            moved = self._moved = Future()
        since = time.monotonic()
        self._lane.put(lambda: self._send(error, since, moved))
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


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
