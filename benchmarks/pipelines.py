"""A Zephyr pipeline over many JSONL shards, on a cluster and on file queues; the peer is marin-fray's LocalClient.

The shards are made from the sources of the standard library. Both sides run the same release of Zephyr with two
workers, and each shard in its worker's process. The cluster has two agents, and its time includes the start of the
coordinator and the workers. The sides take turns.
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
    """Write JSONL files with documents of thirty lines each; return the number of documents."""
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


class Bench:
    """The three ways in turns, over shards of one size; `rows` is how many each pipeline wrote, always the same."""

    def __init__(self, ours: Ours, peer: Helper | None) -> None:
        self._ours = ours
        self._peer = peer
        self.kinds = ["actors", "queue"] if peer is None else ["published", "actors", "queue"]
        self.rows: set[int] = set()

    def pipeline(self, source: Path, rounds: int) -> dict[str, float]:
        """Median seconds of each way."""
        took: dict[str, list[float]] = {kind: [] for kind in self.kinds}
        for _ in range(rounds):
            for kind in self.kinds:
                with tempfile.TemporaryDirectory() as output:
                    took[kind].append(self._one(kind, "pipeline", source, Path(output), 0))
                    self.rows.add(count_rows(Path(output)))
        return {kind: round(statistics.median(seconds), 2) for kind, seconds in took.items()}

    def overhead(self, shards: int) -> dict[str, float]:
        """Milliseconds of an empty shard, and seconds of a pipeline with two of them."""
        figures = {}
        for kind in self.kinds:
            few, many = (self._one(kind, "trivial", Path(), Path(), number) for number in (2, shards))
            figures[f"{kind}_ms_a_shard"] = round((many - few) / (shards - 2) * 1000, 2)
            figures[f"{kind}_seconds_of_two_shards"] = round(few, 2)
        return figures

    def _one(self, kind: str, what: str, source: Path, output: Path, shards: int) -> float:
        if kind == "published":
            assert self._peer is not None
            seconds = float(self._peer.ask(json.dumps([what, str(source), str(output), shards])))
        else:
            dataset = pipelines.pipeline(source, output) if what == "pipeline" else pipelines.trivial(shards)
            seconds = getattr(self._ours, kind)(dataset)
        say(f"{what} on {kind}: {seconds:.2f} s")
        return seconds


def run(place: Path, quick: bool, peer_python: str | None) -> None:
    shards, sizes, rounds = (6, [20], 1) if quick else (200, [250, 1000], 3)
    figures: dict[str, Any] = {"shards": shards}
    peer = Helper([peer_python, str(HERE / "peers" / "zephyr_pipeline.py")]) if peer_python else None
    with agents(place / "root", count=2) as _, StorageCluster(str(place / "root")) as cluster:
        ours = Ours(cluster)
        for size in sizes:
            documents = write_shards(place / f"source-{size}", shards, size)
            bench = Bench(ours, peer)
            took = bench.pipeline(place / f"source-{size}", rounds)
            ratios = {"queue_to_actors": round(took["queue"] / took["actors"], 2)}
            if peer is not None:
                ratios["actors_to_published"] = round(took["actors"] / took["published"], 2)
            figures[f"documents_{documents}"] = {"rows_written": sorted(bench.rows), "seconds": took, **ratios}
        figures["overhead"] = Bench(ours, peer).overhead(shards)
        figures["submit_to_first_line"] = spread([ours.first_line() for _ in range(3 if quick else 20)])
    if peer is not None:
        peer.close()
    report("pipelines", figures)


if __name__ == "__main__":
    options = arguments(__doc__ or "", peers=["peer"])
    with scratch() as directory:
        run(directory, options.quick, options.peer)
