"""Queues: items a second beside peers on local files, the cost of a pop as the backlog grows, dollars on a bucket.

One producer pushes, then one consumer takes and acknowledges. The peers do the same, item by item, in the same folder
and in turns with Fray: in memory, which shows the work, and on a disk, which also shows the syncs (huey's SQLite syncs
its log at each transaction by default). FRAY_BENCH_FOLDER is a folder on the disk to measure.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import HERE, Helper, arguments, report, say
from benchmarks.peers.queues import MESSAGE
from fray import sync
from fray.queue import FileQueue
from fray_coordinator.store.metering import GCS_PRICES, RequestCounts
from tests.support import servers

PEERS = ("huey-sqlite", "huey-sqlite-synced", "huey-file", "persist-queue-sqlite", "persist-queue-file", "naive")
SQS_MILLION = 0.40
"""Dollars for a million requests, standard queue, list price; a message needs three: send, receive, delete."""


def batched(folder: Path, items: int) -> dict[str, float]:
    """Push segments of 250 items; take and acknowledge a segment at a time."""
    with FileQueue[Any](folder) as queue:
        begun = time.perf_counter()
        queue.push_many([MESSAGE] * items, batch=250)
        produced = time.perf_counter()
        while leases := queue.pop_many(250):
            queue.done(leases)
        return rates(items, produced - begun, time.perf_counter() - produced)


def alone(folder: Path, items: int) -> dict[str, float]:
    """Push, take and acknowledge each item by itself."""
    with FileQueue[Any](folder) as queue:
        queue.size()
        begun = time.perf_counter()
        for _ in range(items):
            queue.push(MESSAGE)
        produced = time.perf_counter()
        for lease in queue:
            queue.done(lease)
        return rates(items, produced - begun, time.perf_counter() - produced)


def bare(folder: Path, items: int) -> dict[str, float]:
    """Only the system calls of one item at a time: no event loop, no lock, no decision.

    To push, link a segment into place; to take, link a lease into place and read the segment; to acknowledge, read the
    lease and replace it. Sync file and folder as the store does.
    """
    body, inside = bytes(300), os.open(folder, os.O_RDONLY)

    def place(name: str, put: Callable[[str, str], None]) -> None:
        handle = os.open(folder / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(handle, body)
        os.fsync(handle)
        os.close(handle)
        put(str(folder / "new"), name)
        os.fsync(inside)

    def create(name: str) -> None:
        place(name, os.link)
        os.unlink(folder / "new")

    begun = time.perf_counter()
    for number in range(items):
        create(f"{folder}/{number}")
    produced = time.perf_counter()
    for number in range(items):
        create(f"{folder}/{number}~lease")
        Path(f"{folder}/{number}").read_bytes()
        Path(f"{folder}/{number}~lease").read_bytes()
        place(f"{folder}/{number}~lease", os.replace)
    os.close(inside)
    return rates(items, produced - begun, time.perf_counter() - produced)


def rates(items: int, produce: float, consume: float) -> dict[str, float]:
    return {"produce_per_second": round(items / produce), "consume_per_second": round(items / consume)}


def pop_cost(folder: Path, backlog: int, batch: int, times: int) -> float:
    """Median microseconds to take and acknowledge an item, in batches, while the queue has `backlog` items."""
    with FileQueue[Any](folder) as queue:
        queue.push_many([MESSAGE] * backlog, batch=batch)
        queue.done(queue.pop_many(batch))
        seconds = []
        for _ in range(times):
            begun = time.perf_counter()
            queue.done(queue.pop_many(batch))
            seconds.append(time.perf_counter() - begun)
            queue.push_many([MESSAGE] * batch, batch=batch)
        return round(statistics.median(seconds) / batch * 1e6, 1)


def dollars(items: int) -> dict[str, float]:
    """Dollars of a million items on GCS, at list price, from the requests that an emulator counted."""
    figures = {"sqs_alone": 3 * SQS_MILLION, "sqs_batched_by_10": 0.3 * SQS_MILLION}
    with servers.gcs_emulator() as server:
        os.environ.update(server.environment)
        for name, batch in (("alone", 1), ("segments_of_250", 250)):
            with FileQueue[int](f"{server.root}/{name}") as queue:
                before = usage(queue)
                queue.push_many(range(items), batch=batch)
                if batch == 1:
                    for lease in queue:
                        queue.done(lease)
                while leases := queue.pop_many(batch):
                    queue.done(leases)
                queue.counts()  # writes the noted acknowledgements
                spent = usage(queue) - before
            figures[f"gcs_{name}"] = round(spent.cost(GCS_PRICES) / items * 1e6, 3)
            figures[f"requests_per_item_{name}"] = round((spent.class_a + spent.class_b) / items, 3)
    return figures


def usage(queue: FileQueue[Any]) -> RequestCounts:
    async def read() -> RequestCounts:
        engine: Any = await queue._engine.get()
        counted: RequestCounts = engine.queue.core.store.usage.snapshot()
        return counted

    return sync.run(read())


class Bench:
    """Fresh folders, and the peers in their own environment if there is one."""

    def __init__(self, folder: Path, memory: Path, python: str | None) -> None:
        self._places = {"disk": folder, "memory": memory}
        self._number = 0
        self._peers = Helper([python, str(HERE / "peers" / "queues.py")]) if python else None

    def fresh(self, place: str = "disk") -> Path:
        self._number += 1
        folder = self._places[place] / str(self._number)
        folder.mkdir()
        return folder

    def peer(self, name: str, place: str, count: int) -> tuple[float, float]:
        assert self._peers is not None
        wanted = {"peer": name, "folder": str(self.fresh(place)), "count": count, "consume": count}
        produced, consumed = self._peers.ask(json.dumps(wanted))
        return produced, consumed

    def item_by_item(self, place: str, items: int, rounds: int) -> dict[str, Any]:
        ours, calls = [alone(self.fresh(place), items)], []
        theirs: dict[str, list[dict[str, float]]] = {name: [] for name in PEERS if self._peers}
        for number in range(rounds):
            ours.append(alone(self.fresh(place), items))
            calls.append(bare(self.fresh(place), items))
            for name in theirs:
                theirs[name].append(rates(items, *self.peer(name, place, items)))
            say(f"{place}, round {number + 1}: {ours[-1]}, { ({name: told[-1] for name, told in theirs.items()}) }")
        sides = {"fray": median(ours[1:]), "the_system_calls_alone": median(calls)}
        return {**sides, **{name: median(told) for name, told in theirs.items()}}

    def ratios(self, sides: dict[str, dict[str, float]]) -> dict[str, float]:
        """The goals: push half as fast as the bare calls, and consume as fast as huey's SQLite."""
        bare = sides["the_system_calls_alone"]
        ratios = {
            "produce_to_system_calls": sides["fray"]["produce_per_second"] / bare["produce_per_second"],
            "consume_to_system_calls": sides["fray"]["consume_per_second"] / bare["consume_per_second"],
        }
        if huey := sides.get(PEERS[0]):
            ratios["consume_to_huey_sqlite"] = sides["fray"]["consume_per_second"] / huey["consume_per_second"]
        return {name: round(ratio, 2) for name, ratio in ratios.items()}

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def run(bench: Bench, quick: bool) -> None:
    rounds = 1 if quick else 3
    large = median([batched(bench.fresh(), 2_000 if quick else 50_000) for _ in range(rounds)])
    say(f"batched: {large}")
    single = {place: bench.item_by_item(place, 20 if quick else 2_000, rounds) for place in ("memory", "disk")}
    sizes = (1_000, 5_000) if quick else (1_000, 1_000_000)
    costs = [pop_cost(bench.fresh(), size, 250, 5 if quick else 100) for size in sizes]
    say(f"a pop with {sizes} items: {costs} us")
    singles = (20, 40) if quick else (1_000, 20_000)
    alone_costs = [pop_cost(bench.fresh(), size, 1, 10 if quick else 500) for size in singles]
    say(f"a pop alone with {singles} items: {alone_costs} us")
    figures: dict[str, Any] = {
        "batched": large,
        "goal_batched": {"produce_per_second": 50_000, "consume_per_second": 20_000},
        "item_by_item": single,
        "item_by_item_ratios": {place: bench.ratios(sides) for place, sides in single.items()},
        "goal_item_by_item": {"produce_to_system_calls": 0.5, "consume_to_huey_sqlite": 1.0},
        "pop_us_by_backlog": dict(zip(map(str, sizes), costs, strict=True)),
        "pop_ratio": round(costs[1] / costs[0], 2),
        "pop_alone_us_by_backlog": dict(zip(map(str, singles), alone_costs, strict=True)),
        "pop_alone_ratio": round(alone_costs[1] / alone_costs[0], 2),
        "goal_ratio": 1.3,
        "dollars_per_million": dollars(100 if quick else 1_000),
    }
    report("queues", figures)


if __name__ == "__main__":
    sys.argv[0] = "queues"
    options = arguments(__doc__, peers=["peers"])
    folder = partial(tempfile.TemporaryDirectory, prefix="fray-bench-")
    with folder(dir=os.environ.get("FRAY_BENCH_FOLDER")) as disk, folder(dir="/dev/shm") as memory:
        with contextlib.closing(Bench(Path(disk), Path(memory), options.peers)) as bench:
            run(bench, options.quick)
