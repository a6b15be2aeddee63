"""Calls to actors that may move, in a cluster in storage: decides which calls are made again after an actor was lost.

A call goes straight to a connected actor. If there is none, or its connection was lost, another actor is looked for
until the call was sent or must not be made again. Actors on Ray and Iris have callers of their own. A connection counts
as lost only after its channel has tried to reach the same server for as long as that may live
(`fray_rpc.client.remote_channel`).

Pools (`fray.rpc.pool`) and handles (`fray.actor.caller`) differ only in how they find an actor, and in which calls they
may make twice.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from msgspec import structs

from fray.cluster.actor_metadata import ActorEndpoint
from fray.errors import CallInterrupted
from fray.items import Items, ThreadItems
from fray.rpc.future import ActorFuture, RetryQueue, UnsentCall
from fray_rpc import CallId, Channel, ClientCall, ConnectionLost
from fray_rpc.errors import LOST_ERRORS, is_lost, may_have_started
from fray_rpc.wire.messages import NEW_CALL, Request, packed_call
from fray_rpc.wire.serialization import unpicklable_arguments

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """Which calls are made again if they may have begun in a process that died.

    Attributes:
        retries: how often each call is made again; -1: without limit.
        idempotent: methods whose calls are always made again.
        durable: whether the actor's next process knows the outcomes of calls by their ids, so that no call runs twice.
    """

    retries: int = 0
    idempotent: Sequence[str] = ()
    durable: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> RetryPolicy:
        """The policy that an actor with a job of its own has announced in its endpoint's metadata."""
        return cls(metadata.get("retries", 0), metadata.get("idempotent", ()), metadata.get("durable", False))

    def allows(self, method: str, repeated: int) -> bool:
        """Whether a call of `method` that was already made again `repeated` times may be made once more."""
        return self.retries < 0 or repeated < self.retries or method in self.idempotent


