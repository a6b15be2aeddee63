"""The names of Zephyr that this package uses, imported from the modules that have them in each release."""

from typing import Any

from zephyr.dataset import Dataset
from zephyr.plan import Join, PhysicalPlan, PhysicalStage, Scatter, StageType, compute_plan
from zephyr.runners import InlineRunner
from zephyr.shuffle import ListShard, MemChunk

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
