"""Runs the stages of a pipeline as tasks of a worker pool, one task for each shard.

A task's key is `<stage>/<shards>/<shard>`. With the keys, a later driver of the same execution finds finished shards,
notices if the pipeline has changed, and runs failed shards again.
"""

import logging
from functools import lru_cache
from typing import NamedTuple

from fray.errors import JobFailed, Permanent
from fray.pool.dispatcher import TaskKillsWorkers
from fray.pool.pool_task import ObjectRef, fetch
from fray.pool.worker_pool import WorkerPool
from fray.zephyr.plan import InlineRunner, ShardTask, TaskResult
from fray_layouts.errors import InvalidInput

log = logging.getLogger("fray")

MAX_SHARD_TRIES = 3
"""Runs of a shard whose code raises: enough for a file server that fails once, and few enough for a bug."""


class ShardGivenUp(Permanent, RuntimeError):
    """A shard was given up: each worker that ran it died. Look at the workers' logs; it may need more memory."""


class Stage(NamedTuple):
    """The data that all shards of a stage share. chunks: URL under which Zephyr writes intermediate results."""

    tasks: list[ShardTask]
    chunks: str
    execution: str


class Shard(NamedTuple):
    """A shard in the form of its task's argument. A worker fetches the stage once, not once per task."""

    stage: ObjectRef
    number: int


def run_shard(shard: Shard) -> TaskResult:
    """Run a shard on a worker. If its code raises, it is tried up to `MAX_SHARD_TRIES` times."""
    stage = _stage(shard.stage)
    task = stage.tasks[shard.number]
    for _ in range(MAX_SHARD_TRIES - 1):
        try:
            return run_task(task, stage.chunks, stage.execution)
        except Exception:
            log.warning("shard %d of %s failed and is tried again", shard.number, task.stage_name, exc_info=True)
    return run_task(task, stage.chunks, stage.execution)


def run_task(task: ShardTask, chunks: str, execution: str) -> TaskResult:
    """Run a shard once, in this process. A worker already has its own process."""
    result: TaskResult = InlineRunner().execute(task, chunks, execution)[0]
    return result


@lru_cache(maxsize=2)
def _stage(ref: ObjectRef) -> Stage:
    stage: Stage = fetch(ref)
    return stage


class StageRunner:
    """Runs the stages of one execution on its pool."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def run(self, name: str, title: str, tasks: list[ShardTask]) -> list[TaskResult]:
        """See `plan.RunStage`."""
        self._check_shards(name, len(tasks))
        stage = self._pool.put(Stage(tasks, self._pool.folder, self._pool.name))
        shards = {f"{name}/{len(tasks)}/{number}": Shard(stage, number) for number in range(len(tasks))}
        futures = self._pool.map_as(run_shard, shards, retry_failed=True)
        shown = self._pool.as_completed(futures, progress=f"{self._pool.name} {name} {title}")
        failed = next((future for future in shown if future.exception() is not None), None)
        if failed is not None:
            raise self._placed(
                failed.exception(), f"shard {futures.index(failed)} of stage {name} of {self._pool.name}"
            )
        return [future.result() for future in futures]

    def _check_shards(self, stage: str, shards: int) -> None:
        """Raise InvalidInput if the stage was begun with another number of shards."""
        for key in list(self._pool.futures):
            begun, had, _ = key.split("/")
            if begun == stage and had != str(shards):
                remedy = f"stage {stage} had {had} shards when it was begun and has {shards} now; use another name"
                raise InvalidInput("name", self._pool.name, remedy)

    def _placed(self, error: BaseException | None, place: str) -> BaseException:
        """The error for the user, with the shard that it comes from."""
        assert error is not None
        if isinstance(error, TaskKillsWorkers):
            return ShardGivenUp(f"{place}: {error}")
        if not isinstance(error, JobFailed):  # a JobFailed is about workers, not about a shard
            error.add_note(f"raised in {place}")
        return error