class MethodCaller(Protocol):
    """Makes the calls of `ActorMethod`s, on any backend."""

    name: str

    def call(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Any:
        return self.start(method, args, kwargs, policy).result()

    def start(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> ActorFuture[Any]: ...

    def stream(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Generator[Any, None, None]: ...


class ReachedActor(NamedTuple):
    """A connected actor: the channel to it, and its endpoint."""

    channel: Channel
    endpoint: ActorEndpoint


class ActorCaller(ABC):
    """Makes the calls of one pool or handle. It can be used from any number of threads.

    Args:
        name: the actors' name on their servers.
        one_actor: whether all calls go to one actor. Then they keep their order, even if they wait or are made again,
            and a call that may have begun can be sent again under its id.
        by_reference: whether a waiting call may have arguments that cannot be pickled, because its actor may be in this
            process.
    """

    def __init__(self, name: str, one_actor: bool, by_reference: bool) -> None:
        self.name = name
        self.one_actor = one_actor
        self._by_reference = by_reference
        self._queue = RetryQueue(self.waiting_reason)

    @abstractmethod
    def connected(self) -> ReachedActor | None:
        """An actor that can be called at once; None if `reach` has to find one."""

    @abstractmethod
    def reach(self, since: float) -> ReachedActor:
        """Connect to an actor, and wait for one to come up if necessary.

        Args:
            since: time at which the call was made or lost, on the clock of `time.monotonic`.

        Raises:
            ActorNotFoundError, ActorUnavailableError: there is no actor, or there will never be one.
        """

    @abstractmethod
    def mark_lost(self, reached: ReachedActor, error: ConnectionError) -> None:
        """Record that an actor could not be called."""

    @abstractmethod
    def interrupted(self, method: str) -> CallInterrupted:
        """The error for a call of `method` that may have begun and is not made again."""

    def waiting_reason(self) -> str:
        """The reason why calls wait that could not be sent yet, for people. Makes no request."""
        return f"actor {self.name} cannot be called yet"

    def call(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Any:
        """Call and wait for the result; see `ActorMethod.__call__`.

        Args:
            policy: the retry policy; None: the one that the actor has announced.
        """
        reached = self.connected() if self._queue.idle else None
        lost: ConnectionError | None = None
        if reached is not None:
            try:
                return reached.channel.call(self.name, method, args, kwargs)
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                lost = error
        if self.one_actor or not self._queue.idle:
            return self._queued(method, args, kwargs, policy, reached, lost or _NOT_CONNECTED).result()
        repeated = 0
        if reached is not None and lost is not None:
            repeated = self._may_repeat(method, policy, reached, lost, repeated)
        return self._deliver(method, policy, lambda to: to.channel.call(self.name, method, args, kwargs), repeated)

    def start(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> ActorFuture[Any]:
        """Call without a wait for the result or for an actor; see `ActorMethod.remote`."""
        reached = self.connected() if self._queue.idle else None
        lost: ConnectionError = _NOT_CONNECTED
        if reached is not None:
            try:
                call = reached.channel.start(self.name, method, args, kwargs)
            except LOST_ERRORS as error:
                lost = error
            else:
                return ActorFuture(call, RetryableCall(self, call.request, policy, reached).send, self._queue)
        return self._queued(method, args, kwargs, policy, reached, lost)

    def stream(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Generator[Any, None, None]:
        """Call a generator and yield its items; see `ActorMethod.stream`. The first step makes the call."""

        def begin(to: ReachedActor) -> tuple[ReachedActor, Iterator[Any], Any]:
            items = to.channel.stream(self.name, method, args, kwargs)
            return to, items, next(items, _END)

        reached, items, item = self._deliver(method, policy, begin)
        try:
            while item is not _END:
                yield item
                item = next(items, _END)
        except LOST_ERRORS as error:
            if not is_lost(error):
                raise
            self.mark_lost(reached, error)
            raise self.interrupted(method) from error

    def _deliver(
        self, method: str, policy: RetryPolicy | None, send: Callable[[ReachedActor], T], repeated: int = 0
    ) -> T:
        """Try `send` with one actor after another, in this thread, until the call is not lost.

        Raises CallInterrupted if it was lost and must not be made again.
        """
        since = time.monotonic()
        while True:
            reached = self._reach_in_turn(since)
            try:
                return send(reached)
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                repeated = self._may_repeat(method, policy, reached, error, repeated)

    def _may_repeat(
        self, method: str, policy: RetryPolicy | None, reached: ReachedActor, error: ConnectionError, repeated: int
    ) -> int:
        """Check that a call that was lost at `reached` may be made again. Returns the new number of repetitions.

        Raises CallInterrupted if it must not be made again.
        """
        self.mark_lost(reached, error)
        if not may_have_started(error):
            return repeated
        self.check_repeat(method, policy, reached, error, repeated)
        return repeated + 1

    def check_repeat(
        self, method: str, policy: RetryPolicy | None, reached: ReachedActor, error: ConnectionError, repeated: int
    ) -> None:
        """Raise CallInterrupted if a call that may have begun at `reached` must not be made again.

        policy: the call's own policy; None: that of the actor.
        """
        if not (policy or RetryPolicy.of(reached.endpoint.metadata)).allows(method, repeated):
            raise self.interrupted(method) from error

    def _queued(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: RetryPolicy | None,
        reached: ReachedActor | None,
        lost: ConnectionError,
    ) -> ActorFuture[Any]:
        """Queue a call that was `lost` at `reached`, and return its future. The arguments are copied now."""
        try:
            request = packed_call(self.name, method, args, kwargs, by_reference=self._by_reference)
        except Exception as error:  # pickling may run any code of the user
            raise unpicklable_arguments(method, args, kwargs, error) from error
        return ActorFuture(UnsentCall(lost), RetryableCall(self, request, policy, reached).send, self._queue)

    def _reach_in_turn(self, since: float) -> ReachedActor:
        """Connect to an actor. If all calls go to one actor, first wait until the queued calls have been sent."""
        reached = self.connected() if self._queue.idle or not self.one_actor else None
        if reached is not None:
            return reached
        if not self.one_actor:
            with self._queue.waiters:
                return self.reach(since)
        coming: Future[ReachedActor] = Future()

        def reach() -> None:
            try:
                coming.set_result(self.reach(since))
            except BaseException as error:
                coming.set_exception(error)

        self._queue.put(reach)
        with self._queue.waiters:
            return coming.result()


def died_during_call(whose: str, method: str) -> CallInterrupted:
    """The error for a call to an actor that died. whose: the actor, as messages name it."""
    remedy = "make the call again if that does no harm, mark the method idempotent, or set max_task_retries"
    return CallInterrupted(f"{whose} died while {method} may have been running; {remedy}")


_NOT_CONNECTED = ConnectionLost("no actor is known yet", started=False)
_END: Any = object()


class RetryableCall:
    """A call with all that is needed to make it again.

    Args:
        reached: the actor that it was sent to, or could not be sent to; None if it was not tried yet.
    """

    __slots__ = ("_caller", "_policy", "_reached", "_repeated", "_request")

    def __init__(
        self, caller: ActorCaller, request: Request, policy: RetryPolicy | None, reached: ReachedActor | None
    ) -> None:
        self._caller = caller
        self._request = request
        self._policy = policy
        self._reached = reached
        self._repeated = 0

    def send(self, error: ConnectionError, since: float) -> ClientCall:
        """Make the call again. Raises the error that the call's future is to raise.

        Args:
            error: the error by which the call was lost.
            since: time of the loss, on the clock of `time.monotonic`.
        """
        caller, sent_to = self._caller, self._reached
        if sent_to is not None:
            caller.mark_lost(sent_to, error)
        begun_at = sent_to if may_have_started(error) else None
        if begun_at is not None and not caller.one_actor:  # no other actor knows the call: decide before the wait
            caller.check_repeat(self._request.method, self._policy, begun_at, error, self._repeated)
        while True:
            reached = self._reached = caller.reach(since)
            call_id = NEW_CALL if begun_at is None else self._id_at(reached, begun_at, error)
            try:
                call = reached.channel.resend(structs.replace(self._request, id=call_id))
            except LOST_ERRORS as failure:  # the actor was lost after it was reached
                caller.mark_lost(reached, failure)
                continue
            self._repeated += begun_at is not None and call_id is NEW_CALL
            return call

    def _id_at(self, reached: ReachedActor, begun_at: ReachedActor, error: ConnectionError) -> CallId:
        """The id for making a call again that may have begun: its own id if `reached` knows it, else a new one.

        Raises:
            CallInterrupted: the call must not be made again.
        """
        same_server = begun_at.endpoint.target.identity == reached.endpoint.target.identity != ""
        known = same_server or (self._policy or RetryPolicy.of(begun_at.endpoint.metadata)).durable
        if known and isinstance(error, ConnectionLost) and error.call is not None:
            return CallId(*error.call)
        self._caller.check_repeat(self._request.method, self._policy, begun_at, error, self._repeated)
        return NEW_CALL


class ActorMethod(Generic[P, R]):
    """A method of an actor, or of the actors of a pool.

    All ways to call it raise the method's own exceptions, with the remote traceback as their cause. A call waits until
    an actor is up, follows the actor's restarts, and never runs twice in one process. A call that may have begun in a
    process that died is made again only if one of these holds: the method is `idempotent`, the actor is durable, its
    `max_task_retries` are not used up, or the call was made by `pool.call(idempotent=True)`.

    Raises:
        ActorUnavailableError: the actor of a handle has ended for good.
        ActorNotFoundError: a pool has had no actor for the resolver's `patience`.
        CallInterrupted: the actor's process died while the call may have been running.
    """

    __slots__ = ("_caller", "_name", "_policy")

    def __init__(self, caller: Callable[[], MethodCaller], name: str, policy: RetryPolicy | None = None) -> None:
        self._caller = caller
        self._name = name
        self._policy = policy

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call and wait for the result without a time limit. Use `remote` and `result(timeout)` for a limit.

        Arguments are pickled, so the actor gets copies. Calls of one thread to one actor run in the order of the calls.
        """
        result: R = self._caller().call(self._name, args, kwargs, self._policy)
        return result

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ActorFuture[R]:
        """Start a call, and return its future without a wait for the result or the actor. Only pickling may raise here.

            futures = [handle.score.remote(batch) for batch in batches]
            scores = [future.result() for future in futures]

        The arguments are copied before this returns. Calls of one thread to one actor run in the order of the calls.
        """
        return self._caller().start(self._name, args, kwargs, self._policy)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> ActorFuture[R]:
        """The same as `remote`. Every call goes on if its connection breaks, and its result is asked for again."""
        return self._caller().start(self._name, args, kwargs, self._policy)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Items[Any]:
        """Call a generator and iterate over the items that it yields, as they come.

            for token in handle.generate.stream(prompt):  # in coroutines: async for
                print(token, end="")

        The generator waits while the consumer is slow, and is closed when the consumer stops. If its process dies
        meanwhile, the iteration raises CallInterrupted, because the values cannot be yielded again.
        """
        return ThreadItems(self._caller().stream(self._name, args, kwargs, self._policy))

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._caller().name!r}>"


def checked_method(owner: object, name: str) -> str:
    """Return the name of an actor's method. Raises AttributeError if it begins with an underscore."""
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    return name
