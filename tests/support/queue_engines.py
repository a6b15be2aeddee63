"""The engines of queues, one of each kind, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest

from fray.queue.engine import Delivery, EncodedItem, QueueEngine
from fray.queue.file_queue import FileEngine
from fray.queue.memory_queue import MemoryEngine
from fray_coordinator.clock import RandomSource
from fray_coordinator.queue.open_queue import open_queue
from fray_layouts.queue_keys import QueueKeys
from fray_layouts.queue_records import QueueRecord
from tests.support.virtual import Cluster

MOST = 2
_WORLDS = count()


@dataclass
class World:
    """Queues of one kind, on one server."""

    cluster: Cluster
    kind: str
    made: int = 0
    number: int = field(default_factory=_WORLDS.__next__)

    async def engine(self) -> QueueEngine:
        self.made += 1
        if self.kind == "memory":
            return MemoryEngine(self.cluster.clock, RandomSource(self.made), MOST)
        core = await self.cluster.core(local=self.kind == "files")
        return FileEngine(await open_queue(core, QueueKeys(f"q{self.made}/"), QueueRecord(max_deliveries=MOST)))

    def process(self, name: str) -> str:
        """A process name that no other test uses."""
        return f"{name} of {self.number}"


KINDS = pytest.mark.parametrize("kind", ["memory", "files", "bucket"])


async def push(engine: QueueEngine, *bodies: str, batch: int = 1) -> None:
    await engine.push([EncodedItem(body.encode()) for body in bodies], batch)


def bodies(taken: list[Delivery]) -> list[str]:
    return [one.item.body.decode() for one in taken]
