"""Actors on Iris, each with a job of its own: their endpoints, the calls, handles and groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from fray.actor.group import PolledActorGroup
from fray.actor.handle import ActorHandle
from fray.backends.iris.cluster import IrisCluster
from fray.cluster.job_handle import JobHandle
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput, JobFailed
from fray.rpc.calling import MethodCaller, RetryPolicy, died_during_call
from fray.rpc.future import ActorFuture, RetryQueue
from fray.types import JobStatus
from fray_coordinator.backoff import backoff


@dataclass(frozen=True)
class IrisActorAddress:
    """The address of one actor.

    Attributes:
        root: the controller's root, as the creator of the actor wrote it.
        job: the id of the job that serves the actor.
        name: the actor's name; its endpoint has it too, within the job's namespace.
        policy: which calls are made again if the actor's process died after they may have begun.
        max_concurrency: number of calls that the actor runs at once.
        index: the actor's number in its group; each actor of a group has its own endpoint.
    """

    root: str
    job: str
    name: str
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_concurrency: int = 1
    index: int = 0

    @property
    def endpoint(self) -> str:
        return f"{self.name}-{self.index}"

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.job})"


T = TypeVar("T")

_REFUSED = "(Connect)"
"""Part of the error of Iris's HTTP client if it could not open a connection, so that nothing was sent."""

_PAUSES = (0.1, 2.0)
"""First and longest pause in seconds between two tries to reach an actor. Each asks the controller for its endpoint."""


class IrisCaller(MethodCaller):
    """Makes the calls of one handle, each in a thread that waits for its reply.

    It has as many threads as the actor runs calls at once, so that calls begin in the order in which they were made.
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
        remedy = "Iris does not support generators; return a list, or one value per call"
        raise InvalidInput("method", method, remedy)

    def end(self, why: str) -> None:
        """Record that the actor was asked to end: from now on calls of this handle raise ActorUnavailableError."""
        self._ended = self._ended or why

    def _deliver(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], policy: RetryPolicy) -> Any:
        """Make a call, and try again while the actor's job can still serve it and the policy allows another try."""
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
                        raise died_during_call(str(self._address), f"{method}()") from error
                    repeated += 1
                self._reached = None
                self._check_job(error)
            time.sleep(next(pauses))

    def _check_job(self, error: Exception) -> None:
        """Raise ActorUnavailableError if the actor's job has ended."""
        job = self._cluster.poll(self._address.job)
        if job.status.finished():
            reason = f": {job.error_message}" if job.error_message else ""
            raise ActorUnavailableError(f"{self._address} has ended, {job.status}{reason}") from error

    def _client(self) -> Any:
        """Iris's client for the actor. It makes one attempt per call, so that we know whether the call was sent."""
        from iris.actor.client import ActorClient
        from iris.cluster.types import JobName

        reached = self._reached
        if reached is None:
            resolver = self._cluster.iris.resolver_for_job(JobName.from_string(self._address.job))
            reached = self._reached = ActorClient(resolver, self._address.endpoint, max_call_attempts=1)
        return reached


class ThreadCall:
    """A call whose reply a thread waits for. It is a `SentCall`."""

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
        """Do nothing: waiters are woken as soon as the reply is there."""


def _never_again(error: ConnectionError, since: float) -> NoReturn:
    """Raise the error: `IrisCaller` has already made the call again if that was allowed."""
    raise error


class IrisActorHandle(ActorHandle[T]):
    """A handle of an actor on Iris. It pickles as its address, and works in every job of the controller."""

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


_PAUSE = 0.2
"""Seconds between two polls of a group's endpoints during a wait: short against the start of a process."""


class IrisActorGroup(PolledActorGroup[T]):
    """A group of the actors "<name>-0", "<name>-1" ... on Iris. Pickles as their addresses."""

    def __init__(self, cluster: IrisCluster, name: str, addresses: list[IrisActorAddress]) -> None:
        super().__init__(name, [IrisActorHandle[T](cluster, address) for address in addresses])
        self._cluster = cluster
        self._addresses = addresses

    @property
    def jobs(self) -> list[JobHandle]:
        return [JobHandle(self._cluster, address.job) for address in self._addresses]

    def statuses(self) -> list[JobStatus]:
        return [job.status() for job in self.jobs]

    def _ready(self) -> list[int]:
        return [number for number, address in enumerate(self._addresses) if self._serves(address)]

    def _serves(self, address: IrisActorAddress) -> bool:
        from iris.cluster.types import JobName

        resolver = self._cluster.iris.resolver_for_job(JobName.from_string(address.job))
        return not resolver.resolve(address.endpoint).is_empty

    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        while True:
            ready.clear()
            ready.update(self._ready())
            if len(ready) >= wanted:
                return True
            self._check_living(wanted)
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_PAUSE, left))

    def _check_living(self, wanted: int) -> None:
        """Raise ActorUnavailableError if so many actors have ended that `wanted` can no longer be reached."""
        infos = [self._cluster.poll(address.job) for address in self._addresses]
        living = [info for info in infos if not info.status.finished()]
        if len(living) < wanted:
            ended = next(info for info in infos if info.status.finished())
            raise ActorUnavailableError(self._shortage(len(living), wanted, JobFailed.of(ended)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded_group, (self._name, self._addresses)

    def _shown(self) -> ShownTable:
        infos = [self._cluster.poll(address.job) for address in self._addresses[:MAX_ROWS]]
        rows = [(info.name, info.status.value, info.error_message or "") for info in infos]
        title = f"{len(self._addresses)} actors of {self._name}"
        return ShownTable(title, rows, ("actor", "status", "reason"), len(self._addresses) - len(rows))


def _loaded_group(name: str, addresses: list[IrisActorAddress]) -> IrisActorGroup[Any]:
    return IrisActorGroup(IrisCluster(addresses[0].root), name, addresses)
