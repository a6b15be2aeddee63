"""The workers of a pool that is called directly: actors in jobs of their own, found through their endpoints.

Nothing is asked of the storage while all workers are there. Who is missing is looked for at growing intervals; a worker
that was lost comes back under a new identity, as its job is restarted. A job that has ended for good is replaced by
another, unless one after the other ends before its worker could be called.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from fray.actor.create import create_actor_group
from fray.cluster.endpoint import ActorEndpoint
from fray.cluster.job_info import exit_reason
from fray.cluster.storage import StorageCluster
from fray.pool import diagnosis
from fray.pool.dispatcher import Dispatcher, TaskDone, WorkerDied
from fray.pool.pool_task import PoolTask
from fray.pool.task_runner import TaskRunner
from fray.rpc.resolver import ClusterResolver
from fray.types import ActorConfig, EnvironmentConfig, JobId, ResourceConfig
from fray_agents.rpc import Channel, ClientCall
from fray_agents.rpc.errors import LOST_ERRORS, is_lost
from fray_coordinator.backoff import backoff
from fray_coordinator.errors import ParentNotRunning, StoreError
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_layouts.records import JobRecord

log = logging.getLogger("fray")

_LOOKUP_PAUSES = 0.02, 1.0
_CHECK_INTERVALS = 1.0, 30.0
"""Seconds between two looks at the jobs of workers that do not come."""

MAX_RESTARTS = 3
"""Times that the job of a worker that crashed, or whose host went away, is restarted before it has ended for good."""

MAX_STILLBORN_JOBS = 3
"""Jobs for each worker that may end one after the other, none of them ever up, before the pool gives up."""


class RemoteWorker:
    """The driver's end of one worker."""

    def __init__(self, channel: Channel, endpoint: ActorEndpoint) -> None:
        self.endpoint = endpoint
        self._channel = channel
        self._defined: set[str] = set()

    def send(self, task: PoolTask, ended: Callable[[PoolTask, TaskDone | WorkerDied], None]) -> None:
        """Start the task there; see `dispatch.Worker`."""
        try:
            self._define(task)
            call = self._channel.resend(task.request)
        except LOST_ERRORS as error:
            ended(task, WorkerDied(str(error), started=False))
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
    """Starts workers, brings those that are up to the dispatcher, and ends them.

    Args:
        name: of the workers' actors; nobody else's.
        on_hopeless: told why, once every worker has ended for good and others would fare no better.
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
        self._links: dict[str, RemoteWorker] = {}
        self._wanted = 0
        self._endings = 0
        self._ended = False
        self._look_now = threading.Event()
        self._recruiter = threading.Thread(target=self._recruit, name="fray-pool", daemon=True)

    @property
    def wanted(self) -> int:
        """How many workers there should be."""
        return self._wanted

    def grow(self, count: int) -> None:
        """Start `count` more workers; returns at once."""
        with self._lock:
            self._start(count)
            self._wanted += count
        self._look_now.set()
        if self._recruiter.ident is None:
            self._recruiter.start()

    def shrink(self, count: int) -> None:
        """End up to `count` workers that have nothing to do."""
        for name in self._dispatcher.idle()[:count]:
            link = self._links.get(name)
            if link is not None and self._dispatcher.dismiss(name):
                with self._lock:
                    self._jobs.discard(link.endpoint.job_id)
                    self._wanted -= 1
                self._links.pop(name, None)
                self._cluster.terminate(link.endpoint.job_id)

    def lost(self, name: str) -> None:
        """A worker is gone: look for the one that comes in its place."""
        self._links.pop(name, None)
        self._look_now.set()

    def absence(self) -> str:
        """Why workers that are wanted are not there, and what to do; "" if none is missing."""
        try:
            return self._cluster.run(partial(diagnosis.explain_absence, jobs=sorted(self._missing())))
        except StoreError as error:
            return str(error)

    def end(self) -> None:
        """End all workers; returns at once."""
        with self._lock:
            self._ended = True
            jobs = list(self._jobs)
        self._look_now.set()
        for job in jobs:
            self._cluster.terminate(job)

    def _start(self, count: int) -> None:
        """Start jobs; under the lock, so that none is started once the pool has ended."""
        if self._ended:
            return
        group = create_actor_group(
            self._cluster,
            TaskRunner,
            name=self._name,
            count=count,
            resources=self._resources,
            actor_config=ActorConfig(max_restarts=MAX_RESTARTS),
            environment=self._environment,
        )
        self._jobs.update(job.job_id for job in group.jobs)

    def _recruit(self) -> None:
        while not self._ended:
            try:
                self._keep_all()
            except StoreError as error:
                log.warning("workers of %s cannot be looked for now: %s", self._name, error)
                self._look_now.wait(_LOOKUP_PAUSES[1])
            except ParentNotRunning as error:  # nobody could own others
                self._ended = True
                self._on_hopeless(str(error))

    def _keep_all(self) -> None:
        if len(self._links) < self._wanted:
            self._fill()
        else:
            self._look_now.wait()
            self._look_now.clear()

    def _fill(self) -> None:
        """Look until all are there, or are lost for good."""
        self._look_now.clear()
        pauses, intervals = backoff(*_LOOKUP_PAUSES), backoff(*_CHECK_INTERVALS)
        until_check, checked = next(intervals), time.monotonic()
        while not self._ended and len(self._links) < self._wanted:
            if self._look():
                pauses = backoff(*_LOOKUP_PAUSES)
            self._look_now.wait(next(pauses))
            if time.monotonic() - checked > until_check:
                if self._replace():
                    intervals = backoff(*_CHECK_INTERVALS)
                until_check, checked = next(intervals), time.monotonic()

    def _look(self) -> bool:
        """Bring in the workers that have come up; whether there were any."""
        came = False
        for endpoint in self._resolver.find(self._name):
            identity = f"{endpoint.actor_id} {endpoint.target.identity}"
            if identity in self._links or endpoint.job_id not in self._jobs:
                continue
            try:
                link = RemoteWorker(self._resolver.connect(endpoint), endpoint)
            except LOST_ERRORS as error:
                log.debug("worker %s cannot be called yet: %s", endpoint.actor_id, error)
                continue
            self._links[identity] = link
            self._endings = 0
            self._dispatcher.join(identity, link)
            came = True
        return came

    def _missing(self) -> set[JobId]:
        """The jobs whose workers are not there."""
        with self._lock:
            return self._jobs.difference([link.endpoint.job_id for link in list(self._links.values())])

    def _replace(self) -> bool:
        """Put others in the place of workers that have ended for good, while there is hope; whether there were any."""
        missing = self._missing()
        found = self._cluster.run(partial(jobs_by_id, ids=missing, problems={}))
        last_words = [job for job in found.values() if job is not None and job.ended_at is not None]
        ended = {job for job, record in found.items() if record is None or record.ended_at is not None}
        with self._lock:
            self._jobs -= ended
            self._endings += len(ended)
            lacking = self._wanted - len(self._jobs)
            if lacking and self._endings < MAX_STILLBORN_JOBS * self._wanted:
                self._start(lacking)
            hopeless = not self._jobs and not self._ended
            self._ended = self._ended or hopeless
        if hopeless:
            self._on_hopeless(_explain_endings(sorted(last_words, key=lambda job: job.ended_at or 0.0)))
        return bool(ended)


def _explain_endings(ended: list[JobRecord]) -> str:
    """Why there will be no workers; `ended`: the jobs that were the last to end, as far as they are still known."""
    told = "; ".join(f"{job.id}: {exit_reason(job.exit)}" for job in ended[-1:] if job.exit is not None)
    return f"every worker has ended before it could be called, {MAX_STILLBORN_JOBS} jobs for each; the last, {told}"
