"""Tasks through a queue in storage: they, and what comes of them, outlive the driver.

A submission is one push to the queue, then one object with its keys, by which a later driver knows its tasks. Workers
are jobs; what they write is looked for only while something is missing.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from fray.cluster.storage import StorageCluster
from fray.errors import InvalidInput, Permanent
from fray.pool import shift
from fray.pool.dispatch import PoolClosed
from fray.pool.elastic import CALM
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
from fray_layouts.queues import QueueRecord
from fray_layouts.tasks import Outcome, PoolRecord

_QUEUE = QueueRecord(max_deliveries=3)
"""So many workers may one task take with it before it is given up."""


class PoolNotFound(Permanent, LookupError):
    """There is no pool of that name with a queue, or it was shut down: make a new one."""


class Queued:
    """See `Transport`."""

    def __init__(
        self,
        cluster: StorageCluster,
        namespace: str,
        name: str,
        found: tuple[int, PoolRecord],
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        idle: float,
    ) -> None:
        self._incarnation, record = found
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._tasks = Tasks.of(namespace, name, self._incarnation)
        self._queue: FileQueue[shift.Item] = FileQueue(
            cluster.root, name=name, namespace=namespace, incarnation=self._incarnation
        )
        self._worker = JobRequest(
            name=name,
            namespace=namespace,
            entrypoint=Entrypoint.from_callable(shift.serve, args=(name, self._incarnation, idle)),
            resources=resources,
            environment=environment,
            grace=shift.GRACE,
        )
        self._uploaded: set[str] = set()
        self._ledger = Ledger()
        self._watch = Watch(cluster, self._tasks, self._queue, self._ledger, record.jobs)

    @classmethod
    def open(
        cls,
        cluster: StorageCluster,
        namespace: str,
        name: str,
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        idle: float,
        *,
        new: bool,
        old: bool,
    ) -> Queued:
        """The pool of that name.

        Args:
            idle: see `shift.serve`.
            new: it may be made.
            old: it may be one that an earlier driver left.

        Raises:
            NameTaken: there is one, or a queue of that name.
            PoolNotFound: there is none.
        """
        Queues.checked(name)
        if new:
            found = cluster.run(lambda core: pools.create(core, namespace, name, _QUEUE, exist_ok=old))
        elif (living := cluster.run(lambda core: pools.find(core, namespace, name))) is not None:
            found = living
        else:
            raise PoolNotFound(f"{name} in namespace {namespace}: {PoolNotFound.__doc__}")
        opened = cls(cluster, namespace, name, found, resources, environment, idle)
        if old:
            opened._watch.catch_up()
        return opened

    @property
    def folder(self) -> str:
        """URL under which tasks may keep files."""
        return f"{self._cluster.root}/{self._tasks.files}"

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
        items = [self._item(key, call) for key, call in keyed]
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
        self._watch.add_jobs(self._cluster.launch_many([self._worker] * count))

    def shrink(self, count: int) -> None:
        if self._ledger.calm > CALM:  # while there is work, workers themselves know that they have none
            self._watch.end_jobs(count)

    def await_workers(self, count: int, timeout: float) -> None:
        self._watch.await_jobs(count, timeout)

    def drain(self) -> None:
        self._ledger.await_all()

    def detach(self) -> None:
        """End all workers; their tasks, and what came of them, stay."""
        self._stop("this driver has left the pool; attach to it")
        self._watch.forget_jobs()

    def end(self) -> None:
        self._stop("the pool was shut down before the task was done")
        self._cluster.run(lambda core: pools.remove(core, self._namespace, self._name, self._incarnation))

    def _stop(self, why: str) -> None:
        self._watch.end()
        self._ledger.fail_all(PoolClosed(why))
        self._queue.close()

    def _item(self, key: str, call: Call) -> shift.Item:
        self._upload(call.function)
        try:
            return key, _pickled_form(call.function.form), pickled((call.args, call.kwargs))
        except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
            remedy = f"they cannot be pickled ({error}); make them inside the task"
            raise InvalidInput("args", call.args, remedy) from error

    def _upload(self, function: Function) -> None:
        """Put a large function where workers find it; twice is harmless, for its name is its content's."""
        form = function.form
        if isinstance(form, str) and form not in self._uploaded:
            self._cluster.run(lambda core: core.store.put(self._tasks.object(form), function.pickled, ABSENT))
            self._uploaded.add(form)


@functools.lru_cache(maxsize=8)
def _pickled_form(form: Callable[..., Any] | bytes | str) -> bytes:
    return pickled(form)
