"""The two releases of Zephyr behind one set of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from zephyr import counters
    from zephyr.context import ZephyrContext
    from zephyr.dataset import Dataset
    from zephyr.readers import load_jsonl
    from zephyr.runners import InlineRunner
    from zephyr.worker_context import zephyr_worker_ctx

    NEW = True
except ImportError:
    from zephyr import Dataset, ZephyrContext, counters, load_jsonl, zephyr_worker_ctx
    from zephyr.runners import InlineRunner

    NEW = False

__all__ = ["NEW", "Dataset", "ZephyrContext", "count", "inline", "load_jsonl", "zephyr_worker_ctx"]


def inline() -> Callable[..., Any]:
    """A factory of runners that stay in the worker's process."""
    return (lambda: InlineRunner()) if NEW else (lambda workers: InlineRunner(workers))


def count(name: str) -> None:
    """Add one to a counter of the pipeline."""
    if NEW:
        counters.pipeline.update_counter(name, 1)
    else:
        counters.increment(name)
