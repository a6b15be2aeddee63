"""The jobs: a controller that splits the library and launches one job for each shard, and the reduction.

The cluster stores a job's result only when its attempt succeeds. An attempt that is killed leaves nothing behind, so a
shard that runs twice counts once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from measure import DoesNotParse, Module, Source, measure, sources
from plot import draw
from ranking import Ranking, rank

from fray import Entrypoint, JobId, JobRequest, ResourceConfig
from fray.cluster import storage_cluster
from fray_coordinator.store.metering import RequestCounts

CONTROLLER = ResourceConfig.with_cpu(0.1)
SHARD = ResourceConfig.with_cpu(0.9)
"""Two shards and the controller fit on an agent of two cores."""


@dataclass(frozen=True)
class Measured:
    """The result of one shard: modules, and for each of the other files why it does not parse."""

    modules: list[Module]
    unparsed: dict[str, str]


@dataclass(frozen=True)
class Survey:
    """The result of the controller. Times are in seconds; `reduction` is the job whose result is the answer."""

    files: int
    split_seconds: float
    shards_seconds: float
    reduction: JobId
    requests: RequestCounts


@dataclass(frozen=True)
class Reduced:
    """The answer: the ranking and its plot, a PNG."""

    ranking: Ranking
    picture: bytes
    requests: RequestCounts


def survey(shards: int, files: int | None) -> Survey:
    """The controller: measure the library's `files` largest files, or all, in `shards` shards; reduce the results."""
    cluster = storage_cluster()
    begun = time.monotonic()
    chosen = sorted(sources(), key=lambda source: source.size, reverse=True)[:files]
    parts = split(chosen, shards)
    launched = time.monotonic()
    jobs = cluster.launch_many(
        [
            JobRequest(f"shard-{number:02d}", Entrypoint.from_callable(measure_shard, args=(part,)), SHARD)
            for number, part in enumerate(parts)
        ]
    )
    cluster.wait(jobs, raise_on_failure=True)
    measured = time.monotonic()
    reduction = cluster.launch(JobRequest("reduce", Entrypoint.from_callable(reduce, args=(jobs,)), SHARD))
    cluster.wait(reduction, raise_on_failure=True)
    return Survey(len(chosen), launched - begun, measured - launched, reduction, cluster.requests())


def split(files: Sequence[Source], shards: int) -> list[list[str]]:
    """Split paths into shards of about equal size: each file, the largest first, goes to the smallest shard so far."""
    parts: list[list[str]] = [[] for _ in range(min(shards, len(files)))]
    sizes = [0] * len(parts)
    for file in files:
        smallest = sizes.index(min(sizes))
        parts[smallest].append(file.path)
        sizes[smallest] += file.size
    return parts


def measure_shard(paths: list[str]) -> Measured:
    """Measure some files, and name those that do not parse."""
    found = Measured([], {})
    for path in paths:
        try:
            found.modules.append(measure(path))
        except DoesNotParse as error:
            found.unparsed[path] = str(error)
    return found


def reduce(shards: list[JobId]) -> Reduced:
    """Combine the results of the shards."""
    cluster = storage_cluster()
    results: list[Measured] = [cluster.result(job) for job in shards]
    modules = [module for result in results for module in result.modules]
    unparsed = {path: why for result in results for path, why in result.unparsed.items()}
    ranking = rank(modules, unparsed)
    return Reduced(ranking, draw(ranking), cluster.requests())
