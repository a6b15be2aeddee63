"""The supervisor of a directly called pool's workers. They are actors in jobs of their own, found by their endpoints.

While all workers are up, it makes no requests. It looks for missing ones at growing intervals. A lost worker comes back
under a new identity when its job is restarted. A job that has ended for good is replaced by another one; the supervisor
gives up if job after job ends before its worker could be called.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from fray.actor.create import actor_request, create_actors
from fray.cluster.actor_metadata import ActorEndpoint
from fray.cluster.job_info import exit_reason
from fray.cluster.storage import StorageCluster
from fray.pool.diagnosis import AbsenceWatch, explain_absence, worker_exit
from fray.pool.dispatcher import Dispatcher, TaskDone, WorkerDied
from fray.pool.pool_task import PoolTask, TaskRunner
from fray.rpc.resolver import ClusterResolver
from fray.types import ActorConfig, EnvironmentConfig, JobId, ResourceConfig
from fray_coordinator.backoff import backoff
from fray_coordinator.errors import ParentNotRunning, StoreError
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_layouts.records import JobRecord
from fray_rpc import Channel, ClientCall
from fray_rpc.errors import LOST_ERRORS, is_lost
from fray_runtime.threads import start_thread

log = logging.getLogger("fray")

_LOOKUP_PAUSES = 0.02, 1.0
"""First and longest pause in seconds between two lookups of missing workers' endpoints. The pauses grow, since a worker
may wait for a free agent for long."""
_CHECK_INTERVALS = 1.0, 30.0
"""First and longest interval in seconds between two checks of missing workers' jobs. They grow, as few jobs end."""

MAX_RESTARTS = 3
"""Restarts of a worker's job after crashes and lost hosts. After that the job has ended for good, and is replaced."""

MAX_STILLBORN_JOBS = 3
"""Jobs per worker that may end in a row before any of them could be called. Then the pool gives up."""


class RemoteWorker:
    """A worker as the driver sees it: the channel to it and the functions that it has."""

    def __init__(self, channel: Channel, endpoint: ActorEndpoint) -> None:
        self.endpoint = endpoint
        self._channel = channel
        self._defined: set[str] = set()

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        """Start the task on the worker; see `dispatcher.Worker`."""
        try:
            self._define(task)
            call = self._channel.resend(task.request)
        except LOST_ERRORS as error:
            ended(task, WorkerDied(str(error), started=False))
            return
        except Exception as error:  # the task is taken, and would never end
            ended(task, TaskDone(error=error))
            return
        task.future.call = call
        call.add_done_callback(lambda call: ended(task, _outcome_of(call)))

    def _define(self, task: PoolTask) -> None:
        function = task.function
        if isinstance(function.form, str) and function.form not in self._defined:
            self._channel.start(self.endpoint.name, "define", (function.form, function.pickled), {})
            self._defined.add(function.form)


def _outcome_of(call: ClientCall) -> TaskDone | WorkerDied:
    error = call.exception()
    if error is None:
        seconds, value = call.result()
        return TaskDone(seconds, value)
    if is_lost(error):
        return WorkerDied(str(error), started=getattr(error, "started", False) is not False)
    return TaskDone(None, error=error)


