"""Tasks of a worker pool, compared with Ray's: the round trip of one, and many no-op tasks, by calls and by a queue.

Both sides have as many workers as the machine has cores, started before the first round, and take turns.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from harness import agents, arguments, ray, report, say, scratch

from fray import ResourceConfig, StorageCluster
from fray.pool import WorkerPool

WORKERS = len(os.sched_getaffinity(0))


def nothing(number: int) -> int:
    """The function of every task."""
    return number


def submitted(pool: WorkerPool, count: int) -> float:
    """Seconds from the first submission to the last result; the function is pickled each time."""
    begun = time.monotonic()
    for future in [pool.submit(nothing, number) for number in range(count)]:
        future.result()
    return time.monotonic() - begun


def mapped(pool: WorkerPool, count: int) -> float:
    """The same with one submission: the function is pickled once, as Ray does with a remote function."""
    begun = time.monotonic()
    for future in pool.map(nothing, range(count)):
        future.result()
    return time.monotonic() - begun


def one_by_one(pool: WorkerPool, count: int) -> list[float]:
    """Round trips in seconds."""
    taken = []
    for number in range(count):
        begun = time.monotonic()
        pool.submit(nothing, number).result()
        taken.append(time.monotonic() - begun)
    return taken


def run(directory: Path, quick: bool, python: str | None) -> None:
    rounds, many, few = (1, 200, 50) if quick else (5, 2000, 300)
    direct_rates, submit_rates, queue_rates, ray_rates = [], [], [], []
    direct_trips: list[float] = []
    ray_trips: list[float] = []
    small = ResourceConfig(cpu=1)
    with (
        ray("ray_tasks.py", python) as peer,
        agents(directory / "root", 1, 2 * WORKERS),
        StorageCluster(str(directory / "root")) as cluster,
    ):
        with (
            WorkerPool(cluster, WORKERS, small) as direct,
            WorkerPool(cluster, WORKERS, small, transport="queue") as queued,
        ):
            for pool in (direct, queued):
                pool.wait_for_workers()
                mapped(pool, 100)
            for number in range(rounds):
                direct_rates.append(many / mapped(direct, many))
                submit_rates.append(many / submitted(direct, many))
                direct_trips += one_by_one(direct, few)
                queue_rates.append(many / mapped(queued, many))
                if peer is not None:
                    ray_rates.append(many / peer.ask(str(many)))
                    ray_trips += peer.ask(f"1 {few}")
                say(f"round {number + 1}: direct {direct_rates[-1]:.0f}/s, queue {queue_rates[-1]:.0f}/s")
    figures: dict[str, float] = {
        "direct_tasks_per_s": round(statistics.median(direct_rates)),
        "direct_submitted_one_by_one_per_s": round(statistics.median(submit_rates)),
        "direct_round_trip_p50_us": round(statistics.median(direct_trips) * 1e6),
        "queue_tasks_per_s": round(statistics.median(queue_rates)),
        "goal_queue_tasks_per_s": 500,
        "tasks": many,
    }
    if peer is not None:
        figures |= {
            "ray_tasks_per_s": round(statistics.median(ray_rates)),
            "ray_round_trip_p50_us": round(statistics.median(ray_trips) * 1e6),
            "rate_ratio": round(statistics.median(direct_rates) / statistics.median(ray_rates), 2),
            "goal_rate_ratio": 10,
            "round_trip_ratio": round(statistics.median(direct_trips) / statistics.median(ray_trips), 3),
            "goal_round_trip_ratio": 0.25,
        }
    report("pool", figures)


if __name__ == "__main__":
    options = arguments(__doc__, peers=["ray"])
    with scratch() as place:
        run(place, options.quick, options.ray)
