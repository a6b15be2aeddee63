"""Processes that use one queue, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import Delivery, EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_coordinator.queue.open_queue import OpenQueue, open_queue
from fray_coordinator.queue.producer import Producer
from fray_layouts.queue_keys import QueueKeys
from fray_layouts.queue_records import QueueRecord
from tests.support.virtual import Cluster

NAMES = QueueKeys("q/")


@dataclass
class QueueProcess:
    """A process that uses the queue."""

    queue: OpenQueue
    producer: Producer
    consumer: Consumer
    isolation: PoisonIsolation

    async def push(self, *bodies: str, batch: int | None = None) -> None:
        await self.producer.push([EncodedItem(body.encode()) for body in bodies], batch)

    async def take(self, number: int = 1, timeout: float = 60.0, wait: float = 0.0) -> list[Delivery]:
        return await self.consumer.take(number, timeout, self.isolation, wait)

    async def bodies(self, number: int = 1, timeout: float = 60.0, wait: float = 0.0) -> list[str]:
        return [delivery.item.body.decode() for delivery in await self.take(number, timeout, wait)]


async def queue_process(
    cluster: Cluster, local: bool = False, core: Core | None = None, keys: QueueKeys = NAMES
) -> QueueProcess:
    core = core or await cluster.core(local)
    queue = await open_queue(core, keys, QueueRecord(max_deliveries=2))
    bell = QueueDoorbell(queue)
    return QueueProcess(queue, Producer(queue, bell), Consumer(queue, bell), PoisonIsolation())
