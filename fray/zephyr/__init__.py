"""Runs Zephyr pipelines on file queues: every shard of a stage is an item of a queue, and workers come and go.

backend = FrayBackend(cluster, max_parallelism=100, memory_per_worker="2GB")
files = backend.execute(Dataset.from_files("gs://in/*.jsonl.gz").flat_map(load_jsonl).write_jsonl(...), name="nightly")

Zephyr itself makes the plan and runs each shard. Its package, `marin-zephyr`, is not among this package's requirements.
"""

from fray.zephyr.backend import Backend, FrayBackend
from fray.zephyr.stages import ShardGivenUp

__all__ = ["Backend", "FrayBackend", "ShardGivenUp"]
