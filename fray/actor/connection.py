"""The way from this process to one actor, through all its restarts.

Calls go straight to the actor's channel. Those made before it is up, and those that a connection took with it, wait
in a lane and are sent in their order as soon as the storage tells where the actor is. A call that may have begun is
asked for again, under its own id, of the same server, which joins it or finds its outcome; another server gets it only
if that does no harm (`config.may_repeat`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from fray.actor.address import ActorAddress, wait_for_endpoint
from fray.actor.config import may_retry
from fray.cluster.endpoint import target_of
from fray.errors import ActorUnavailableError, CallInterrupted
from fray.rpc.future import (
    LOST_ERRORS,
    ActorFuture,
    RetryQueue,
    UnsentCall,
    is_lost,
)
from fray_agents.rpc import CallId, Channel, ConnectionLost, connect
from fray_agents.rpc.wire.messages import NEW_CALL, packed_call
from fray_coordinator.backoff import exponential_wait
from fray_coordinator.protocol.naming import Rank, rank

if TYPE_CHECKING:
    from fray.cluster.storage import StorageCluster
    from fray_agents.rpc import ClientCall
    from fray_agents.rpc.wire.messages import Request
    from fray_layouts.records import EndpointRecord

_MIN_PAUSE, _MAX_PAUSE = 0.05, 2.0
"""Seconds between attempts to reach an endpoint that does not answer; each is twice as long as the one before."""


@dataclass(frozen=True)
class ReachedEndpoint:
    """A server of the actor that was reached, and what it said of itself."""

    channel: Channel
    endpoint: EndpointRecord


class RetryableCall:
    """A call, as it must be known to make it again.

    Attributes:
        way: the server that it was sent to last.
        repeated: how often it was made again though it may have begun.
    """

    __slots__ = ("repeated", "request", "way")

    def __init__(self, request: Request, way: ReachedEndpoint | None = None) -> None:
        self.request = request
        self.way = way
        self.repeated = 0


_NOT_UP = ConnectionLost("the actor is not up yet", started=False)


class ActorConnection:
    """Calls from this process to one actor; made by `connection_to`."""

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._lane = RetryQueue()
        self.pid = os.getpid()
        self._way: ReachedEndpoint | None = None
        self._seen: Rank = (0, 0)
        self._failed = ""
        self._failures = 0
        self._ended: ActorUnavailableError | None = None

    def end(self, why: str) -> None:
        """The actor was asked to end: calls from now on raise ActorUnavailableError, at once."""
        self._ended = self._ended or ActorUnavailableError(f"{self._address} {why}")

    @property
    def _open_way(self) -> ReachedEndpoint | None:
        return self._way if self._ended is None else None

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `ActorMethod.__call__`."""
        way = self._open_way
        if way is None or not self._lane.idle:
            return self.start(method, args, kwargs).result()
        try:
            return way.channel.call(self._address.name, method, args, kwargs)
        except LOST_ERRORS as error:
            if not is_lost(error):
                raise
            return self._later(method, args, kwargs, error, way).result()

    def start(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorFuture[Any]:
        """See `ActorMethod.remote`."""
        way = self._open_way
        if way is None or not self._lane.idle:
            return self._later(method, args, kwargs, _NOT_UP)
        try:
            call = way.channel.start(self._address.name, method, args, kwargs)
        except ConnectionLost as error:
            return self._later(method, args, kwargs, error, way)
        return ActorFuture(call, partial(self._again, RetryableCall(call.request, way)), self._lane)

    def stream(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """See `ActorMethod.stream`."""
        way = None
        while True:
            way = self._in_turn(way)
            begun = False
            try:
                for item in way.channel.stream(self._address.name, method, args, kwargs):
                    begun = True
                    yield item
                return
            except LOST_ERRORS as error:
                if not is_lost(error):
                    raise
                if begun or _may_have_begun(error):
                    raise self._interrupted(method) from error

    def _later(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: ConnectionError,
        way: ReachedEndpoint | None = None,
    ) -> ActorFuture[Any]:
        """The future of a call that has to wait in the lane, because of `error`."""
        request = packed_call(self._address.name, method, args, kwargs, by_reference=self._cluster.in_threads)
        errand = RetryableCall(request, way)
        return ActorFuture(UnsentCall(error), partial(self._again, errand), self._lane)

    def _in_turn(self, lost: ReachedEndpoint | None) -> ReachedEndpoint:
        """A way, once all calls that wait have been sent."""
        way = self._open_way
        if way is not None and way is not lost and self._lane.idle:
            return way
        reached: Future[ReachedEndpoint] = Future()

        def reach() -> None:
            try:
                reached.set_result(self._reach(lost))
            except BaseException as error:
                reached.set_exception(error)

        self._lane.put(reach)
        return reached.result()

    # --- in the lane's thread

    def _again(self, errand: RetryableCall, error: ConnectionError, since: float) -> ClientCall:
        """Send a call that was lost, or not sent before. Raises what its future shall raise."""
        sent_to = lost = errand.way
        while True:
            way = self._reach(lost)
            request = errand.request._replace(id=self._id_for(errand, error, sent_to, way))
            try:
                call = way.channel.resend(request)
            except ConnectionLost:  # since it was reached
                lost = way
                continue
            errand.way = way
            errand.repeated += _may_have_begun(error) and request.id is NEW_CALL
            return call

    def _id_for(
        self, errand: RetryableCall, error: ConnectionError, sent_to: ReachedEndpoint | None, way: ReachedEndpoint
    ) -> CallId:
        """Under which id to make the call again; raises CallInterrupted if it may have begun and must not run again."""
        if sent_to is None or not _may_have_begun(error):
            return NEW_CALL
        said, call = way.endpoint.metadata, getattr(error, "call", None)
        same_server = sent_to.endpoint.nonce == way.endpoint.nonce
        if call is not None and (same_server or said.get("durable")):
            return CallId(*call)
        if not may_retry(said, errand.request.method, errand.repeated):
            raise self._interrupted(errand.request.method) from error
        return NEW_CALL

    def _reach(self, lost: ReachedEndpoint | None) -> ReachedEndpoint:
        """A connection to the actor, wherever it is now; waits for it to be up.

        Args:
            lost: the way that failed; one that was found since then is as good as new.

        Raises:
            ActorUnavailableError: it has ended, or was asked to.
        """
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args) from self._ended.__cause__
        if self._way is not None and self._way is not lost:
            return self._way
        self._way = None
        while self._way is None:
            endpoint = self._find()
            self._failures = self._failures + 1 if endpoint.nonce == self._failed else 0
            self._failed = endpoint.nonce  # until it has proved good
            time.sleep(exponential_wait(self._failures, _MIN_PAUSE, _MAX_PAUSE))
            with contextlib.suppress(*LOST_ERRORS):
                self._way = ReachedEndpoint(connect(target_of(endpoint), self._cluster.keyring), endpoint)
        return self._way

    def _find(self) -> EndpointRecord:
        try:
            endpoint = self._cluster.run(lambda core: wait_for_endpoint(core, self._address, self._failed, self._seen))
        except ActorUnavailableError as error:
            self._ended = error
            raise
        self._seen = max(self._seen, rank(endpoint))
        return endpoint

    def _interrupted(self, method: str) -> CallInterrupted:
        remedy = "make the call again if that does no harm, mark the method idempotent, or set max_task_retries"
        return CallInterrupted(f"{self._address} died while {method}() may have been running; {remedy}")


def _may_have_begun(error: ConnectionError) -> bool:
    return isinstance(error, ConnectionLost) and error.started is not False


_connections: WeakValueDictionary[tuple[int, str, ActorAddress], ActorConnection] = WeakValueDictionary()
_making = threading.Lock()


def connection_to(cluster: StorageCluster, address: ActorAddress) -> ActorConnection:
    """The one line of this process to that actor, so that all handles' calls keep their order."""
    with _making:
        key = (os.getpid(), cluster.root, address)
        line = _connections.get(key)
        if line is None:
            line = _connections[key] = ActorConnection(cluster, address)
        return line
