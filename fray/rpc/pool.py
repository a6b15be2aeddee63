"""The actors of one name, called in turn or all at once.

A call that is known not to have started goes to another actor; one that may have started is not made twice unless the
caller said that it does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fray.cluster.endpoint import ActorEndpoint, ActorId
from fray.errors import ActorNotFoundError, CallInterrupted
from fray.rpc.balancer import Balancer
from fray.rpc.future import (
    LOST_ERRORS,
    ActorFuture,
    RetryQueue,
    UnsentCall,
    is_lost,
)
from fray_agents.rpc import ClientCall
from fray_agents.rpc.errors import ConnectionLost
from fray_agents.rpc.wire.messages import NEW_CALL, Request, packed_call

if TYPE_CHECKING:
    from fray.rpc.resolver import Resolver

T = TypeVar("T")
R = TypeVar("R")


class ActorPool(Generic[T]):
    """The actors of a name; it is a handle too: `pool.f(x)` is `pool.call().f(x)`.

    Made by a resolver. Pickles as the resolver and the name. Methods named like those below are reached by `call()`.
    """

    def __init__(self, resolver: Resolver, name: str, only: ActorId | None = None) -> None:
        self._resolver = resolver
        self._name = name
        self._only = only
        self._members = Balancer(name, self._find)
        self._lane = RetryQueue()

    @property
    def size(self) -> int:
        """How many actors there are now; looks them up."""
        return len(self._members.look())

    @property
    def endpoints(self) -> list[ActorEndpoint]:
        """Where the actors are now; looks them up."""
        return list(self._members.look())

    @property
    def actor_id(self) -> ActorId:
        """That of the actor, of several of the first one; looks it up. Raises ActorNotFoundError if there is none."""
        return self._first().actor_id

    @property
    def address(self) -> str:
        """ "host:port" of that actor; looks it up. Raises ActorNotFoundError if there is none."""
        return self._first().address

    def wait_for_size(self, min_size: int, timeout: float = 60.0) -> None:
        """Block until there are at least so many actors.

        Raises:
            TimeoutError: there are fewer after `timeout` seconds.
        """
        self._members.await_size(min_size, time.monotonic() + timeout)

    def call(self, idempotent: bool = False) -> T:
        """A handle whose calls go to one actor each, in turn.

        Args:
            idempotent: running a call twice does no harm: one whose actor was lost is made again at another even if it
                may have started. Otherwise that raises `CallInterrupted`.
        """
        return cast(T, PoolHandle(self, idempotent))

    def broadcast(self) -> BroadcastHandle[T]:
        """A handle whose calls go to all actors that there are at that time; looks them up."""
        return BroadcastHandle(self)

    def __getattr__(self, method: str) -> PoolMethod:
        return PoolMethod(self, _public(method), idempotent=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorPool, (self._resolver, self._name, self._only)

    def __repr__(self) -> str:
        return f"ActorPool({self._name!r})"

    def _first(self) -> ActorEndpoint:
        found = self._members.look()
        if not found:
            raise ActorNotFoundError(f"there is no actor {self._name} now; wait_for_size waits for one")
        return found[0]

    def _find(self) -> list[ActorEndpoint]:
        found = self._resolver.find(self._name)
        return [endpoint for endpoint in found if self._only in (None, endpoint.actor_id)]

    def _deliver(self, send: Callable[[ActorEndpoint], R], idempotent: bool, since: float) -> R:
        """`send` to one actor after another until a call is made; raises once that may have happened."""
        deadline = since + self._resolver.patience
        lost: BaseException | None = None
        while True:
            try:
                endpoint = self._members.pick(deadline)
            except ConnectionError as none_left:
                raise none_left from lost
            try:
                return send(endpoint)
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                lost = self._movable(error, endpoint, idempotent)

    def _movable(self, error: ConnectionError, endpoint: ActorEndpoint, idempotent: bool) -> ConnectionError:
        """The error, if the call may be made elsewhere; drops the endpoint. Raises what the caller shall see."""
        self._members.fail(endpoint)
        started = error.started if isinstance(error, ConnectionLost) else False
        if started is False or idempotent:
            return error
        raise CallInterrupted(
            f"actor {self._name} at {endpoint.address} was lost while the call may have been running, so it was not "
            "made again; call it by pool.call(idempotent=True) if running it twice does no harm"
        ) from error


class PoolHandle:
    """Any attribute is a method of the actors; see `ActorPool.call`."""

    def __init__(self, pool: ActorPool[Any], idempotent: bool) -> None:
        self._pool = pool
        self._idempotent = idempotent

    def __getattr__(self, method: str) -> PoolMethod:
        name = _public(method)
        return PoolMethod(self._pool, name, self._idempotent)


class PoolMethod:
    """A method of the actors of a pool.

    Calls raise what the method raised, `ActorNotFoundError` if no actor came up for a minute, and `CallInterrupted` if
    the actor was lost and the call may have run.
    """

    __slots__ = ("_idempotent", "_method", "_pool")

    def __init__(self, pool: ActorPool[Any], method: str, idempotent: bool) -> None:
        self._pool = pool
        self._method = method
        self._idempotent = idempotent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and wait for what it returns."""
        pool, method = self._pool, self._method
        if not pool._lane.idle:
            return self.remote(*args, **kwargs).result()

        def send(endpoint: ActorEndpoint) -> Any:
            return pool._resolver.connect(endpoint).call(endpoint.name, method, args, kwargs)

        return pool._deliver(send, self._idempotent, time.monotonic())

    def remote(self, *args: Any, **kwargs: Any) -> ActorFuture[Any]:
        """Call it without waiting, neither for the outcome nor, if there is none, for an actor."""
        pool = self._pool
        endpoint = pool._members.at_hand() if pool._lane.idle else None
        waits: ConnectionError = _NO_ENDPOINT_KNOWN
        if endpoint is not None:
            try:
                call = pool._resolver.connect(endpoint).start(pool._name, self._method, args, kwargs)
            except LOST_ERRORS as error:
                waits = error
            else:
                return ActorFuture(call, _PoolCall(pool, call.request, endpoint, self._idempotent).run, pool._lane)
        request = packed_call(pool._name, self._method, args, kwargs, by_reference=True)
        return ActorFuture(UnsentCall(waits), _PoolCall(pool, request, endpoint, self._idempotent).run, pool._lane)

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """What a generator yields, as it comes; it waits when it is ahead of who iterates. Called at the first step."""
        pool, method = self._pool, self._method

        def begin(endpoint: ActorEndpoint) -> tuple[ActorEndpoint, Iterator[Any], Any]:
            items = pool._resolver.connect(endpoint).stream(endpoint.name, method, args, kwargs)
            return endpoint, items, next(items, _END)

        endpoint, items, item = pool._deliver(begin, self._idempotent, time.monotonic())
        try:
            while item is not _END:
                yield item
                item = next(items, _END)
        except LOST_ERRORS as error:
            if is_lost(error):
                pool._movable(error, endpoint, idempotent=False)
            raise


