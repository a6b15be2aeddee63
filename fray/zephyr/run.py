"""One execution of a pipeline: where its parts lie, and the journal that lets a later driver go on with it.

The queue's name is the execution's: as long as it is held, whoever executes under that name goes on with what is there.
Results are outcomes as those of a worker pool. A stage without an entry of its own was not pushed completely.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

from fray.cluster.storage import StorageCluster
from fray.errors import Permanent
from fray.queue import FileQueue
from fray_coordinator import naming, outcomes
from fray_coordinator.core import Core, each
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_names import Queues, Tasks
from fray_layouts.tasks import Outcome

ATTEMPTS = 3
"""Deliveries of a shard whose own code raises, or whose workers die."""


class ShardGivenUp(Permanent, RuntimeError):
    """A shard was given up: each worker that ran it died. Look at the workers' logs; it may need more memory."""


class Shard(NamedTuple):
    """An item of the queue.

    Attributes:
        tasks: key of the object that holds the stage's tasks.
        driver: token of the driver that pushed it.
    """

    stage: str
    number: int
    tasks: str
    driver: str


@dataclass(frozen=True, slots=True)
class Run:
    """An execution, as its driver and its workers know it."""

    root: str
    namespace: str
    name: str
    incarnation: int

    @property
    def tasks(self) -> Tasks:
        return Tasks.of(self.namespace, self.name, self.incarnation)

    @property
    def chunks(self) -> str:
        """URL under which Zephyr writes what goes from stage to stage."""
        return f"{self.root}/{self.tasks.prefix}chunks"

    def queue(self) -> FileQueue[Shard]:
        return FileQueue(self.root, name=self.name, namespace=self.namespace, max_deliveries=ATTEMPTS)


def open_run(cluster: StorageCluster, namespace: str, name: str) -> Run:
    """The execution that has the name, or a new one."""
    record = cluster.run(lambda core: naming.take(core, namespace, "queue", name, "", exist_ok=True))
    return Run(cluster.root, namespace, name, record.incarnation)


async def close_run(core: Core, run: Run) -> None:
    """Give the name up, then remove what the store holds of this execution: its incarnation is never used again."""
    await naming.free(core, run.namespace, "queue", run.name, run.incarnation)
    queue = Queues.of(run.namespace, run.name, run.incarnation)
    for prefix in (run.tasks.outcomes, run.tasks.object(""), queue.prefix):
        await each([row.key for row in await core.store.list(prefix)], core.store.delete)


class Journal:
    """What is known of the shards: `results` by stage, then by number."""

    def __init__(self, core: Core, run: Run) -> None:
        self._core = core
        self._run = run
        self._reader = outcomes.Reader(core, run.tasks)
        self._pushed: dict[str, int] = {}
        self._errors: dict[str, dict[int, bytes]] = {}
        self.results: dict[str, dict[int, Any]] = {}

    async def look(self) -> bool:
        """Read what came since the last look; whether there was anything."""
        fresh = await self._reader.look()
        for outcome in fresh:
            stage, _, shard = outcome.task.partition("/")
            if outcome.kind == "end":
                self._pushed[stage] = outcome.number
            elif outcome.kind == "error":
                self._errors.setdefault(stage, {})[int(shard)] = outcome.data
            else:
                self.results.setdefault(stage, {}).setdefault(int(shard), pickle.loads(outcome.data))
        return bool(fresh)

    def left_of(self, stage: str, count: int) -> list[int]:
        """The shards that must be pushed before all of them will have been run, or will be.

        Raises:
            InvalidInput: an earlier driver had another number of shards.
        """
        pushed = self._pushed.get(stage)
        if pushed not in (None, count):
            remedy = f"stage {stage} had {pushed} shards when it was begun and has {count} now; use another name"
            raise InvalidInput("name", self._run.name, remedy)
        failed = self._errors.pop(stage, {})
        done = self.results.get(stage, {})
        return [shard for shard in range(count) if shard not in done and (pushed is None or shard in failed)]

    async def pushed(self, stage: str, count: int) -> None:
        """All of the stage's shards are in the queue."""
        await outcomes.write(self._core, self._run.tasks, [Outcome(stage, "end", count)])

    def given_up(self, shard: Shard) -> None:
        """An earlier driver's shard is not in the queue any more; it must be pushed again."""
        self._errors.setdefault(shard.stage, {})[shard.number] = b""

    def error(self, stage: str) -> BaseException | None:
        """What a shard's own code raised, if any did."""
        for shard, data in self._errors.get(stage, {}).items():
            error: BaseException = pickle.loads(data)
            error.add_note(f"raised in shard {shard} of stage {stage} of {self._run.name}")
            return error
        return None
