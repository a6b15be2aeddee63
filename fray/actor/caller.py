"""Calls to one actor with a job of its own, through all its restarts.

While the actor is connected, calls go straight to its channel. Calls that are made before the actor is up, and calls
whose connection broke, wait in a queue; they are sent in their order as soon as the storage has the actor's endpoint. A
call that may have begun is sent to the same server again under the same call id, and the server returns the outcome of
the first run. It is sent to another server only if a second run does no harm; see `fray.rpc.calling`.
"""

import contextlib
import os
import threading
import time
from weakref import WeakValueDictionary

from fray.actor.address import ActorAddress, wait_for_endpoint
from fray.cluster.actors import ActorEndpoint
from fray.cluster.log_printer import post
from fray.cluster.storage import StorageCluster
from fray.errors import ActorUnavailableError, CallInterrupted
from fray.rpc.calling import ActorCaller, ReachedActor, died_during_call
from fray.rpc.resolver import ClusterResolver
from fray.wait_line import WaitLine
from fray_agents.rpc.errors import LOST_ERRORS
from fray_coordinator.backoff import exponential_wait
from fray_coordinator.core import Core
from fray_coordinator.protocol.naming import Rank, rank
from fray_layouts.records import EndpointRecord

_MIN_PAUSE, _MAX_PAUSE = 0.05, 2.0
"""First and longest pause in seconds before an endpoint that did not answer, although its attempt runs, is tried again.
Each try also reads from the storage whether the actor has moved."""


class HandleCaller(ActorCaller):
    """Makes this process's calls to one actor. `caller_of` creates it."""

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        super().__init__(address.name, one_actor=True, by_reference=cluster.in_threads)
        self.pid = os.getpid()
        self._cluster = cluster
        self._resolver = ClusterResolver(cluster, address.namespace)
        self._address = address
        self._lock = threading.Lock()
        self._reached: ReachedActor | None = None
        self._seen: Rank = (0, 0)
        self._failed = ""  # identity of the server that was connected to last
        self._failures = 0
        self._waiting_reason = ""
        self._ended: ActorUnavailableError | None = None

    def end(self, why: str) -> None:
        """Record that the actor was asked to end: from now on every call raises ActorUnavailableError at once."""
        self._ended = self._ended or ActorUnavailableError(f"{self._address} {why}")

    def connected(self) -> ReachedActor | None:
        return self._reached if self._ended is None else None

    def reach(self, since: float) -> ReachedActor:
        """Return a connection to the actor, and wait without a time limit until it serves calls.

        Raises:
            ActorUnavailableError: the actor has ended, or was asked to end.
        """
        while True:
            if self._ended is not None:
                raise type(self._ended)(*self._ended.args) from self._ended.__cause__
            if (reached := self._reached) is not None:
                return reached
            endpoint = ActorEndpoint.of(self._find())
            identity = endpoint.target.identity
            self._failures = self._failures + 1 if identity == self._failed else 0
            self._failed = identity
            time.sleep(exponential_wait(self._failures, _MIN_PAUSE, _MAX_PAUSE))
            with contextlib.suppress(*LOST_ERRORS):
                self._reached = ReachedActor(self._resolver.connect(endpoint), endpoint)

    def mark_lost(self, reached: ReachedActor, error: ConnectionError) -> None:
        with self._lock:
            if self._reached is reached:
                self._reached = None

    def interrupted(self, method: str) -> CallInterrupted:
        return died_during_call(str(self._address), f"{method}()")

    def waiting_reason(self) -> str:
        return self._waiting_reason or super().waiting_reason()

    def _find(self) -> EndpointRecord:
        def show(progress: str, why: str) -> None:
            self._waiting_reason = f"{progress}: {why}" if why else progress
            post(line, progress, why)

        async def find(core: Core) -> EndpointRecord:
            async with (await self._cluster.scaler()).during_wait() as on_machines:
                return await wait_for_endpoint(core, self._address, show, self._failed, self._seen, on_machines)

        self._waiting_reason = ""
        try:
            with WaitLine(self._queue.waiters) as line:
                endpoint = self._cluster.run(find)
        except ActorUnavailableError as error:
            self._ended = error
            raise
        self._seen = max(self._seen, rank(endpoint))
        return endpoint


_callers: WeakValueDictionary[tuple[int, str, ActorAddress], HandleCaller] = WeakValueDictionary()
_making = threading.Lock()


def caller_of(cluster: StorageCluster, address: ActorAddress) -> HandleCaller:
    """This process's only caller for an actor. All handles share it, so their calls keep their order."""
    with _making:
        key = (os.getpid(), cluster.root, address)
        caller = _callers.get(key)
        if caller is None:
            caller = _callers[key] = HandleCaller(cluster, address)
        return caller
