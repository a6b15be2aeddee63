"""A Zephyr pipeline over many JSONL shards on a storage cluster and on file queues, against marin-fray's LocalClient.

The shards are made of the sources of the standard library. Both sides run the same release of Zephyr, two workers, each
shard in its worker's process; the cluster has two agents, and its time includes starting coordinator and workers. They
take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from harness import HERE, Helper, agents, arguments, report, say, scratch, spread

from fray import Entrypoint, JobRequest, StorageClient, StorageCluster
from fray.zephyr import FrayBackend

sys.path.insert(0, str(HERE / "peers"))
import zephyr_pipeline as pipelines

cloudpickle.register_pickle_by_value(pipelines)

WORKERS = 2
LINES = 30


def write_shards(folder: Path, shards: int, documents: int) -> int:
    """JSONL files of documents of thirty lines each; how many documents there are in all."""
    folder.mkdir()
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    lines = [line for path in sources for line in path.read_text(errors="replace").splitlines()]
    texts = ["\n".join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
    for shard in range(shards):
        with open(folder / f"part-{shard:05d}.jsonl", "w") as out:
            for number in range(documents):
                text = texts[(shard * documents + number) % len(texts)]
                out.write(json.dumps({"id": f"{shard}-{number}", "text": text}) + "\n")
    return shards * documents


def timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


class Ours:
    """The cluster's two ways to run a pipeline."""

    def __init__(self, cluster: StorageCluster) -> None:
        self.client = StorageClient(cluster)
        self._backend = FrayBackend(cluster, max_parallelism=WORKERS, memory_per_worker="1GB")

    def actors(self, dataset: Any) -> float:
        """Zephyr's own coordinator and workers, as actors."""
        with tempfile.TemporaryDirectory() as chunks:
            context = pipelines.context(self.client, WORKERS, Path(chunks))
            return timed(lambda: context.execute(dataset))

    def queue(self, dataset: Any) -> float:
        """The file-queue backend."""
        return timed(lambda: self._backend.execute(dataset))

    def first_line(self) -> float:
        """Seconds from `submit` to the callable's first line."""
        begun = time.time()
        job = self.client.submit(JobRequest("first-line", Entrypoint.from_callable(time.time)))
        line: float = self.client.cluster.result(job.job_id)
        return line - begun


def count_rows(folder: Path) -> int:
    import gzip

    return sum(len(gzip.decompress(path.read_bytes()).splitlines()) for path in folder.glob("*.jsonl.gz"))


def run(place: Path, quick: bool, peer_python: str | None) -> None:
    shards, documents, rounds, trivial = (6, 20, 1, 6) if quick else (200, 250, 2, 200)
    total = write_shards(place / "source", shards, documents)
    peer = Helper([peer_python, str(HERE / "peers" / "zephyr_pipeline.py")]) if peer_python else None
    took: dict[str, list[float]] = {"published": [], "actors": [], "queue": []}
    rows = set()
    with agents(place / "root", count=2) as _, StorageCluster(str(place / "root")) as cluster:
        ours = Ours(cluster)

        def one(kind: str, dataset: Callable[[Path], Any], *question: Any) -> float:
            with tempfile.TemporaryDirectory() as output:
                if kind != "published":
                    seconds = getattr(ours, kind)(dataset(Path(output)))
                else:
                    assert peer is not None
                    seconds = float(peer.ask(json.dumps([question[0], str(place / "source"), output, *question[1:]])))
                if question[0] == "pipeline":
                    rows.add(count_rows(Path(output)))
            say(f"{question[0]} on {kind}: {seconds:.2f} s")
            return seconds

        kinds = [kind for kind in took if kind != "published" or peer is not None]
        for _ in range(rounds):
            for kind in kinds:
                took[kind].append(one(kind, lambda out: pipelines.pipeline(place / "source", out), "pipeline", 0))
        overhead: dict[str, float] = {}
        for kind in kinds:
            few, many = (one(kind, lambda out, n=n: pipelines.trivial(n), "trivial", n) for n in (2, trivial))
            overhead[kind] = round((many - few) / (trivial - 2) * 1000, 2)
        lines = [ours.first_line() for _ in range(3 if quick else 20)]
    if peer is not None:
        peer.close()
    middle = {kind: statistics.median(seconds) for kind, seconds in took.items() if seconds}
    figures: dict[str, Any] = {
        "shards": shards,
        "documents": total,
        "rows_written": sorted(rows),
        "seconds": {kind: round(seconds, 2) for kind, seconds in middle.items()},
        "overhead_per_shard_ms": overhead,
        "submit_to_first_line": spread(lines),
        "queue_to_actors": round(middle["queue"] / middle["actors"], 2),
    }
    if "published" in middle:
        figures["actors_to_published"] = round(middle["actors"] / middle["published"], 2)
    report("pipelines", figures)


if __name__ == "__main__":
    options = arguments(__doc__ or "", peers=["peer"])
    with scratch() as directory:
        run(directory, options.quick, options.peer)
