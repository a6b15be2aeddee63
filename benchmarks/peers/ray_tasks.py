"""Ray's side of the pool bench: each line is a number of no-op tasks; the answer is the seconds they took together.

"1 N" asks for N tasks one after the other instead; the answer is the list of their round trips.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
import ray_side


@ray.remote  # type: ignore[untyped-decorator]
def nothing(number: int) -> int:
    return number


def together(count: int) -> float:
    begun = time.monotonic()
    ray.get([nothing.remote(number) for number in range(count)])
    return time.monotonic() - begun


def one_by_one(count: int) -> list[float]:
    taken = []
    for number in range(count):
        begun = time.monotonic()
        ray.get(nothing.remote(number))
        taken.append(time.monotonic() - begun)
    return taken


def answer(line: str) -> float | list[float]:
    one, _, many = line.rpartition(" ")
    return one_by_one(int(many)) if one else together(int(many))


def warm(head: Any) -> Callable[[str], Any]:
    together(100)
    return answer


ray_side.serve(warm)
