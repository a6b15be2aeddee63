"""The time to create an actor and get its first answer, compared with Ray: on a private cluster, and through storage.

Each side creates one actor of a class that is pickled by value, on a cluster that already runs. The sides take turns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from harness import agents, arguments, ray, report, scratch, spread

from fray import LocalCluster, ResourceConfig, StorageCluster
from fray.actor import idempotent
from fray.client import StorageClient


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    @idempotent
    def pid(self) -> int:
        return os.getpid()


NOTHING = ResourceConfig(cpu=0, ram=0, disk=0)
GOALS = {"local_ratio": 0.1, "storage_ratio": 0.3, "answer_after_crash_s": 2.0}


def create_and_call(cluster: StorageCluster) -> float:
    """Seconds from the creation to the answer of the first call; deletes the actor afterwards."""
    begun = time.monotonic()
    group = StorageClient(cluster).create_actor_group(Counter, name="counter", count=1, resources=NOTHING)
    if group.handles[0].add() != 1:
        raise RuntimeError("not a new actor")
    taken = time.monotonic() - begun
    group.shutdown()
    for job in group.jobs:
        job.wait(raise_on_failure=False)
    return taken


def answer_after_crash(cluster: StorageCluster) -> float:
    """Seconds from the kill of an actor's process to an answer of the next one."""
    group = StorageClient(cluster).create_actor_group(Counter, name="counter", count=1, resources=NOTHING)
    (handle,) = group.handles
    pid = handle.pid()
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while handle.pid() == pid:  # the killed process may answer once more
        pass
    taken = time.monotonic() - begun
    group.shutdown()
    return taken


def run(directory: Path, quick: bool, ray_python: str | None) -> None:
    rounds = 2 if quick else 20
    root = directory / "root"
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(ray("ray_actor_creation.py", ray_python))
        stack.enter_context(agents(root))
        storage = stack.enter_context(StorageCluster(str(root)))
        local = stack.enter_context(LocalCluster())
        threads = stack.enter_context(LocalCluster(use_processes=False))
        sides: dict[str, Callable[[], float]] = {
            "local": lambda: create_and_call(local),
            "local_threads": lambda: create_and_call(threads),
            "storage": lambda: create_and_call(storage),
        }
        if peer is not None:
            sides["ray"] = peer.ask
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, side in sides.items():
                seconds = side()
                if number:  # the first round opens connections and fills caches, on all sides
                    taken[name].append(seconds)
        crashes = [answer_after_crash(storage) for _ in range(rounds)]
    figures: dict[str, Any] = {name: spread(seconds) for name, seconds in taken.items()}
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    if peer is not None:
        theirs = median.pop("ray")
        figures |= {f"{name}_ratio": round(ours / theirs, 3) for name, ours in median.items()}
        figures["ray_version"] = peer.greeting["version"]
    figures["answer_after_crash"] = spread(crashes)
    report("actor_creation", {**figures, "goals": GOALS})


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(sys.modules[Counter.__module__])
    options = arguments(__doc__, peers=["ray"])
    with scratch() as place:
        run(place, options.quick, options.ray)