_END: Any = object()


_NO_ENDPOINT_KNOWN = ConnectionLost("no actor is known yet", started=False)


class _PoolCall:
    """A call to be made at some actor of a pool, after it could not be made at `endpoint`."""

    __slots__ = ("_endpoint", "_idempotent", "_pool", "_request")

    def __init__(
        self, pool: ActorPool[Any], request: Request, endpoint: ActorEndpoint | None, idempotent: bool
    ) -> None:
        self._pool = pool
        self._request = request._replace(id=NEW_CALL)
        self._endpoint = endpoint
        self._idempotent = idempotent

    def run(self, error: ConnectionError, since: float) -> ClientCall:
        if self._endpoint is not None:
            self._pool._movable(error, self._endpoint, self._idempotent)
        return self._pool._deliver(self._send, self._idempotent, since)

    def _send(self, endpoint: ActorEndpoint) -> ClientCall:
        self._endpoint = endpoint
        return self._pool._resolver.connect(endpoint).resend(self._request)


class BroadcastHandle(Generic[T]):
    """Any attribute is a method, called on all actors of a pool at once; see `ActorPool.broadcast`."""

    def __init__(self, pool: ActorPool[T]) -> None:
        self._pool = pool

    def __getattr__(self, method: str) -> Callable[..., list[BroadcastFuture]]:
        name = _public(method)

        def call_all(*args: Any, **kwargs: Any) -> list[BroadcastFuture]:
            return [BroadcastFuture(self._pool, endpoint, name, args, kwargs) for endpoint in self._pool.endpoints]

        return call_all


class BroadcastFuture:
    """What one actor answered to a broadcast; what it raised is a result too.

    Attributes:
        endpoint: the actor.
    """

    def __init__(
        self, pool: ActorPool[Any], endpoint: ActorEndpoint, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.endpoint = endpoint
        self._members = pool._members
        self._unsent: BaseException | None = None
        try:
            self._call = pool._resolver.connect(endpoint).start(endpoint.name, method, args, kwargs)
        except LOST_ERRORS as error:
            self._unsent = error
            self._members.fail(endpoint)
        else:
            self._call.add_done_callback(self._settled)

    def result(self, timeout: float | None = None) -> Any:
        """What the method returned, or the exception: returned, not raised.

        Raises:
            TimeoutError: there is no result after `timeout` seconds. The call goes on; ask again.
        """
        if self._unsent is not None:
            return self._unsent
        try:
            return self._call.result(timeout)
        except Exception as error:
            if not self._call.done():
                raise
            return self._call.exception() or error

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._unsent is not None or self._call.done()

    def exception(self) -> BaseException | None:
        """What the method raised, or why the actor could not be called; None if it succeeded or is not done."""
        return self._unsent or (self._call.exception() if self._call.done() else None)

    def _settled(self, call: ClientCall) -> None:
        if is_lost(call.exception()):
            self._members.fail(self.endpoint)


def _public(method: str) -> str:
    if method.startswith("_"):
        raise AttributeError(f"{method!r}: names that begin with an underscore are not methods of actors")
    return method
