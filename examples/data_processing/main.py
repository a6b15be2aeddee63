"""A Zephyr pipeline that lower-cases and counts documents, shard by shard, on file queues or on threads.

    python examples/data_processing/main.py --input "corpus/*.jsonl" --output counted  # needs Zephyr: docs/zephyr.md
    FRAY_CLUSTER_SPEC=gs://bucket/fray python examples/data_processing/main.py --input ... --output gs://bucket/counted

If it is killed and started again with the same --name, it continues where it was. It needs storage: on Ray, run agents
as jobs and name their root, or let Zephyr itself run the pipeline with a RayClient (docs/backends.md).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from zephyr.dataset import Dataset
from zephyr.readers import load_jsonl

from fray.zephyr import Backend


@dataclass(frozen=True)
class TransformConfig:
    """Options. memory_per_worker applies to a cluster only."""

    input_pattern: str
    output_path: str
    max_parallelism: int = 100
    memory_per_worker: str = "1GB"
    name: str | None = None


def transform_document(document: dict[str, Any]) -> dict[str, Any]:
    """Convert one document."""
    return {
        "id": document["id"],
        "text": document["text"].lower(),
        "token_count": len(document["text"].split()),
    }


def run_transform(config: TransformConfig) -> list[str]:
    """Run the pipeline; return the files that it wrote, in the order of the shards."""
    pipeline = (
        Dataset.from_files(config.input_pattern)
        .flat_map(load_jsonl)
        .map(transform_document)
        .filter(lambda document: document["token_count"] > 10)
        .write_jsonl(f"{config.output_path}/output-{{shard:05d}}.jsonl.gz")
    )
    return Backend.execute(
        pipeline, max_parallelism=config.max_parallelism, memory=config.memory_per_worker, name=config.name
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="pattern of JSONL files with id and text")
    parser.add_argument("--output", required=True, help="URL of the folder to write to")
    parser.add_argument("--name", help="of this execution")
    options = parser.parse_args()
    for file in run_transform(TransformConfig(options.input, options.output, name=options.name)):
        print(file)


if __name__ == "__main__":
    main()
