"""The workers of a pool that is called directly: actors in jobs of their own, found through their endpoints.

Nothing is asked of the storage while all workers are there. Who is missing is looked for at growing intervals; a worker
that was lost comes back under a new identity, as its job is restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fray.actor.create import create_actor_group
from fray.actor.group import ActorGroup
from fray.cluster.storage import StorageCluster
from fray.pool.contact import SILENCE
from fray.pool.dispatch import Dispatcher, Done, Gone
from fray.pool.runner import TaskRunner
from fray.pool.tasks import Task
from fray.rpc import ActorEndpoint, ClusterResolver
from fray.rpc.future import GONE, is_lost
from fray.types import ActorConfig, EnvironmentConfig, ResourceConfig
from fray_agents.rpc import Call, Channel

log = logging.getLogger("fray")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_CHECK_JOBS = 5.0
"""Seconds between two looks at the jobs of workers that do not come."""


class Link:
    """The driver's end of one worker."""

    def __init__(self, channel: Channel, endpoint: ActorEndpoint) -> None:
        self.endpoint = endpoint
        self._channel = channel
        self._defined: set[str] = set()

    def send(self, task: Task, ended: Callable[[Task, Done | Gone], None]) -> None:
        """Start the task there; see `dispatch.Worker`."""
        try:
            self._define(task)
            call = self._channel.resend(task.request)
        except GONE as error:
            ended(task, Gone(str(error), started=False))
            return
        task.future.call = call
        call.add_done_callback(lambda call: ended(task, _end_of(call)))

    def ping(self) -> None:
        """Tell the worker that its driver lives; that it is gone shows when it is sent something."""
        try:
            self._channel.start(self.endpoint.name, "alive", (), {})
        except GONE:
            return

    def _define(self, task: Task) -> None:
        function = task.function
        if isinstance(function.form, str) and function.form not in self._defined:
            self._channel.start(self.endpoint.name, "define", (function.form, function.pickled), {})
            self._defined.add(function.form)


def _end_of(call: Call) -> Done | Gone:
    error = call.exception()
    if error is None:
        seconds, value = call.result()
        return Done(seconds, value)
    if is_lost(error):
        return Gone(str(error), started=getattr(error, "started", False) is not False)
    return Done(None, error=error)


class Crew:
    """Starts workers, brings those that are up to the dispatcher, and ends them.

    Args:
        name: of the workers' actors; nobody else's.
        on_hopeless: told why, once every worker has ended for good and none will come.
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
        self._groups: list[ActorGroup[TaskRunner]] = []
        self._links: dict[str, Link] = {}
        self._wanted = 0
        self._ended = False
        self._look_now = threading.Event()
        self._recruiter = threading.Thread(target=self._recruit, name="fray-pool", daemon=True)

    @property
    def wanted(self) -> int:
        """How many workers there should be."""
        return self._wanted

    def grow(self, count: int) -> None:
        """Start `count` more workers; returns at once."""
        group = create_actor_group(
            self._cluster,
            TaskRunner,
            name=self._name,
            count=count,
            resources=self._resources,
            actor_config=ActorConfig(),
            environment=self._environment,
        )
        self._groups.append(group)
        self._wanted += count
        self._look_now.set()
        if self._recruiter.ident is None:
            self._recruiter.start()

    def shrink(self, count: int) -> None:
        """End up to `count` workers that have nothing to do."""
        for name in self._dispatcher.idle()[:count]:
            link = self._links.get(name)
            if link is not None and self._dispatcher.dismiss(name):
                del self._links[name]
                self._wanted -= 1
                self._cluster.terminate(link.endpoint.job_id)

    def lost(self, name: str) -> None:
        """A worker is gone: look for the one that comes in its place."""
        self._links.pop(name, None)
        self._look_now.set()

    def end(self) -> None:
        """End all workers; returns at once."""
        self._ended = True
        self._look_now.set()
        for group in self._groups:
            group.shutdown()

    def _recruit(self) -> None:
        while not self._ended:
            if len(self._links) < self._wanted:
                self._fill()
            elif not self._look_now.wait(SILENCE / 5):
                for link in list(self._links.values()):
                    link.ping()

    def _fill(self) -> None:
        """Look until all are there, or are lost for good."""
        self._look_now.clear()
        pause, checked = _FIRST_PAUSE, time.monotonic()
        while not self._ended and len(self._links) < self._wanted:
            if self._look():
                pause = _FIRST_PAUSE
            self._look_now.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if time.monotonic() - checked > _CHECK_JOBS:
                checked = time.monotonic()
                self._check_jobs()

    def _look(self) -> bool:
        """Bring in the workers that have come up; whether there were any."""
        came = False
        for endpoint in self._resolver.find(self._name):
            identity = f"{endpoint.actor_id} {endpoint.target.identity}"
            if identity in self._links:
                continue
            try:
                link = Link(self._resolver.connect(endpoint), endpoint)
            except GONE as error:
                log.debug("worker %s cannot be called yet: %s", endpoint.actor_id, error)
                continue
            self._links[identity] = link
            self._dispatcher.join(identity, link)
            came = True
        return came

    def _check_jobs(self) -> None:
        if not self._links and all(group.is_done() for group in self._groups) and not self._ended:
            last = self._cluster.poll(self._groups[-1].jobs[-1].job_id)
            self._ended = True
            self._on_hopeless(f"every worker has ended: {last.error_message or last.status}")
