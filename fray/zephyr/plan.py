"""Executes Zephyr's plan stage by stage: makes tasks from shards, and the next stage's shards from results.

Shards are only references here (files, and small items in memory). The data is read and written where tasks run.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from zephyr.dataset import Dataset
from zephyr.plan import Join, PhysicalPlan, PhysicalStage, Scatter, StageType, compute_plan
from zephyr.runners import InlineRunner
from zephyr.shuffle import ListShard, MemChunk

from fray_layouts.errors import InvalidInput

try:
    from zephyr.stage_io import ShardTask, TaskResult, ZephyrTaskResources

    _COST = {"cost": ZephyrTaskResources(cpu=1, memory=0)}
except ImportError:  # before 0.2.2 tasks had no cost
    from zephyr.execution import ShardTask, TaskResult

    _COST = {}

__all__ = [
    "Dataset",
    "InlineRunner",
    "Join",
    "ListShard",
    "MemChunk",
    "PhysicalPlan",
    "PhysicalStage",
    "Scatter",
    "ShardTask",
    "StageType",
    "TaskResult",
    "compute_plan",
    "new_task",
]


def new_task(**fields: Any) -> ShardTask:
    """Make a shard's task. fields: the fields that both releases have."""
    return ShardTask(**fields, **_COST)


RunStage = Callable[[str, str, list[ShardTask]], list[TaskResult]]
"""Runs a stage: (name, title, tasks) -> results in order. The name is unique in the plan, the title is for people."""


def run_plan(plan: PhysicalPlan, run_stage: RunStage, prefix: str = "") -> list[ListShard]:
    """Run all stages, and return the last one's shards in order."""
    shards = _source_shards(plan.source_items)
    for number, stage in enumerate(plan.stages):
        if stage.stage_type == StageType.RESHARD:
            shards = _resharded(shards, stage.output_shards or len(shards))
        elif shards:
            shards = _run_stage(stage, shards, run_stage, f"{prefix}{number}")
    return shards


def _run_stage(stage: PhysicalStage, shards: list[ListShard], run_stage: RunStage, name: str) -> list[ListShard]:
    beside = _joined(stage, len(shards), run_stage, name)
    tasks = [
        new_task(
            shard_idx=index,
            total_shards=len(shards),
            shard=shard,
            operations=stage.operations,
            stage_name=f"stage{name}",
            aux_shards={place: right[index] for place, right in beside.items()} or None,
        )
        for index, shard in enumerate(shards)
    ]
    results = run_stage(name, stage.stage_name(), tasks)
    if any(isinstance(operation, Scatter) for operation in stage.operations):
        return _scattered(results, len(shards) if stage.output_shards is None else stage.output_shards)
    return [result.shard for result in results]


def _joined(stage: PhysicalStage, count: int, run_stage: RunStage, name: str) -> dict[int, list[ListShard]]:
    """Run the right sides of the stage's joins, and return their shards by the index of the operation."""
    right = {
        place: run_plan(operation.right_plan, run_stage, f"{name}.{place}.")
        for place, operation in enumerate(stage.operations)
        if isinstance(operation, Join) and operation.right_plan is not None
    }
    for shards in right.values():
        if len(shards) != count:
            remedy = "both sides of a join need the same number"
            raise InvalidInput("dataset", f"{count} and {len(shards)} shards", remedy)
    return right


def _source_shards(items: Iterable[Any]) -> list[ListShard]:
    by_shard: dict[int, list[Any]] = defaultdict(list)
    for item in items:
        by_shard[item.shard_idx].append(MemChunk(items=[item.data]))
    return [ListShard(refs=by_shard[index]) for index in range(max(by_shard, default=-1) + 1)]


def _resharded(shards: list[ListShard], count: int) -> list[ListShard]:
    """Distribute the chunks of all shards over `count` new ones, in turn."""
    chunks = [chunk for shard in shards for chunk in shard.refs]
    return [ListShard(refs=chunks[index::count]) for index in range(count)]


def _scattered(results: list[TaskResult], count: int) -> list[ListShard]:
    """Make new shards, each of which reads its own part of all tasks' output."""
    everything = MemChunk(items=[path for result in results for path in result.shard])
    return [ListShard(refs=[everything]) for _ in range(count)]
