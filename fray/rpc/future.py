"""The future of a call to an actor.

A call whose connection was lost is sent again as soon as that is known, whether anyone waits for its result or not.
Whether it may be sent again at all is decided in `calling`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

from fray.futures import HasReadySignal, ShowsOutcome
from fray_agents.rpc import ClientCall
from fray_agents.rpc.errors import LOST_ERRORS, is_lost

T = TypeVar("T")

_lock = threading.Lock()
"""Guards what changes in a future when its call is lost; losses are rare, so one lock serves all futures."""


Again = Callable[[ConnectionError, float], ClientCall]
"""Sends a call again that was lost by an error at a time of `time.monotonic`, or raises what its future shall raise."""


class RetryQueue:
    """The calls of one caller that wait to be sent, in order; a thread sends them, which lives while there are any."""

    def __init__(self) -> None:
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
    """A call that could not be sent, and so was lost at once by `error`."""

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


class ActorFuture(ShowsOutcome, HasReadySignal, Generic[T]):
    """The future of a call; asking for its result cancels nothing, and may be repeated.

    Args:
        call: the call, which was sent or is lost.
        again: called in the queue's thread with the loss and its time (`time.monotonic`). It sends the call once more
            and returns the new one, or raises what the future shall raise.
        queue: of the pool or handle that the call was made with.
    """

    __slots__ = ("_again", "_call", "_coming", "_moved", "_queue")

    def __init__(self, call: ClientCall | UnsentCall, again: Again, queue: RetryQueue) -> None:
        self._call: ClientCall | UnsentCall = call
        self._again: Again | None = again
        self._queue = queue
        self._moved: Future[None] | None = None
        self._coming: Future[None] | None = None
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
            if moved is not None:
                moved.result(_seconds_left(deadline))

    def done(self) -> bool:
        """Whether `result` would return or raise at once. Never waits, and asks neither actor nor storage.

        False again while a call whose actor was lost is made once more.
        """
        call, moved = self._call, self._moved
        if moved is not None:
            return moved.done() and moved.exception() is not None
        return bool(call.done()) and not is_lost(call.exception())

    def exception(self) -> BaseException | None:
        """The exception that `result` would raise; None while the call is on its way, or if it succeeded.

        Never waits: ask `done` first, to tell these two apart. The cause is the traceback in the actor's process.
        """
        if not self.done():
            return None
        moved = self._moved
        return moved.exception() if moved is not None else self._call.exception()

    @property
    def ready_signal(self) -> Future[None]:
        """A future that is done as soon as `result` would not wait."""
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
        """Set `coming`; called once the call is done, and by whoever makes `coming`: one of the two sees the other."""
        if self._coming is None:
            return
        with _lock:
            if not self._coming.done():
                self._coming.set_result(None)

    def _lost(self, call: ClientCall | UnsentCall, error: ConnectionError) -> Future[None] | None:
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


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
