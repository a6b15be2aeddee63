"""Ray's side of the creation bench: each line of input creates an actor and calls it; the answer is the seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
import ray_side


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def create_and_call(cls: Any) -> float:
    """Seconds from the creation to the answer of the first call."""
    begun = time.monotonic()
    actor = cls.remote()
    if ray.get(actor.add.remote()) != 1:
        raise RuntimeError("not a new actor")
    taken = time.monotonic() - begun
    ray.kill(actor)
    return taken


def creator(head: Any) -> Callable[[str], float]:
    cls = ray.remote(num_cpus=0)(Counter)
    return lambda line: create_and_call(cls)


ray_side.serve(creator)
