"""Processes that use one queue, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.queue.bell import Bell
from fray_coordinator.queue.consume import Consumer, Delivery
from fray_coordinator.queue.gate import Gate
from fray_coordinator.queue.home import Home, open_home
from fray_coordinator.queue.push import Item, Producer
from fray_layouts.queue_names import Queues
from fray_layouts.queues import QueueRecord
from tests.support.virtual import Cluster

NAMES = Queues("q/")


@dataclass
class Hand:
    """A process that uses the queue."""

    home: Home
    producer: Producer
    consumer: Consumer
    gate: Gate

    async def push(self, *bodies: str, batch: int | None = None) -> None:
        await self.producer.push([Item(body.encode()) for body in bodies], batch)

    async def take(self, number: int = 1, timeout: float = 60.0, wait: float = 0.0) -> list[Delivery]:
        return await self.consumer.take(number, timeout, self.gate, wait)

    async def bodies(self, number: int = 1, timeout: float = 60.0, wait: float = 0.0) -> list[str]:
        return [delivery.body.decode() for delivery in await self.take(number, timeout, wait)]


async def hand(cluster: Cluster, local: bool = False, core: Core | None = None) -> Hand:
    core = core or await cluster.core(local)
    home = await open_home(core, NAMES, QueueRecord(max_deliveries=2))
    bell = Bell(home)
    return Hand(home, Producer(home, bell), Consumer(home, bell), Gate())
