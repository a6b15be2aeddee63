"""Handles of actors on Iris, and the calls that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from fray.actor.handle import ActorHandle
from fray.cluster.iris.cluster import IrisCluster
from fray.display import ShownTable
from fray.errors import ActorUnavailableError, CallInterrupted, InvalidInput
from fray.iris_backend.actor_address import IrisActorAddress
from fray.rpc.calling import MethodCaller, RetryPolicy
from fray.rpc.future import ActorFuture, RetryQueue
from fray.types import JobStatus
from fray_coordinator.backoff import backoff

T = TypeVar("T")

_REFUSED = "(Connect)"
"""What Iris's HTTP client says of a connection that it could not open: nothing was sent."""

_PAUSES = (0.1, 2.0)
"""Seconds between two attempts to reach an actor, from the first on: each asks the controller for its endpoint."""


class IrisCaller(MethodCaller):
    """Makes the calls of one handle, each in a thread that waits for its reply.

    There are as many threads as the actor runs calls at once, so calls begin in the order in which they were made.
    """

    def __init__(self, cluster: IrisCluster, address: IrisActorAddress) -> None:
        self.name = address.name
        self._cluster = cluster
        self._address = address
        self._ended: str | None = None
        self._threads = ThreadPoolExecutor(address.max_concurrency, thread_name_prefix="fray-call")
        self._queue = RetryQueue(lambda: f"{address} cannot be called yet")
        self._reached: Any = None

    def start(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> ActorFuture[Any]:
        call = self._threads.submit(self._deliver, method, args, kwargs, policy or self._address.policy)
        return ActorFuture(ThreadCall(call), _never_again, self._queue)

    def stream(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy | None = None
    ) -> Generator[Any, None, None]:
        raise InvalidInput("method", method, "Iris carries no generators; return a list, or values call by call")

    def end(self, why: str) -> None:
        """Note that the actor was asked to end: calls of this handle raise ActorUnavailableError from now on."""
        self._ended = self._ended or why

    def _deliver(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy) -> Any:
        """Call, and go on for as long as the actor's job may still serve it, and the call may be made again."""
        from connectrpc.code import Code
        from connectrpc.errors import ConnectError

        repeated, pauses = 0, backoff(*_PAUSES)
        while True:
            if self._ended is not None:
                raise ActorUnavailableError(f"{self._address} {self._ended}")
            client, sent = self._client(), False
            try:
                client.rpc_client()
                sent = True
                return client.call(method, args, kwargs)
            except ConnectError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
                if sent and _REFUSED not in str(error):
                    if not policy.allows(method, repeated):
                        raise CallInterrupted(f"{self._address} died while {method}() may have been running") from error
                    repeated += 1
                self._reached = None
                self._check_job(error)
            time.sleep(next(pauses))

    def _check_job(self, error: Exception) -> None:
        """Raise ActorUnavailableError, if the actor's job has ended."""
        job = self._cluster.poll(self._address.job)
        if job.status.finished():
            reason = f": {job.error_message}" if job.error_message else ""
            raise ActorUnavailableError(f"{self._address} has ended, {job.status}{reason}") from error

    def _client(self) -> Any:
        """Iris's client of the actor as it can be reached now. It makes one attempt, so what was sent is known."""
        from iris.actor.client import ActorClient
        from iris.cluster.types import JobName

        reached = self._reached
        if reached is None:
            resolver = self._cluster.iris.resolver_for_job(JobName.from_string(self._address.job))
            reached = self._reached = ActorClient(resolver, self._address.endpoint, max_call_attempts=1)
        return reached


class ThreadCall:
    """A call that a thread waits for: a `SentCall`."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Any:
        return self._future.result(timeout)

    def done(self) -> bool:
        return self._future.done()

    def exception(self) -> BaseException | None:
        return self._future.exception()

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        self._future.add_done_callback(lambda _: function(self))

    def hasten(self) -> None:
        """Nothing: whoever waits is told as soon as the reply is there."""


def _never_again(error: ConnectionError, since: float) -> NoReturn:
    """`IrisCaller` has made the call again where that was allowed."""
    raise error


class IrisActorHandle(ActorHandle[T]):
    """A handle of an actor on Iris. Pickles as its address, and works in every job of the controller."""

    def __init__(self, cluster: IrisCluster, address: IrisActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._own_caller = IrisCaller(cluster, address)

    def _caller(self) -> IrisCaller:
        return self._own_caller

    def _shut_down(self, why: str) -> None:
        self._own_caller.end(why)
        self._cluster.terminate(self._address.job)

    def _status(self) -> JobStatus:
        return self._cluster.poll(self._address.job).status

    def _identity(self) -> IrisActorAddress:
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._address,)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.job!r})"

    def _shown(self) -> ShownTable:
        return ShownTable.of(str(self._address), {"status": self._status().value})


def _loaded(address: IrisActorAddress) -> IrisActorHandle[Any]:
    return IrisActorHandle(IrisCluster(address.root), address)
