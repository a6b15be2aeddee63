"""Calls to one actor with a job of its own, through all its restarts.

Calls go straight to the actor's channel. Those that are made before it is up, and those that were lost with a
connection, wait in a queue and are sent in their order as soon as the storage tells where the actor is. A call that may
have begun is asked for again, under its own id, of the same server, which joins it or finds its outcome. Another server
gets it only if that does no harm; see `fray.rpc.calling`.
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
from fray.rpc.calling import ActorCaller, ReachedActor
from fray.rpc.resolver import ClusterResolver
from fray.wait_line import WaitLine
from fray_agents.rpc.errors import LOST_ERRORS
from fray_coordinator.backoff import exponential_wait
from fray_coordinator.core import Core
from fray_coordinator.protocol.naming import Rank, rank
from fray_layouts.records import EndpointRecord

_MIN_PAUSE, _MAX_PAUSE = 0.05, 2.0
"""Seconds between attempts to reach an endpoint that does not answer though its attempt runs, the first and the
longest: each attempt asks the storage whether the actor has moved."""


class HandleCaller(ActorCaller):
    """Makes the calls of this process to one actor; made by `caller_of`."""

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        super().__init__(address.name, one_actor=True, by_reference=cluster.in_threads)
        self.pid = os.getpid()
        self._cluster = cluster
        self._resolver = ClusterResolver(cluster, address.namespace)
        self._address = address
        self._lock = threading.Lock()
        self._reached: ReachedActor | None = None
        self._seen: Rank = (0, 0)
        self._failed = ""  # identity of the server that was reached last, until another is
        self._failures = 0
        self._told = ""
        self._ended: ActorUnavailableError | None = None

    def end(self, why: str) -> None:
        """Note that the actor was asked to end: calls from now on raise ActorUnavailableError, at once."""
        self._ended = self._ended or ActorUnavailableError(f"{self._address} {why}")

    def at_hand(self) -> ReachedActor | None:
        return self._reached if self._ended is None else None

    def reach(self, since: float) -> ReachedActor:
        """A connection to the actor, wherever it is now; waits for it to be up, however long that takes.

        Raises:
            ActorUnavailableError: it has ended, or was asked to.
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

    def lose(self, reached: ReachedActor, error: ConnectionError) -> None:
        with self._lock:
            if self._reached is reached:
                self._reached = None

    def interrupted(self, method: str) -> CallInterrupted:
        remedy = "make the call again if that does no harm, mark the method idempotent, or set max_task_retries"
        return CallInterrupted(f"{self._address} died while {method}() may have been running; {remedy}")

    def told(self) -> str:
        return self._told or super().told()

    def _find(self) -> EndpointRecord:
        def tell(progress: str, why: str) -> None:
            self._told = f"{progress}: {why}" if why else progress
            post(line, progress, why)

        async def find(core: Core) -> EndpointRecord:
            async with (await self._cluster.scaler()).during_wait() as on_machines:
                return await wait_for_endpoint(core, self._address, tell, self._failed, self._seen, on_machines)

        self._told = ""
        try:
            with WaitLine() as line:
                endpoint = self._cluster.run(find)
        except ActorUnavailableError as error:
            self._ended = error
            raise
        self._seen = max(self._seen, rank(endpoint))
        return endpoint


_callers: WeakValueDictionary[tuple[int, str, ActorAddress], HandleCaller] = WeakValueDictionary()
_making = threading.Lock()


def caller_of(cluster: StorageCluster, address: ActorAddress) -> HandleCaller:
    """The one caller of this process for an actor, so that the calls of all its handles keep their order."""
    with _making:
        key = (os.getpid(), cluster.root, address)
        caller = _callers.get(key)
        if caller is None:
            caller = _callers[key] = HandleCaller(cluster, address)
        return caller
