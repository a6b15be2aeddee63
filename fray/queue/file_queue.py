"""Queues in storage: with a root of their own, or under a name in a cluster."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

from fray import sync
from fray.queue.api import Queue
from fray.queue.async_queue import T
from fray.queue.engine import Counts, Delivery, EncodedItem, Peeked
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.per_process import PerLoop
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue import admin
from fray_coordinator.queue.cancelling import NoteCancelled
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.dead_letters import open_dead_letters
from fray_coordinator.queue.delivery import QueueNotFound
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.handout import Handout
from fray_coordinator.queue.held_segment import PoisonIsolation, isolation_of
from fray_coordinator.queue.open_queue import OpenQueue, find_queue, open_queue, open_root
from fray_coordinator.queue.producer import Producer
from fray_coordinator.store.opening import root_url
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_keys import ItemPlace, QueueKeys, SegmentName
from fray_layouts.queue_records import QueueRecord
from fray_layouts.spec_parsing import check_namespace
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable

REDRIVE_BATCH = 100
"""Dead letters that are pushed again in one step. A crash in between pushes at most so many twice."""


class FileQueue(Queue[T]):
    """A queue in a bucket or a folder. It pickles as its address; each process opens it for itself.

    Args:
        path: `gs://`, `s3://`, `file://`, `memory://` or a plain path: a root that has only this queue, or with `name`
            a cluster's root.
        fs_args: accepted for programs written for other libraries. Credentials come from the environment, so it must be
            empty.
        name: the queue's name in the cluster: letters, digits, '-' and '_'.
        namespace: the namespace of the name; by default that of the job that this code runs in, else "default".
        encoding: "pickle", or "json" for consumers in other languages.
        max_deliveries: failures after which an item becomes a dead letter; 0 for never. The value of the program that
            creates the queue counts.
        durable: True takes each item only when it is asked for, and `done` returns when its acknowledgement is stored.
            By default a quick process takes items in advance, and acknowledgements of single leases are stored
            together: within 20 ms (on a bucket one second), at the next `pop` that finds nothing, and at `close`. If
            the process dies before that, those items are delivered again.
        incarnation: opens only this incarnation of the name, counted from 1, or raises QueueNotFound. By default it is
            the queue that has the name now, which is created if there is none.

    Raises:
        InvalidInput: an argument is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fs_args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        namespace: str | None = None,
        encoding: str = "pickle",
        max_deliveries: int = QueueRecord().max_deliveries,
        durable: bool = False,
        incarnation: int | None = None,
    ) -> None:
        if fs_args:
            raise InvalidInput("fs_args", fs_args, "leave it out; credentials come from the environment")
        maximum = rules.checked_maximum(max_deliveries)
        self._address = QueueAddress.checked(os.fspath(path), name, namespace, maximum, incarnation, durable)
        super().__init__(PerLoop(self._open), encoding)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), {**asdict(self._address), "name": self._address.name or None}, self._encoding)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address})"

    async def _open(self) -> FileEngine:
        engine = await FileEngine.open(self._address)
        _open_queues.add(self)
        return engine


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """The address of a queue. If `name` is "", the root has only this queue."""

    root: str
    name: str
    namespace: str
    max_deliveries: int
    incarnation: int | None = None
    durable: bool = False

    @staticmethod
    def checked(
        path: str,
        name: str | None,
        namespace: str | None,
        max_deliveries: int,
        incarnation: int | None = None,
        durable: bool = False,
    ) -> QueueAddress:
        root = root_url(path)
        if name is None:
            return QueueAddress(root, "", "", max_deliveries, durable=durable)
        space = namespace or read_variable("FRAY_NAMESPACE", task_environ()) or "default"
        check_namespace(space)
        return QueueAddress(root, QueueKeys.checked(name), space, max_deliveries, incarnation, durable)

    async def open(self, create: bool = True) -> OpenQueue:
        """Open the storage and the queue. Raises QueueNotFound if it does not exist and `create` is False."""
        core = await open_root(self.root, named=bool(self.name))
        try:
            if create and self.incarnation is None:
                wanted = QueueRecord(max_deliveries=self.max_deliveries)
                return await open_queue(core, await self._taken(core), wanted)
            keys = await self._found(core)
            queue = await find_queue(core, keys) if keys else None
            if queue is None:
                raise QueueNotFound(f"{self}: {QueueNotFound.__doc__}")
            return queue
        except BaseException:
            await core.store.close()
            raise

    async def _taken(self, core: Core) -> QueueKeys:
        if not self.name:
            return QueueKeys()
        record = await naming.take_name(core, self.namespace, "queue", self.name, "", exist_ok=True)
        return QueueKeys.of(self.namespace, self.name, record.incarnation)

    async def _found(self, core: Core) -> QueueKeys | None:
        if not self.name:
            return QueueKeys()
        record = await naming.read_held(core, self.namespace, "queue", self.name)
        if record is None or self.incarnation not in (None, record.incarnation):
            return None
        return QueueKeys.of(self.namespace, self.name, record.incarnation)

    def __str__(self) -> str:
        named = f", name={self.name!r}, namespace={self.namespace!r}" if self.name else ""
        return f"{self.root!r}{named}"


