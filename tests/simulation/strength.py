"""`python -m tests.simulation.strength`: which invariant catches which broken variant, and after how many seeds."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.__main__ import in_fixed_order
from tests.simulation.campaign import run_seed
from tests.simulation.variants import VARIANTS

LIMIT = 300
"""Every variant is caught within so many seeds."""


@dataclass(frozen=True, slots=True)
class Catch:
    """How a variant was caught: by which invariant, after how many seeds (None: not at all)."""

    variant: str
    invariant: str
    seeds: int | None
    seconds: float

    def row(self) -> str:
        seeds = "not caught" if self.seeds is None else str(self.seeds)
        return f"| {self.variant.replace('_', ' ')} | {self.invariant} | {seeds} | {self.seconds:.1f} |"


def catch(variant: str) -> Catch:
    """Run seeds 0, 1, 2 ... until one breaks an invariant."""
    seconds = 0.0
    for seed in range(LIMIT):
        outcome = run_seed(seed, variant)
        seconds += outcome.cpu
        assert "TypeError" not in outcome.story, outcome.story  # the code has moved on, and the variant has not
        if outcome.broken:
            return Catch(variant, outcome.broken, seed + 1, seconds)
    return Catch(variant, "", None, seconds)


def main() -> int:
    """The exit code: 1 if a variant was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.strength", description=__doc__)
    parser.add_argument("variants", nargs="*", help="default: all")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print("| broken variant | caught by | seeds | CPU seconds |\n| --- | --- | --- | --- |", flush=True)
    missed = 0
    with ProcessPoolExecutor(given.processes) as pool:
        for caught in pool.map(catch, given.variants or list(VARIANTS)):
            print(caught.row(), flush=True)
            missed += caught.seeds is None
    return 1 if missed else 0


if __name__ == "__main__":
    in_fixed_order("tests.simulation.strength")
    sys.exit(main())
