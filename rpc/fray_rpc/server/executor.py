"""An executor of the calls of one actor: it runs them in order, with a limited number at once.

Calls begin in the order in which they were admitted. With a limit of one, each also ends before the next begins, so the
calls of one caller run in the order in which they were made. A coroutine counts against the limit until it has ended,
and so does a stream.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fray_rpc.errors import RemoteError
from fray_rpc.server.call_table import CallTable, ConsumerGone, Journal, ServedCall
from fray_rpc.wire.messages import Reply, ReplyKind
from fray_rpc.wire.serialization import BY_REFERENCE, PICKLE, Payload, pack
from fray_runtime.threads import start_thread

if TYPE_CHECKING:
    from fray_rpc.server.event_loop import EventLoopThread

MethodLookup = Callable[[str], Callable[..., Any]]
"""Finds a method by name; raises AttributeError if there is none."""

IDLE_THREAD_TIMEOUT = 10.0
"""Seconds after which a thread without work ends: longer than usual pauses between calls."""

_log = logging.getLogger(__name__)


class ActorExecutor:
    """The executor of one served object, for all its names.

    Args:
        target: the object.
        methods: finds the methods by name.
        limit: most calls that may run at once.
        table: receives the outcome of each call.
        journal: that of a durable actor; None for others.
        loop: returns the event loop for coroutines, which the first one starts.
    """

    def __init__(
        self,
        target: object,
        methods: MethodLookup,
        limit: int,
        table: CallTable,
        journal: Journal | None,
        loop: Callable[[], EventLoopThread],
    ) -> None:
        self.target = target
        self.limit = limit
        self._methods = methods
        self._table = table
        self._journal = journal
        self._loop = loop
        lock = threading.Lock()
        self._state = threading.Condition(lock)  # notified if there is something to run, or the executor is closed
        self._idle_again = threading.Condition(lock)  # notified when nothing runs
        self._queue: deque[ServedCall] = deque()
        self._running = 0
        self._idle = 0
        self._threads = 0
        self._closed = False

    @property
    def one_at_a_time(self) -> bool:
        return self.limit == 1

    def submit(self, calls: Sequence[ServedCall], first: bool = False) -> None:
        """Run calls when their turn comes; `first`: before all waiting calls."""
        with self._state:
            closed = self._closed
            if not closed:
                self._queue.extendleft(reversed(calls)) if first else self._queue.extend(calls)
            stranded = self._wake()
        self._fail(stranded)
        for served in calls if closed else ():
            self._table.refuse(served)

    def reserve(self, count: int) -> bool:
        """Whether the caller's thread may run `count` calls now; if so, it must call `run_reserved`."""
        with self._state:
            if self._closed or self._queue or self._running >= self.limit or (count > 1 and self.limit > 1):
                return False
            self._running += 1
            return True

    def run_reserved(self, calls: Sequence[ServedCall]) -> None:
        """Run calls in this thread, one after the other, after `reserve`.

        Raises:
            KeyboardInterrupt: the program was interrupted within a method; it is also the outcome of that call.
        """
        for number, served in enumerate(calls, 1):
            try:
                replied = self._run(served)
            except KeyboardInterrupt:
                self.submit(calls[number:], first=True)
                self._ended()
                raise
            if not replied:
                self.submit(calls[number:], first=True)
                return
            if self._closed:
                self.submit(calls[number:], first=True)
                break
        self._ended()

    def close(self) -> None:
        """Refuse calls that have not begun; running calls continue."""
        with self._state:
            self._closed = True
            refused, self._queue = list(self._queue), deque()
            self._state.notify_all()
        for served in refused:
            self._table.refuse(served)

    def wait_until_idle(self, timeout: float) -> bool:
        """Whether all calls end within `timeout` seconds, including those that wait."""
        with self._state:
            return self._idle_again.wait_for(lambda: not self._running and not self._queue, timeout)

    def _wake(self) -> list[ServedCall]:
        """Wake or start threads for waiting calls; returns calls that cannot run because no thread can be started."""
        wanted = min(len(self._queue), self.limit - self._running)
        self._state.notify(min(wanted, self._idle))
        for _ in range(min(wanted - self._idle, self.limit - self._threads)):
            try:
                start_thread(self._work, "fray-actor", self._thread_failed)
            except RuntimeError as error:
                _log.warning("no thread can be started; calls wait for running ones, or fail: %s", error)
                break
            self._threads += 1
        if self._threads or self._running:
            return []
        stranded, self._queue = list(self._queue), deque()
        return stranded

    def _fail(self, stranded: Sequence[ServedCall]) -> None:
        for served in stranded:
            problem = RemoteError(f"no thread could be started for {served.request.method!r}; it did not run")
            self._table.complete(served, Reply(served.request.id, ReplyKind.ERROR, served.request.codec.error(problem)))

    def _work(self) -> None:
        ended = 0
        while (served := self._next(ended)) is not None:
            ended = int(self._run(served))

    def _thread_failed(self, error: BaseException) -> None:
        """Go on without a thread that failed in a call: others run the calls that wait."""
        with self._state:
            self._threads -= 1
        self._ended()

    def _next(self, ended: int) -> ServedCall | None:
        """The next call for this thread, which has ended `ended` calls; None: the thread must end."""
        with self._state:
            self._running -= ended
            while not self._queue or self._running >= self.limit:
                if not self._running and not self._queue:
                    self._idle_again.notify_all()
                self._idle += 1
                called = self._state.wait(IDLE_THREAD_TIMEOUT)
                self._idle -= 1
                if self._closed or not (called or self._queue):
                    self._threads -= 1
                    return None
            self._running += 1
            return self._queue.popleft()

    def _ended(self) -> None:
        stranded: list[ServedCall] = []
        with self._state:
            self._running -= 1
            if self._queue:
                stranded = self._wake()
            elif not self._running:
                self._idle_again.notify_all()
        self._fail(stranded)

    def _run(self, served: ServedCall) -> bool:
        """Run one call; False: a coroutine continues it."""
        try:
            return self._begin(served)
        except BaseException as error:
            if self._is_interrupt(error):
                raise  # Ctrl-C is meant for the program that owns this thread, not for the actor
            self._answer_failed(served, error)
            return True

    def _answer_failed(self, served: ServedCall, error: BaseException) -> None:
        """Answer a call that raised outside its method, unless it is answered; its thread goes on to serve others."""
        _log.error("a call failed outside its method", exc_info=error)
        if served.reply is None:
            request = served.request
            self._table.complete(served, Reply(request.id, ReplyKind.ERROR, request.codec.error(error)))

    def _is_interrupt(self, error: BaseException) -> bool:
        return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()

    def _begin(self, served: ServedCall) -> bool:
        request = served.request
        try:
            if self._journal is not None and (known := self._journal.known(request.id)) is not None:
                self._table.complete(served, Reply(request.id, *pickle.loads(known)))
                return True
            args, kwargs = request.codec.arguments(request.payload)
            value = self._methods(request.method)(*args, **kwargs)
        except BaseException as error:
            self._complete(served, ReplyKind.ERROR, request.codec.error(_without_own_frame(error)))
            if self._is_interrupt(error):
                raise
            return True
        if type(value) is CoroutineType:
            self._loop().start(value, lambda *end: self._coroutine_ended(served, *end))
            return False
        self._finish(served, value)
        return True

    def _finish(self, served: ServedCall, value: Any) -> None:
        if served.request.limit:
            self._stream(served, value)
            return
        codec, method = served.request.codec, served.request.method
        if self._journal is not None and codec is BY_REFERENCE:
            codec = PICKLE  # the journal needs bytes
        try:
            if hasattr(value, "__next__") or hasattr(value, "__anext__"):
                raise TypeError("it is a generator; call the method as a stream, or have it return a list")
            payload = codec.value(value)
        except Exception as error:
            problem = RemoteError(f"the result of {method!r} cannot be {codec.verb}: {error}")
            self._complete(served, ReplyKind.ERROR, codec.error(problem))
            return
        self._complete(served, ReplyKind.VALUE, payload)

    def _complete(self, served: ServedCall, kind: int, payload: Payload) -> None:
        call = served.request.id
        if self._journal is not None:
            try:
                outcome = pickle.dumps((kind, payload.snapshot()), 5)
                self._journal.applied(call, outcome, self._table.lowest(call.client))
            except Exception:
                _log.exception("call %s of %s ran, but its caller gets no reply", call, served.request.method)
                return
        self._table.complete(served, Reply(call, kind, payload))

    def _stream(self, served: ServedCall, value: Any) -> None:
        """Send the items of a stream."""
        request = served.request
        stream = self._table.begin_stream(served)
        items: Iterator[Any] | None = None
        try:
            items = self._loop().drain(value) if hasattr(value, "__anext__") else iter(value)
            for item in items:
                stream.put(request.codec.value(item))
        except ConsumerGone:
            pass  # the consumer does not want the rest
        except BaseException as error:
            self._complete(served, ReplyKind.ERROR, request.codec.error(_without_own_frame(error)))
            return
        finally:
            _close(items, request.method)
        self._complete(served, ReplyKind.END, pack(stream.count))

    def _coroutine_ended(self, served: ServedCall, value: Any, error: BaseException | None) -> None:
        def stream_failed(error: BaseException) -> None:
            self._answer_failed(served, error)
            self._ended()

        try:
            if error is not None:
                self._complete(served, ReplyKind.ERROR, served.request.codec.error(error))
            elif served.request.limit:  # the stream waits for its consumer, which would block the loop
                start_thread(lambda: self._stream_and_end(served, value), "fray-stream", stream_failed)
                return
            else:
                self._finish(served, value)
        except BaseException as problem:
            self._answer_failed(served, problem)
        self._ended()

    def _stream_and_end(self, served: ServedCall, value: Any) -> None:
        self._stream(served, value)
        self._ended()


def _close(items: Iterator[Any] | None, method: str) -> None:
    """Close a generator. What its cleanup raises is logged: its caller has left, or has its end already."""
    close = getattr(items, "close", None)
    try:
        if close is not None:
            close()
    except BaseException:
        _log.exception("the stream of %r raised while it was closed", method)


def _without_own_frame(error: BaseException) -> BaseException:
    """The exception with the traceback as the method raised it, without this module's frame."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next
    return error
