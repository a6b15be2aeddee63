"""Pools of the actors of one name, which are called in turn or all at once, and the interface of resolvers.

If a call is lost and is known not to have started, it goes to another actor. If it may have started, it is made again
only if its caller said that this does no harm; see `calling`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from fray.cluster.actor_metadata import ActorEndpoint, ActorId
from fray.errors import ActorNotFoundError, CallInterrupted
from fray.rpc.balancer import Balancer
from fray.rpc.calling import ActorCaller, ActorMethod, ReachedActor, RetryPolicy, checked_method
from fray.rpc.future import until_done
from fray.sync import in_thread
from fray_rpc import Channel, ClientCall
from fray_rpc.errors import LOST_ERRORS, is_lost

T = TypeVar("T")

NEVER_TWICE = RetryPolicy()
IDEMPOTENT = RetryPolicy(retries=-1)


class Resolver(ABC):
    """Makes pools of the actors of a name. Subclasses define where the actors are found, by `find` and `connect`.

    Attributes:
        patience: seconds that a call waits for an actor to come up.
    """

    patience = 60.0

    @abstractmethod
    def find(self, name: str) -> Sequence[ActorEndpoint]:
        """The endpoints of the actors that have the name now. Raises InvalidInput if the name is not valid."""

    @abstractmethod
    def connect(self, endpoint: ActorEndpoint) -> Channel:
        """Connect to an actor's server. Returns a channel that all callers in this process share.

        Raises:
            ConnectionLost, NotAuthentic: the server cannot be reached.
        """

    def lookup(self, name: str) -> ActorPool[Any]:
        """Make a pool of the actors of a name. It makes no request: the actors are looked up at the first call.

            models = ClusterResolver(current_cluster()).lookup("model")
            answers = models.call(idempotent=True).predict(prompts)

        A call waits for an actor to come up for the resolver's `patience`, which is a minute in a cluster.
        """
        return ActorPool(self, name)

    def lookup_all(self, name: str) -> list[ActorPool[Any]]:
        """Make a pool for each single actor that has the name now. Each pool follows its actor through restarts."""
        return [ActorPool(self, name, endpoint.actor_id) for endpoint in self.find(name)]

    def wait_for_actor(self, name: str, timeout: float = 60.0) -> ActorPool[Any]:
        """Wait until there is an actor of a name, and return a pool of the actors of that name.

        Raises:
            TimeoutError: there is no actor after `timeout` seconds.
        """
        pool = self.lookup(name)
        pool.wait_for_size(1, timeout)
        return pool

    async def wait_for_actor_async(self, name: str, timeout: float = 60.0) -> ActorPool[Any]:
        """`wait_for_actor`, for coroutines."""
        pool = self.lookup(name)
        await pool.wait_for_size_async(1, timeout)
        return pool


class PoolCaller(ActorCaller):
    """Makes the calls of one pool, each to the next actor in turn.

    Args:
        only: the id of the only actor to call; None: all actors of the name.
    """

    def __init__(self, resolver: Resolver, name: str, only: ActorId | None) -> None:
        super().__init__(name, one_actor=False, by_reference=True)
        self._resolver = resolver
        self._only = only
        self.balancer = Balancer(name, self._find, self._queue.waiters)

    def connected(self) -> ReachedActor | None:
        endpoint = self.balancer.pick_known()
        return self._connect_to(endpoint) if endpoint is not None else None

    def reach(self, since: float) -> ReachedActor:
        deadline = since + self._resolver.patience
        while (reached := self._connect_to(self.balancer.pick(deadline))) is None:
            pass
        return reached

    def mark_lost(self, reached: ReachedActor, error: ConnectionError) -> None:
        self.balancer.eject(reached.endpoint, error)

    def interrupted(self, method: str) -> CallInterrupted:
        return CallInterrupted(
            f"actor {self.name} was lost while {method}() may have been running, so it was not made again; call it by "
            "pool.call(idempotent=True) if running it twice does no harm"
        )

    def broadcast(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[BroadcastFuture]:
        return [self._send_to(endpoint, method, args, kwargs) for endpoint in self.balancer.refresh()]

    def _send_to(
        self, endpoint: ActorEndpoint, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BroadcastFuture:
        try:
            call = self._resolver.connect(endpoint).start(endpoint.name, method, args, kwargs)
        except LOST_ERRORS as error:
            self.balancer.eject(endpoint, error)
            return BroadcastFuture(endpoint, error)
        call.add_done_callback(lambda call: self._eject_if_lost(endpoint, call.exception()))
        return BroadcastFuture(endpoint, call)

    def _eject_if_lost(self, endpoint: ActorEndpoint, error: BaseException | None) -> None:
        if error is not None and is_lost(error):
            self.balancer.eject(endpoint, error)

    def _find(self) -> list[ActorEndpoint]:
        found = self._resolver.find(self.name)
        return [endpoint for endpoint in found if self._only in (None, endpoint.actor_id)]

    def _connect_to(self, endpoint: ActorEndpoint) -> ReachedActor | None:
        try:
            return ReachedActor(self._resolver.connect(endpoint), endpoint)
        except LOST_ERRORS as error:
            self.balancer.eject(endpoint, error)
            return None


class ActorPool(Generic[T]):
    """The actors of a name. It is also a handle: `pool.f(x)` is the same as `pool.call().f(x)`.

    Resolvers create pools. A pool pickles as its resolver and name. If the actors have methods with the same names as
    the ones below, call them through `call()`.
    """

    def __init__(self, resolver: Resolver, name: str, only: ActorId | None = None) -> None:
        self._made_of = (resolver, name, only)
        self._calls = PoolCaller(resolver, name, only)

    @property
    def size(self) -> int:
        """The number of actors of the name now; each access looks them up in the storage."""
        return len(self._calls.balancer.refresh())

    @property
    def endpoints(self) -> list[ActorEndpoint]:
        """The endpoints of the actors of the name now; each access looks them up in the storage."""
        return list(self._calls.balancer.refresh())

    @property
    def actor_id(self) -> ActorId:
        """The id of the actor, or of the first of several; each access looks it up.

        Raises:
            ActorNotFoundError: there is no actor.
        """
        return self._first().actor_id

    @property
    def address(self) -> str:
        """The "host:port" of the actor, or of the first of several; each access looks it up.

        Raises:
            ActorNotFoundError: there is no actor.
        """
        return self._first().address

    def wait_for_size(self, min_size: int, timeout: float = 60.0) -> None:
        """Block until there are at least `min_size` actors. It looks up their name at growing intervals.

        Args:
            timeout: seconds to wait.

        Raises:
            TimeoutError: there are fewer in time; the message says how many.
        """
        self._calls.balancer.wait_for_size(min_size, time.monotonic() + timeout)

    async def wait_for_size_async(self, min_size: int, timeout: float = 60.0) -> None:
        """`wait_for_size`, for coroutines."""
        await in_thread(lambda: self.wait_for_size(min_size, timeout))

    def call(self, idempotent: bool = False) -> T:
        """A handle whose calls each go to one actor, in turn.

        Args:
            idempotent: True if running a call twice does no harm. A call whose actor was lost is then made again to
                another one, even if it may have started; otherwise it raises `CallInterrupted`.
        """
        return cast(T, PoolHandle(self._caller, IDEMPOTENT if idempotent else NEVER_TWICE))

    def broadcast(self) -> BroadcastHandle[T]:
        """A handle whose calls go to all actors of the name at the time of the call, which looks them up.

        A call returns a list of futures, one for each actor: `pool.broadcast().reload()`.
        """
        return BroadcastHandle(self._caller)

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        return ActorMethod(self._caller, checked_method(self, name), NEVER_TWICE)

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorPool, self._made_of

    def __repr__(self) -> str:
        return f"ActorPool({self._calls.name!r})"

    def _caller(self) -> PoolCaller:
        return self._calls

    def _first(self) -> ActorEndpoint:
        found = self._calls.balancer.refresh()
        if not found:
            raise ActorNotFoundError(f"there is no actor {self._calls.name} now; wait_for_size waits for one")
        return found[0]


class PoolHandle:
    """A handle of a pool: any attribute is a method of the actors; see `ActorPool.call`."""

    def __init__(self, caller: Callable[[], PoolCaller], policy: RetryPolicy) -> None:
        self._caller = caller
        self._policy = policy

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        checked_method(self, name)  # before the use of `_caller`, which an object that is being unpickled lacks
        return ActorMethod(self._caller, name, self._policy)


class BroadcastHandle(Generic[T]):
    """A handle that calls all actors of a pool: any attribute is a method of theirs; see `ActorPool.broadcast`."""

    def __init__(self, caller: Callable[[], PoolCaller]) -> None:
        self._caller = caller

    def __getattr__(self, method: str) -> Callable[..., list[BroadcastFuture]]:
        name = checked_method(self, method)
        return lambda *args, **kwargs: self._caller().broadcast(name, args, kwargs)


class BroadcastFuture:
    """The future of one actor's answer to a broadcast. Coroutines may await it. An exception is returned as a result.

    Attributes:
        endpoint: the actor's endpoint.
    """

    def __init__(self, endpoint: ActorEndpoint, call: ClientCall | ConnectionError) -> None:
        self.endpoint = endpoint
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer. Returns the method's value or its exception; the exception is not raised.

        Raises:
            TimeoutError: there is no result after `timeout` seconds. The call goes on, and can be asked for again.
        """
        if isinstance(self._call, ConnectionError):
            return self._call
        try:
            return self._call.result(timeout)
        except Exception as error:
            if not self._call.done():
                raise
            return self._call.exception() or error

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return isinstance(self._call, ConnectionError) or self._call.done()

    def exception(self) -> BaseException | None:
        """The exception of the method or of the failed call; None if the call succeeded or is not done."""
        if isinstance(self._call, ConnectionError):
            return self._call
        return self._call.exception() if self._call.done() else None

    def __await__(self) -> Generator[Any, None, Any]:
        if not isinstance(self._call, ConnectionError):
            yield from until_done(self._call).__await__()
        return self.result()
