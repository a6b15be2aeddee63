"""Ray's side of the gangs bench: a placement group of as many bundles as the line says, with an actor in each.

The answer has the seconds until all of them run, and from the death of one until all run again. Ray cannot restart a
group as one: the program notices the death, ends the other members, and starts four new ones in the same placement
group, so that Ray need not place it again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import ray
import ray_side
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

BUNDLES = 4
CALM = 2.0


@ray.remote(num_cpus=1)
class Member:
    """One replica: a process that does nothing but run."""

    def pid(self) -> int:
        return os.getpid()

    def run(self) -> None:
        while True:
            time.sleep(3600)


def started(group: PlacementGroup) -> tuple[list[Any], list[int]]:
    """Start a member in each bundle, and wait until all of them run; return them and their pids."""
    members = [
        Member.options(  # type: ignore[attr-defined]
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote()
        for number in range(BUNDLES)
    ]
    return members, ray.get([member.pid.remote() for member in members])


def end(members: list[Any]) -> None:
    for member in members:
        ray.kill(member)


def forms_and_recovers() -> dict[str, float]:
    begun = time.monotonic()
    group = placement_group([{"CPU": 1}] * BUNDLES, strategy="PACK")
    ray.get(group.ready())
    members, pids = started(group)
    formed = time.monotonic() - begun

    time.sleep(CALM)
    runs = [member.run.remote() for member in members]
    begun = time.monotonic()
    os.kill(pids[-1], signal.SIGKILL)
    ray.wait(runs, num_returns=1)
    end(members)
    members, _ = started(group)
    recovered = time.monotonic() - begun

    end(members)
    remove_placement_group(group)
    return {"formed_s": formed, "recovered_s": recovered}


def warm(head: Any) -> Callable[[str], Any]:
    forms_and_recovers()
    return lambda line: forms_and_recovers()


ray_side.serve(warm, num_cpus=BUNDLES)
