"""Pools, the actors of one name, called in turn or all at once; and the interface of resolvers, which make them.

A call that is known not to have started goes to another actor. One that may have started is not made twice, unless its
caller said that this does no harm; see `calling`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from fray.cluster.actors import ActorEndpoint, ActorId
from fray.errors import ActorNotFoundError, CallInterrupted
from fray.rpc.balancer import Balancer
from fray.rpc.calling import ActorCaller, ActorMethod, ReachedActor, RetryPolicy, checked_method
from fray.sync import in_thread, running_future
from fray_agents.rpc import Channel, ClientCall
from fray_agents.rpc.errors import LOST_ERRORS, is_lost

T = TypeVar("T")

NEVER_TWICE = RetryPolicy()
IDEMPOTENT = RetryPolicy(retries=-1)


class Resolver(ABC):
    """Gives pools of the actors that have a name; a subclass says where they are found, by `find` and `connect`.

    Attributes:
        patience: seconds that a call waits for an actor to come up.
    """

    patience = 60.0

    @abstractmethod
    def find(self, name: str) -> Sequence[ActorEndpoint]:
        """The actors that have the name now, perhaps none. Raises InvalidInput: it cannot be a name."""

    @abstractmethod
    def connect(self, endpoint: ActorEndpoint) -> Channel:
        """A channel to an actor's server, which all callers in this process share.

        Raises:
            ConnectionLost, NotAuthentic: the server cannot be reached.
        """

    def lookup(self, name: str) -> ActorPool[Any]:
        """A pool of the actors of that name, even if there is none yet; they are looked up when first needed.

            models = ClusterResolver(current_cluster()).lookup("model")
            answers = models.call(idempotent=True).predict(prompts)

        A call waits for an actor to come up for as long as the resolver is patient, a minute in a cluster.
        """
        return ActorPool(self, name)

    def lookup_all(self, name: str) -> list[ActorPool[Any]]:
        """A pool of each actor alone that has the name now; it follows its actor through restarts."""
        return [ActorPool(self, name, endpoint.actor_id) for endpoint in self.find(name)]

    def wait_for_actor(self, name: str, timeout: float = 60.0) -> ActorPool[Any]:
        """A pool of the actors of that name, once there is one.

        Raises:
            TimeoutError: there is none after `timeout` seconds.
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
    """Makes the calls of one pool, each at the next actor in turn.

    Args:
        only: the one actor that is called; None: all of that name.
    """

    def __init__(self, resolver: Resolver, name: str, only: ActorId | None) -> None:
        super().__init__(name, one_actor=False, by_reference=True)
        self._resolver = resolver
        self._only = only
        self.balancer = Balancer(name, self._find)

    def at_hand(self) -> ReachedActor | None:
        endpoint = self.balancer.at_hand()
        return self._connected(endpoint) if endpoint is not None else None

    def reach(self, since: float) -> ReachedActor:
        deadline = since + self._resolver.patience
        while (reached := self._connected(self.balancer.pick(deadline))) is None:
            pass
        return reached

    def lose(self, reached: ReachedActor, error: ConnectionError) -> None:
        self.balancer.eject(reached.endpoint, error)

    def interrupted(self, method: str) -> CallInterrupted:
        return CallInterrupted(
            f"actor {self.name} was lost while {method}() may have been running, so it was not made again; call it by "
            "pool.call(idempotent=True) if running it twice does no harm"
        )

    def broadcast(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[BroadcastFuture]:
        return [self._send_to(endpoint, method, args, kwargs) for endpoint in self.balancer.look()]

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

    def _connected(self, endpoint: ActorEndpoint) -> ReachedActor | None:
        try:
            return ReachedActor(self._resolver.connect(endpoint), endpoint)
        except LOST_ERRORS as error:
            self.balancer.eject(endpoint, error)
            return None


class ActorPool(Generic[T]):
    """The actors of a name. It is a handle too: `pool.f(x)` is `pool.call().f(x)`.

    Made by a resolver. Pickles as the resolver and the name. Methods of actors that are named like those below are
    reached by `call()`.
    """

    def __init__(self, resolver: Resolver, name: str, only: ActorId | None = None) -> None:
        self._made_of = (resolver, name, only)
        self._calls = PoolCaller(resolver, name, only)

    @property
    def size(self) -> int:
        """How many actors of the name there are now; each use looks them up in the storage."""
        return len(self._calls.balancer.look())

    @property
    def endpoints(self) -> list[ActorEndpoint]:
        """The endpoints of the actors that there are now; each use looks them up in the storage."""
        return list(self._calls.balancer.look())

    @property
    def actor_id(self) -> ActorId:
        """The id of the actor, or of the first of several; looks it up.

        Raises:
            ActorNotFoundError: there is none.
        """
        return self._first().actor_id

    @property
    def address(self) -> str:
        """The "host:port" of the actor, or of the first of several; looks it up.

        Raises:
            ActorNotFoundError: there is none.
        """
        return self._first().address

    def wait_for_size(self, min_size: int, timeout: float = 60.0) -> None:
        """Block until there are at least `min_size` actors; looks their name up at growing intervals.

        Args:
            timeout: seconds to wait.

        Raises:
            TimeoutError: there are fewer by then; the message says how many.
        """
        self._calls.balancer.wait_for_size(min_size, time.monotonic() + timeout)

    async def wait_for_size_async(self, min_size: int, timeout: float = 60.0) -> None:
        """`wait_for_size`, for coroutines."""
        await in_thread(lambda: self.wait_for_size(min_size, timeout))

    def call(self, idempotent: bool = False) -> T:
        """A handle whose calls go to one actor each, in turn.

        Args:
            idempotent: running a call twice does no harm. A call whose actor was lost is made again at another one even
                if it may have started; otherwise that raises `CallInterrupted`.
        """
        return cast(T, PoolHandle(self._caller, IDEMPOTENT if idempotent else NEVER_TWICE))

    def broadcast(self) -> BroadcastHandle[T]:
        """A handle whose calls go to all actors that there are when they are made; each call looks them up.

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
        found = self._calls.balancer.look()
        if not found:
            raise ActorNotFoundError(f"there is no actor {self._calls.name} now; wait_for_size waits for one")
        return found[0]


class PoolHandle:
    """A handle of a pool: any attribute is a method of the actors; see `ActorPool.call`."""

    def __init__(self, caller: Callable[[], PoolCaller], policy: RetryPolicy) -> None:
        self._caller = caller
        self._policy = policy

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        checked_method(self, name)  # before `_caller` is looked for, which an object that is unpickled has not yet
        return ActorMethod(self._caller, name, self._policy)


class BroadcastHandle(Generic[T]):
    """A handle of all actors of a pool: any attribute is a method, called on all of them; see `ActorPool.broadcast`."""

    def __init__(self, caller: Callable[[], PoolCaller]) -> None:
        self._caller = caller

    def __getattr__(self, method: str) -> Callable[..., list[BroadcastFuture]]:
        name = checked_method(self, method)
        return lambda *args, **kwargs: self._caller().broadcast(name, args, kwargs)


class BroadcastFuture:
    """The future of one actor's answer to a broadcast, which coroutines may await; what it raised is a result too.

    Attributes:
        endpoint: the actor.
    """

    def __init__(self, endpoint: ActorEndpoint, call: ClientCall | ConnectionError) -> None:
        self.endpoint = endpoint
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        """The value that the method returned, or the exception: returned, not raised. Waits for it.

        Raises:
            TimeoutError: there is no result after `timeout` seconds. The call goes on; ask again.
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
        """Whether `result` returns at once."""
        return isinstance(self._call, ConnectionError) or self._call.done()

    def exception(self) -> BaseException | None:
        """The exception that the method raised, or why it could not be called; None: it succeeded, or is not done."""
        if isinstance(self._call, ConnectionError):
            return self._call
        return self._call.exception() if self._call.done() else None

    def __await__(self) -> Generator[Any, None, Any]:
        if not isinstance(self._call, ConnectionError):
            ended = running_future()
            self._call.add_done_callback(lambda _: ended.set_result(None))
            yield from asyncio.wrap_future(ended)
        return self.result()
