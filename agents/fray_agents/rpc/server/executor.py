"""Running the calls of one actor: in order, at most so many at once.

Calls begin in the order in which they were admitted. With a limit of one, each also ends before the next begins, so
the calls of one caller run in the order they were made. A coroutine keeps its place until it has ended, and so does a
stream.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fray_agents.rpc.errors import RemoteError
from fray_agents.rpc.server.call_table import (
    CallTable,
    Journal,
    Reply,
    ReplyKind,
    ServedCall,
)
from fray_agents.rpc.server.streams import ConsumerGone, ServerStream
from fray_agents.rpc.wire.serialization import (
    BY_REFERENCE,
    PICKLE,
    Payload,
    pack,
)

if TYPE_CHECKING:
    from fray_agents.rpc.server.event_loop import EventLoopThread

MethodLookup = Callable[[str], Callable[..., Any]]
"""Finds a method by name; AttributeError when there is none."""

IDLE_THREAD_TIMEOUT = 10.0  # seconds after which a thread without work ends

_log = logging.getLogger(__name__)


class ActorExecutor:
    """One served object, under whatever names.

    Args:
        target: the object.
        methods: finds what is called.
        limit: how many calls may run at once.
        table: told of each call's end.
        journal: of a durable actor.
        loop: gives the event loop for coroutines, started with the first.
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
        self._state = threading.Condition(lock)  # there is something to run, or nothing ever will be
        self._at_rest = threading.Condition(lock)  # nothing runs
        self._queue: deque[ServedCall] = deque()
        self._running = 0
        self._idle = 0
        self._threads = 0
        self._closed = False

    @property
    def one_at_a_time(self) -> bool:
        """Whether each call ends before the next begins."""
        return self.limit == 1

    def submit(self, records: Sequence[ServedCall]) -> None:
        """Run these when their turn comes."""
        with self._state:
            closed = self._closed
            self._queue.extend(() if closed else records)
            stranded = self._wake()
        self._fail(stranded)
        for record in records if closed else ():
            self._refuse(record)

    def reserve(self, count: int) -> bool:
        """Whether so many calls may run in one thread, from now on; if so, `run_reserved` must follow."""
        with self._state:
            if self._closed or self._queue or self._running >= self.limit or (count > 1 and self.limit > 1):
                return False
            self._running += 1
            return True

    def run_reserved(self, records: Sequence[ServedCall]) -> None:
        """Run the calls in this thread, one after the other."""
        for number, record in enumerate(records, 1):
            if not self._run(record):
                self._put_back(records[number:])
                return
            if self._closed:
                self._put_back(records[number:])
                break
        self._ended()

    def _put_back(self, records: Sequence[ServedCall]) -> None:
        """To the head of the queue."""
        with self._state:
            closed = self._closed
            self._queue.extendleft(() if closed else reversed(records))
            stranded = self._wake()
        self._fail(stranded)
        for record in records if closed else ():
            self._refuse(record)

    def close(self) -> None:
        """Calls that did not begin are refused; those that run go on."""
        with self._state:
            self._closed = True
            refused, self._queue = list(self._queue), deque()
            self._state.notify_all()
        for record in refused:
            self._refuse(record)

    def quiet(self, timeout: float) -> bool:
        """Wait until no call runs or waits; whether that came to be."""
        with self._state:
            return self._at_rest.wait_for(lambda: not self._running and not self._queue, timeout)

    def _wake(self) -> list[ServedCall]:
        """Have threads run what waits; the calls that no thread will ever run, because none can be started."""
        wanted = min(len(self._queue), self.limit - self._running)
        self._state.notify(min(wanted, self._idle))
        for _ in range(min(wanted - self._idle, self.limit - self._threads)):
            try:
                threading.Thread(target=self._work, name="fray-actor", daemon=True).start()
            except RuntimeError as error:
                _log.warning("calls wait for others, or fail: %s", error)
                break
            self._threads += 1
        if self._threads or self._running:
            return []
        stranded, self._queue = list(self._queue), deque()
        return stranded

    def _fail(self, stranded: Sequence[ServedCall]) -> None:
        for record in stranded:
            problem = RemoteError(f"no thread could be started for {record.request.method!r}; it did not run")
            self._table.complete(
                record, Reply(record.request.id, ReplyKind.ERROR, record.request.coding.error(problem))
            )

    def _work(self) -> None:
        ended = 0
        while (record := self._next(ended)) is not None:
            ended = int(self._run(record))

    def _next(self, ended: int) -> ServedCall | None:
        """The next call for this thread, which has ended so many; None: no more are needed."""
        with self._state:
            self._running -= ended
            while not self._queue or self._running >= self.limit:
                if not self._running and not self._queue:
                    self._at_rest.notify_all()
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
                self._at_rest.notify_all()
        self._fail(stranded)

    def _run(self, record: ServedCall) -> bool:
        """Run one call; False when a coroutine goes on with it."""
        request = record.request
        try:
            if self._journal is not None and (known := self._journal.known(request.id)) is not None:
                self._table.complete(record, Reply(request.id, *pickle.loads(known)))
                return True
            args, kwargs = request.coding.arguments(request.packed)
            value = self._methods(request.method)(*args, **kwargs)
        except BaseException as error:
            self._complete(record, ReplyKind.ERROR, request.coding.error(_without_own_frame(error)))
            return True
        if type(value) is CoroutineType:
            self._loop().start(value, lambda *end: self._coroutine_ended(record, *end))
            return False
        self._finish(record, value)
        return True

    def _finish(self, record: ServedCall, value: Any) -> None:
        if record.request.limit:
            self._drive(record, value)
            return
        coding, method = record.request.coding, record.request.method
        if self._journal is not None and coding is BY_REFERENCE:
            coding = PICKLE  # it is written down
        try:
            if hasattr(value, "__next__") or hasattr(value, "__anext__"):
                raise TypeError("it is a generator; call the method as a stream, or have it return a list")
            packed = coding.value(value)
        except Exception as error:
            problem = RemoteError(f"the result of {method!r} cannot be {coding.verb}: {error}")
            self._complete(record, ReplyKind.ERROR, coding.error(problem))
            return
        self._complete(record, ReplyKind.VALUE, packed)

    def _complete(self, record: ServedCall, kind: int, packed: Payload) -> None:
        call = record.request.id
        if self._journal is not None:
            try:
                outcome = pickle.dumps((kind, packed.snapshot()), 5)
                self._journal.applied(call, outcome, self._table.lowest(call.client))
            except Exception:
                _log.exception("call %s of %s ran, but its caller gets no reply", call, record.request.method)
                return
        self._table.complete(record, Reply(call, kind, packed))

    def _drive(self, record: ServedCall, value: Any) -> None:
        """Send the items of a stream."""
        request = record.request
        stream = self._table.begin(record, lambda callers: ServerStream(request.id, callers, request.limit))
        items: Iterator[Any] | None = None
        try:
            items = self._loop().drain(value) if hasattr(value, "__anext__") else iter(value)
            for item in items:
                stream.put(request.coding.value(item))
        except ConsumerGone:
            pass
        except BaseException as error:
            self._complete(record, ReplyKind.ERROR, request.coding.error(_without_own_frame(error)))
            return
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        self._complete(record, ReplyKind.END, pack(stream.count))

    def _coroutine_ended(self, record: ServedCall, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self._complete(record, ReplyKind.ERROR, record.request.coding.error(error))
        elif record.request.limit:  # waits for its consumer, which the loop must not
            threading.Thread(target=self._drive_and_end, args=(record, value), name="fray-stream", daemon=True).start()
            return
        else:
            self._finish(record, value)
        self._ended()

    def _drive_and_end(self, record: ServedCall, value: Any) -> None:
        self._drive(record, value)
        self._ended()

    def _refuse(self, record: ServedCall) -> None:
        self._table.complete(record, Reply(record.request.id, ReplyKind.NO_SUCH_ACTOR, Payload(b"")))


def _without_own_frame(error: BaseException) -> BaseException:
    """As the method's caller should see it: without the frame of this module."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next
    return error
