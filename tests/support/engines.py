"""What is behind a queue, of each kind, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest

from fray.queue.engine import Engine, Item, Taken
from fray.queue.files import FileEngine
from fray.queue.memory import MemoryEngine
from fray_coordinator.clock import Chance
from fray_coordinator.queue.home import open_home
from fray_layouts.queue_names import Queues
from fray_layouts.queues import QueueRecord
from tests.support.virtual import Cluster

MOST = 2
_WORLDS = count()


@dataclass
class World:
    """Queues of one kind, as a server has them."""

    cluster: Cluster
    kind: str
    made: int = 0
    number: int = field(default_factory=_WORLDS.__next__)

    async def engine(self) -> Engine:
        self.made += 1
        if self.kind == "memory":
            return MemoryEngine(self.cluster.clock, Chance(self.made), MOST)
        core = await self.cluster.core(local=self.kind == "files")
        return FileEngine(await open_home(core, Queues(f"q{self.made}/"), QueueRecord(max_deliveries=MOST)))

    def process(self, name: str) -> str:
        """The name of a process that no other test uses."""
        return f"{name} of {self.number}"


KINDS = pytest.mark.parametrize("kind", ["memory", "files", "bucket"])


async def push(engine: Engine, *bodies: str, batch: int = 1) -> None:
    await engine.push([Item(body.encode()) for body in bodies], batch)


def bodies(taken: list[Taken]) -> list[str]:
    return [one.item.body.decode() for one in taken]
