"""One program for every backend: a gang, an actor and tasks estimate pi from random points.

    python examples/one_program/main.py                                       # on threads
    FRAY_CLUSTER_SPEC=gs://bucket/fray python examples/one_program/main.py    # on the agents of that cluster
    FRAY_CLUSTER_SPEC=ray:auto python examples/one_program/main.py            # on Ray: docs/backends.md

Nothing in it says where it runs.
"""

from __future__ import annotations

import random
from typing import Any

from fray import ActorHandle, Entrypoint, JobRequest, ResourceConfig, current_client
from fray.cluster import current_replica
from fray.job import create_job_ctx

POINTS, REPLICAS, TASKS = 20_000, 2, 4


class Tally:
    """An actor that adds up numbers."""

    def __init__(self) -> None:
        self.inside = self.all = 0

    def add(self, inside: int, of: int) -> None:
        self.inside += inside
        self.all += of

    def points(self) -> int:
        return self.all

    def pi(self) -> float:
        return 4 * self.inside / self.all


def draw(seed: int) -> int:
    """How many random points of the unit square are within the circle."""
    chance = random.Random(seed)
    return sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(POINTS))


def draw_and_tell(tally: ActorHandle[Any]) -> None:
    """The function of each replica of the gang."""
    tally.add(draw(current_replica().index), POINTS)


def main() -> None:
    client = current_client()
    with client.create_actor(Tally, name="tally") as tally:
        gang = Entrypoint.from_callable(draw_and_tell, (tally,))
        client.submit(JobRequest("draw", gang, ResourceConfig(cpu=0.5), replicas=REPLICAS)).wait()
        print(f"a gang of {REPLICAS} has drawn {tally.points()} points", flush=True)
        with create_job_ctx("auto", max_workers=TASKS, num_cpus=0.5) as tasks:
            for inside in tasks.get([tasks.run(draw, REPLICAS + number) for number in range(TASKS)]):
                tally.add(inside, POINTS)
        print(f"with {TASKS} tasks it is {tally.points()}; pi is about {tally.pi():.2f}")


if __name__ == "__main__":
    main()