class FileEngine:
    """A `QueueEngine` on storage. durable: see `FileQueue`."""

    def __init__(self, queue: OpenQueue, durable: bool = False) -> None:
        self.queue = queue
        self._doorbell = QueueDoorbell(queue)
        self._producer = Producer(queue, self._doorbell)
        self._consumer = Consumer(queue, self._doorbell)
        self._handout = Handout(queue, self._consumer, isolation_of(""), durable)

    @staticmethod
    async def open(address: QueueAddress, create: bool = True) -> FileEngine:
        """Open the engine of a queue. Raises like `QueueAddress.open`."""
        return FileEngine(await address.open(create), address.durable)

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        await self._push(items, batch)

    async def push_placed(self, items: Sequence[EncodedItem], batch: int | None) -> list[ItemPlace]:
        """Like `push`; returns the places of the items, by which `cancel` finds them."""
        return [place for name in await self._push(items, batch) for place in name.places()]

    async def _push(self, items: Sequence[EncodedItem], batch: int | None) -> list[SegmentName]:
        names = await self._producer.push(items, batch)
        self._consumer.pushed()
        return names

    async def cancel(self, places: Iterable[ItemPlace], note: NoteCancelled) -> set[ItemPlace]:
        """Cancel the items that nobody has; see `ItemCanceller.cancel`."""
        return await self._consumer.cancel(places, note)

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None] | None:
        rest = self._producer.push_now(item)
        self._consumer.pushed()
        return rest

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        if not process:
            return await self._handout.refill(count, timeout, wait)
        await self._handout.settle()
        return await self._consumer.take(count, timeout, isolation_of(process), wait)

    def take_now(self, timeout: float) -> Delivery | None:
        return self._handout.pop(timeout)

    def done_now(self, lease: str) -> bool:
        return self._handout.done(lease)

    async def done(self, leases: Sequence[str]) -> None:
        await self._handout.flush()
        self._handout.forget(leases)
        await self._consumer.done(leases)

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        await self._handout.settle()
        self._handout.forget(leases)
        await self._consumer.release(leases, failed)

    async def extend(self, lease: str, timeout: float) -> float:
        await self._handout.flush()
        return await self._consumer.extend(lease, timeout)

    async def give_up(self, lease: str, reason: str) -> None:
        self._handout.forget([lease])
        await self._consumer.give_up(lease, reason)

    async def counts(self) -> Counts:
        await self._handout.settle()
        await self._consumer.clear()
        return await admin.count_items(self.queue, self._consumer.held)

    async def peek(self, limit: int) -> list[Peeked]:
        await self._handout.settle()
        return await admin.peek_items(self.queue, self._consumer.held, limit)

    async def letters(self, limit: int) -> list[Peeked]:
        return await admin.peek_items(await open_dead_letters(self.queue), {}, limit)

    async def dead_counts(self) -> Counts:
        """Like `counts`, for the dead letters."""
        return await admin.count_items(await open_dead_letters(self.queue), {})

    async def purge(self) -> int:
        await self._handout.settle()
        await self._consumer.clear()
        purged = await admin.purge_items(self.queue)
        self._consumer.forget(purged)
        self._handout.purged()
        return sum(purged.values())

    async def redrive(self, limit: int | None) -> int:
        """Push dead letters again, and return their number. Each is pushed first and then removed from the letters."""
        dead = await open_dead_letters(self.queue)
        consumer, isolation = Consumer(dead, QueueDoorbell(dead)), PoisonIsolation()
        moved = 0
        try:
            while letters := await consumer.take(
                REDRIVE_BATCH if limit is None else min(REDRIVE_BATCH, limit - moved), 60.0, isolation
            ):
                await self._producer.push([letter.item for letter in letters])
                self._consumer.pushed()
                await consumer.done([letter.id for letter in letters])
                moved += len(letters)
        finally:
            await consumer.close()
        return moved

    async def close(self) -> None:
        async with AsyncExitStack() as stack:  # each is closed, also if another one raises
            stack.push_async_callback(self.queue.core.store.close)
            stack.push_async_callback(self._consumer.close)
            stack.push_async_callback(self._handout.close)


def _reopened(kind: type[FileQueue[T]], address: dict[str, Any], encoding: str) -> FileQueue[T]:
    return kind(address.pop("root"), encoding=encoding, **address)


_open_queues: WeakSet[FileQueue[Any]] = WeakSet()


def _close_all() -> None:
    for queue in list(_open_queues):
        queue.close()


sync.at_exit(_close_all)
