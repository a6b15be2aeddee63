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
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from fray.cluster.actor_metadata import ActorEndpoint
from fray.cluster.job_info import info_of, last_attempt, original_exception
from fray.cluster.log_printer import post
from fray.cluster.storage import StorageCluster
from fray.errors import ActorUnavailableError, CallInterrupted, JobFailed
from fray.rpc.calling import ActorCaller, ReachedActor, died_during_call
from fray.rpc.resolver import ClusterResolver
from fray.wait_line import WaitLine
from fray_coordinator.backoff import WARN_AFTER, exponential_wait
from fray_coordinator.core import Core
from fray_coordinator.jobs.job_archive import find_record, reread_record
from fray_coordinator.jobs.waiting import ActivityReports, PollBackoff, WaitingReasons
from fray_coordinator.protocol.naming import Rank, rank
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import EndpointKey
from fray_layouts.records import EndpointRecord, JobRecord
from fray_rpc.errors import LOST_ERRORS


@dataclass(frozen=True)
class ActorAddress:
    """The address of one actor. An actor that is created later under the same name has another `actor_id`.

    Attributes:
        job: the job that serves the actor, or the job that stands for the program that serves it.
        attempt: the number of the job's attempt if the actor ends with that attempt; 0 if each attempt serves it anew.
    """

    namespace: str
    name: str
    actor_id: str
    job: str
    attempt: int = 0

    def key(self) -> str:
        return EndpointKey(self.namespace, self.name, self.actor_id).key()

    def __str__(self) -> str:
        return f"actor {self.name!r} ({self.job})"


async def wait_for_endpoint(
    core: Core,
    address: ActorAddress,
    on_progress: Callable[[str, str], None] = lambda progress, why: None,
    failed: str = "",
    seen: Rank = (0, 0),
    on_machines: Callable[[], None] = lambda: None,
) -> EndpointRecord:
    """Wait until an actor can be called, and return its endpoint.

    Args:
        on_progress: called after two seconds with the actor's progress and the reason why it has not started.
        failed: nonce of an endpoint that did not answer; it is returned only if the storage says that its attempt runs.
        seen: the highest (incarnation, attempt) seen so far; a lower one was written late, by a dead process.
        on_machines: called if the actor's job waits in a pool that may have machines.

    Raises:
        ActorUnavailableError: the actor has ended for good.
    """
    pace, reasons, activity = PollBackoff(core), WaitingReasons(core, on_machines), ActivityReports(core)
    begin = core.clock.boottime()
    job: Stored[JobRecord] | None = None
    while True:
        endpoint = record_of(await core.records.read(address.key(), EndpointRecord))
        if endpoint is not None and rank(endpoint) < seen:
            endpoint = None
        if endpoint is not None and endpoint.nonce != failed:
            return endpoint
        before, job = job, await _read_job(core, address, job)
        if endpoint is not None and _serves(job.record, endpoint):
            return endpoint
        await reasons.update([job.record])
        await activity.update(job.record)
        if core.clock.boottime() - begin >= WARN_AFTER:
            on_progress(f"{address} {_state(job.record, activity.activity)}", reasons.text)
        if before is None or job.version != before.version:
            pace.reset()
        await pace.sleep()


async def _read_job(core: Core, address: ActorAddress, known: Stored[JobRecord] | None) -> Stored[JobRecord]:
    """Read the job's record. Raises ActorUnavailableError if the actor has ended for good."""
    if known is None:
        known = await find_record(core, address.job)
    else:
        known = await reread_record(core, known)
    if known is None:
        raise ActorUnavailableError(f"{address} has ended, and its job's record was removed")
    job = known.record
    if is_terminal(job):
        why = JobFailed.of(info_of(core.root, job))
        raise ActorUnavailableError(f"{address} has ended: {why}") from original_exception(job.exit)
    if address.attempt and job.attempt > address.attempt:
        raise ActorUnavailableError(f"{address} ended with attempt {address.attempt} of the job that hosted it")
    return known


def _state(job: JobRecord, activity: str) -> str:
    """Describe, for people, how far an actor's job is that does not serve calls yet.

    activity: what the job's agent reports, such as the building of an environment.
    """
    before = f"; {ended}" if (ended := last_attempt(job)) else ""
    if job.lease is None:
        return f"has not started{' again' * bool(before)}{before}"
    return f"starts on host {job.lease.host}: {activity or 'its __init__ has not returned'}{before}"


def _serves(job: JobRecord, endpoint: EndpointRecord) -> bool:
    return job.status == Status.RUNNING and job.attempt == endpoint.attempt


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