class WorkerSupervisor:
    """Starts workers, passes those that are up to the dispatcher, and ends them.

    Attributes:
        absence: finds out why workers are missing.

    Args:
        name: the name of the workers' actors, which no other actors have.
        on_hopeless: called with the reason once every worker has ended for good and others would too.
    """

    def __init__(
        self,
        cluster: StorageCluster,
        name: str,
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        dispatcher: Dispatcher,
        on_hopeless: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._resources = resources
        self._environment = environment
        self._dispatcher = dispatcher
        self._on_hopeless = on_hopeless
        self._resolver = ClusterResolver(cluster, cluster.namespace)
        self._lock = threading.Lock()
        self._jobs: set[JobId] = set()
        self._workers: dict[str, RemoteWorker] = {}
        self._wanted = 0
        self._stillborn = 0
        self._ended = False
        self.absence = AbsenceWatch(cluster, name)
        self._wake = threading.Event()
        self._supervises = False

    @property
    def wanted(self) -> int:
        return self._wanted

    def grow(self, count: int) -> None:
        """Start `count` more workers; returns at once."""
        with self._lock:
            self._start(count)
            self._wanted += count
            if not self._supervises:
                start_thread(self._run, "fray-pool", self._give_up)
                self._supervises = True
        self._wake.set()

    def shrink(self, count: int) -> None:
        """End up to `count` idle workers."""
        for name in self._dispatcher.idle()[:count]:
            worker = self._workers.get(name)
            if worker is not None and self._dispatcher.dismiss(name):
                with self._lock:
                    self._jobs.discard(worker.endpoint.job_id)
                    self._wanted -= 1
                self._workers.pop(name, None)
                self._cluster.terminate(worker.endpoint.job_id)

    def lost(self, name: str) -> None:
        """Record that a worker is lost, and look for its replacement."""
        self._workers.pop(name, None)
        self._wake.set()

    def exit_reader(self, name: str) -> Callable[[], str]:
        """A function that waits a little and returns how a worker that was just lost has ended; "" if it is unknown."""
        job = self._workers[name].endpoint.job_id

        def read() -> str:
            try:
                return self._cluster.run(partial(worker_exit, job=job))
            except StoreError as error:
                return str(error)

        return read

    def explain_absence(self) -> str:
        """The reason why workers are missing, and what to do; "" if none is missing."""
        try:
            return self._cluster.run(partial(explain_absence, jobs=self._missing()))
        except StoreError as error:
            return str(error)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            jobs = list(self._jobs)
        self._wake.set()
        self.absence.end()
        for job in jobs:
            self._cluster.terminate(job)

    def _start(self, count: int) -> None:
        """Start jobs. The caller holds the lock, so that none is started after the pool has ended."""
        if self._ended:
            return
        config = ActorConfig(max_restarts=MAX_RESTARTS)
        shown_as = f"worker of pool {self._name}"
        request = actor_request(TaskRunner, (), {}, self._name, config, self._resources, self._environment, shown_as)
        group = create_actors(self._cluster, request, count)
        self._jobs.update(job.job_id for job in group.jobs)

    def _run(self) -> None:
        while not self._ended:
            try:
                self._supervise()
            except StoreError as error:
                log.warning("workers of %s cannot be looked for now: %s", self._name, error)
                self._wake.wait(_LOOKUP_PAUSES[1])
            except ParentNotRunning as error:  # new workers would have no owner
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """End the pool's tasks with the reason why there will be no more workers."""
        self._ended = True
        self._on_hopeless(str(error) or type(error).__name__)

    def _supervise(self) -> None:
        if len(self._workers) < self._wanted:
            self._fill()
        else:
            self._wake.wait()
            self._wake.clear()

    def _fill(self) -> None:
        """Look for missing workers until all are up, or the pool has ended."""
        self._wake.clear()
        pauses, intervals = backoff(*_LOOKUP_PAUSES), backoff(*_CHECK_INTERVALS)
        until_check, checked = next(intervals), time.monotonic()
        while not self._ended and len(self._workers) < self._wanted:
            if self._find_missing():
                pauses = backoff(*_LOOKUP_PAUSES)
            if self._wake.wait(next(pauses)):
                self._wake.clear()  # or each further wait would return at once
            if time.monotonic() - checked > until_check:
                if self._replace():
                    intervals = backoff(*_CHECK_INTERVALS)
                until_check, checked = next(intervals), time.monotonic()
            self.absence.observe(len(self._workers), self._missing())

    def _find_missing(self) -> bool:
        """Pass workers that have come up to the dispatcher. Returns whether there were any."""
        found_any = False
        for endpoint in self._resolver.find(self._name):
            identity = f"{endpoint.actor_id} {endpoint.target.identity}"
            if identity in self._workers or endpoint.job_id not in self._jobs:
                continue
            try:
                worker = RemoteWorker(self._resolver.connect(endpoint), endpoint)
            except LOST_ERRORS as error:
                log.debug("worker %s cannot be called yet: %s", endpoint.actor_id, error)
                continue
            self._workers[identity] = worker
            self._stillborn = 0
            self._dispatcher.join(identity, worker)
            found_any = True
        return found_any

    def _missing(self) -> list[JobId]:
        with self._lock:
            return sorted(self._jobs.difference([worker.endpoint.job_id for worker in list(self._workers.values())]))

    def _replace(self) -> bool:
        """Replace jobs that have ended for good, unless that is hopeless. Returns whether there were any."""
        missing = self._missing()
        found = self._cluster.run(partial(jobs_by_id, ids=missing, problems={}))
        ended_jobs = [job for job in found.values() if job is not None and job.ended_at is not None]
        ended = {job for job, record in found.items() if record is None or record.ended_at is not None}
        with self._lock:
            self._jobs -= ended
            self._stillborn += len(ended)
            lacking = self._wanted - len(self._jobs)
            if lacking and self._stillborn < MAX_STILLBORN_JOBS * self._wanted:
                self._start(lacking)
            hopeless = not self._jobs and not self._ended
            self._ended = self._ended or hopeless
        if hopeless:
            self._on_hopeless(_explain_stillborn(sorted(ended_jobs, key=lambda job: job.ended_at or 0.0)))
        return bool(ended)


def _explain_stillborn(ended: list[JobRecord]) -> str:
    """The reason why there will be no workers. ended: the jobs that ended, the latest last, as far as records exist."""
    last = "; ".join(f"{job.id}: {exit_reason(job.exit)}" for job in ended[-1:] if job.exit is not None)
    return f"every worker has ended before it could be called, {MAX_STILLBORN_JOBS} jobs for each; the last one: {last}"
