"""The pipeline that both sides of the Zephyr bench run: it counts the words of real sources, line by line.

As a program, this is the peer: the published Zephyr on marin-fray's LocalClient. Each line of input is `pipeline` or
`trivial`, with the folders and the number of shards; the answer is its seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zephyr.context import ZephyrContext
from zephyr.dataset import Dataset
from zephyr.readers import load_jsonl
from zephyr.runners import InlineRunner

WORD = re.compile(r"[A-Za-z_]\w*")


def described(document: dict[str, Any]) -> dict[str, Any]:
    """The pipeline's result for a document."""
    words = WORD.findall(document["text"])
    longest = max(words, key=len, default="")
    shingles = {hashlib.md5(" ".join(words[i : i + 5]).encode()).hexdigest() for i in range(len(words))}
    return {"id": document["id"], "words": len(words), "longest": longest, "fingerprint": min(shingles, default="")}


def pipeline(source: Path, output: Path) -> Dataset:
    """The pipeline from files to files."""
    return (
        Dataset.from_files(str(source / "*.jsonl"))
        .flat_map(load_jsonl)
        .map(described)
        .filter(lambda row: row["words"] > 0)
        .write_jsonl(str(output / "out-{shard:05d}.jsonl.gz"))
    )


def trivial(shards: int) -> Dataset:
    """A pipeline of empty shards."""
    return Dataset.from_list(list(range(shards))).map(lambda item: item)


def context(client: Any, workers: int, chunks: Path) -> ZephyrContext:
    """Zephyr on any client, shards run in their worker's process."""
    return ZephyrContext(
        client=client,
        max_workers=workers,
        name="bench",
        chunk_storage_prefix=str(chunks),
        stage_runner_factory=lambda: InlineRunner(),
    )


def main() -> None:
    from fray.local_backend import LocalClient

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.INFO)  # the other side's workers do not log that much either
    print(json.dumps({"fray": sys.modules["fray"].__file__}), file=answers, flush=True)
    for line in sys.stdin:
        kind, source, output, shards = json.loads(line)
        dataset = pipeline(Path(source), Path(output)) if kind == "pipeline" else trivial(shards)
        with tempfile.TemporaryDirectory() as chunks:
            begun = time.monotonic()
            context(LocalClient(), 2, Path(chunks)).execute(dataset)
            print(json.dumps(time.monotonic() - begun), file=answers, flush=True)


if __name__ == "__main__":
    main()
