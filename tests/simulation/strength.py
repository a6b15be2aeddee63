"""`python -m tests.simulation.strength`: which invariant catches which broken variant, and after how many seeds.

It prints the tables of docs/simulation.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.actors import ActorWorld
from tests.simulation.campaign import in_fixed_order, run_seed
from tests.simulation.gangs import GangWorld
from tests.simulation.queues import QueueWorld
from tests.simulation.stage import Stage
from tests.simulation.world import World

WORLDS: tuple[type[Stage], ...] = (World, ActorWorld, GangWorld, QueueWorld)
LIMIT = 300
"""Every variant is caught within so many seeds."""


@dataclass(frozen=True, slots=True)
class Catch:
    """How a variant was caught: by which invariant, after how many seeds (None: not at all)."""

    variant: str
    invariant: str
    seeds: int | None

    def row(self) -> str:
        return f"| {self.variant.replace('_', ' ')} | {self.invariant} | {self.seeds or 'not caught'} |"


def catch(made: type[Stage], variant: str) -> Catch:
    """Run seeds 0, 1, 2 ... until one breaks an invariant that the sound code keeps."""
    for seed in range(LIMIT):
        outcome = run_seed(made, seed, variant)
        # Else the code has moved on, and the variant has not.
        assert not outcome.crashed, outcome.story
        assert not re.search("TypeError|AttributeError|NameError", outcome.story), outcome.story
        if outcome.broken and not run_seed(made, seed, variant, sound=True).broken:
            return Catch(variant, outcome.broken, seed + 1)
    return Catch(variant, "", None)


def main() -> int:
    """The exit code: 1 if a variant was not caught."""
    known = [name for made in WORLDS for name in made.variants]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.strength", description=main.__doc__)
    parser.add_argument("variants", nargs="*", choices=[*known, []], metavar="variant", help="default: all")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    missed = 0
    with ProcessPoolExecutor(given.processes) as pool:
        for made in WORLDS:
            chosen = [name for name in made.variants if name in (given.variants or known)]
            print(f"| broken variant, {made.kind} | caught by | seeds |\n| --- | --- | --- |", flush=True)
            for caught in pool.map(catch, [made] * len(chosen), chosen):
                print(caught.row(), flush=True)
                missed += caught.seeds is None
            print()
    return 1 if missed else 0


if __name__ == "__main__":
    in_fixed_order("tests.simulation.strength")
    sys.exit(main())
