"""Zephyr pipelines on file queues: every shard of a stage is an item of a queue, and workers come and go.

backend = FrayBackend(cluster, max_parallelism=100, memory_per_worker="2GB")
files = backend.execute(Dataset.from_files("gs://in/*.jsonl.gz").flat_map(load_jsonl).write_jsonl(...), name="nightly")

Zephyr itself (`marin-zephyr`, which is not among this package's requirements) makes the plan and runs each shard.
"""

from fray.zephyr.backend import Backend, FrayBackend
from fray.zephyr.stages import ShardGivenUp

__all__ = ["Backend", "FrayBackend", "ShardGivenUp"]
