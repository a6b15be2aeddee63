"""Tasks through a queue in storage: they, and what comes of them, outlive the driver.

A submission is one push to the queue, then one object with its keys, by which a later driver knows its tasks. Workers
are jobs; what they write is looked for only while something is missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fray.cluster.storage import StorageCluster
from fray.errors import InvalidInput, Permanent
from fray.pool import shift
from fray.pool.ledger import Ledger
from fray.pool.objects import ObjectRef
from fray.pool.tasks import Function, digest, pickled
from fray.pool.transport import Call
from fray.pool.watch import Watch
from fray.queue import FileQueue
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, ResourceConfig
from fray_coordinator import outcomes, pools
from fray_coordinator.store.api import ABSENT
from fray_layouts.queue_names import Queues, Tasks
from fray_layouts.tasks import Outcome

MAX_DELIVERIES = 3
"""Workers that one task may take with it before it is given up."""

RESTARTS = 100
"""Times that a worker that was killed by its task comes back."""


class PoolNotFound(Permanent, LookupError):
    """There is no pool of that name with a queue, or it was shut down: make a new one."""


class Queued:
    """See `Transport`."""

    def __init__(
        self,
        cluster: StorageCluster,
        name: str,
        incarnation: int,
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        jobs: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._incarnation = incarnation
        self._resources = resources
        self._environment = environment
        self._tasks = Tasks.of(cluster.namespace, name, incarnation)
        self._queue: FileQueue[shift.Item] = FileQueue(
            cluster.root, name=name, namespace=cluster.namespace, max_deliveries=MAX_DELIVERIES
        )
        self._uploaded: set[str] = set()
        self._ledger = Ledger()
        self._watch = Watch(cluster, self._tasks, self._queue, self._ledger, jobs)

    @classmethod
    def create(
        cls, cluster: StorageCluster, name: str, resources: ResourceConfig, environment: EnvironmentConfig | None
    ) -> Queued:
        """A new pool. Raises NameTaken."""
        Queues.checked(name)
        incarnation = cluster.run(lambda core: pools.create(core, cluster.namespace, name))
        return cls(cluster, name, incarnation, resources, environment)

    @classmethod
    def attach(
        cls, cluster: StorageCluster, name: str, resources: ResourceConfig, environment: EnvironmentConfig | None
    ) -> Queued:
        """The pool that an earlier driver left. Raises PoolNotFound."""
        Queues.checked(name)
        found = cluster.run(lambda core: pools.find(core, cluster.namespace, name))
        if found is None:
            raise PoolNotFound(f"{name} in namespace {cluster.namespace}: {PoolNotFound.__doc__}")
        incarnation, record = found
        attached = cls(cluster, name, incarnation, resources, environment, record.jobs)
        attached._watch.look()
        attached._watch.wake()
        return attached

    @property
    def futures(self) -> Mapping[str, Future[Any]]:
        """Every task by its key."""
        return self._ledger.futures

    @property
    def workers(self) -> int:
        return self._watch.count_jobs()[0]

    @property
    def wanted(self) -> int:
        return self._watch.count_jobs()[1]

    @property
    def unfinished(self) -> int:
        return self._ledger.unfinished

    def submit(self, calls: Sequence[Call]) -> list[Future[Any]]:
        keyed = [(call.key or secrets.token_hex(8), call) for call in calls]
        items = [(key, self._payload(call)) for key, call in keyed]
        self._queue.push_many(items, batch=1 if len(items) == 1 else None)
        entries = [Outcome(key, "task", number=int(call.function.yields)) for key, call in keyed]
        self._cluster.run(lambda core: outcomes.write(core, self._tasks, entries))
        futures = [self._ledger.enter(key, call.function.yields) for key, call in keyed]
        self._watch.wake()
        return futures

    def put(self, obj: object) -> ObjectRef:
        """Store an object for tasks. Raises InvalidInput for what cannot be pickled."""
        try:
            data = pickled(obj)
        except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
            raise InvalidInput("obj", obj, f"it cannot be pickled ({error}); put what it is made of") from error
        key = self._tasks.object(digest(data))
        self._cluster.run(lambda core: core.store.put(key, data, ABSENT))
        return ObjectRef(self._cluster.root, key)

    def grow(self, count: int) -> None:
        request = JobRequest(
            name=self._name,
            entrypoint=Entrypoint.from_callable(shift.serve, args=(self._name, self._incarnation)),
            resources=self._resources,
            environment=self._environment,
            max_retries_failure=RESTARTS,
            grace=shift.GRACE,
            actor=True,
        )
        self._watch.add_jobs(self._cluster.launch_many([request] * count))

    def shrink(self, count: int) -> None:
        self._watch.end_jobs(count)

    def await_workers(self, count: int, timeout: float) -> None:
        self._watch.await_jobs(count, timeout)

    def drain(self) -> None:
        self._ledger.await_all()

    def end(self) -> None:
        self._watch.end()
        self._ledger.fail_all("the pool was shut down before the task was done")
        self._queue.close()
        self._cluster.run(lambda core: pools.remove(core, self._cluster.namespace, self._name, self._incarnation))

    def _payload(self, call: Call) -> bytes:
        self._upload(call.function)
        try:
            return pickled((call.function.form, call.args, call.kwargs))
        except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
            remedy = f"they cannot be pickled ({error}); make them inside the task"
            raise InvalidInput("args", call.args, remedy) from error

    def _upload(self, function: Function) -> None:
        """Put a large function where workers find it; twice is harmless, for its name is its content's."""
        form = function.form
        if isinstance(form, str) and form not in self._uploaded:
            self._cluster.run(lambda core: core.store.put(self._tasks.object(form), function.pickled, ABSENT))
            self._uploaded.add(form)
