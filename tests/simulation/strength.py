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
from tests.simulation.broken_code import Variants
from tests.simulation.broken_tests import is_red
from tests.simulation.campaign import in_fixed_order, run_seed
from tests.simulation.gang_rules import RULES
from tests.simulation.gangs import GangWorld
from tests.simulation.machines import MachineWorld
from tests.simulation.queues import QueueWorld
from tests.simulation.stage import Stage
from tests.simulation.world import World

WORLDS: tuple[type[Stage], ...] = (World, ActorWorld, GangWorld, QueueWorld, MachineWorld)
VARIANTS = Variants({name: variant for made in WORLDS for name, variant in made.variants.items()})
LIMIT = 300
"""Seeds within which every variant must be caught."""


@dataclass(frozen=True, slots=True)
class Catch:
    """How a variant was caught: by which invariant and after how many seeds, or by which test; None: not at all."""

    variant: str
    by: str
    seeds: int | None

    def row(self) -> str:
        variant, rule = self.variant.replace("_", " "), VARIANTS[self.variant].rule
        seeds = self.seeds or ("" if self.by else "not caught")
        return f"| {f'{rule} {RULES[rule]} | ' if rule else ''}{variant} | {self.by} | {seeds} |"


def catch(made: type[Stage], variant: str) -> Catch:
    """Run the variant's test, or seeds 0, 1, 2 ... until one breaks an invariant that the sound code keeps."""
    if test := VARIANTS[variant].test:
        red, story = is_red(test, variant)
        check_variant_is_current(story)
        return Catch(variant, by_test(test) if red else "", None)
    for seed in range(LIMIT):
        outcome = run_seed(made, seed, variant)
        assert not outcome.crashed, outcome.story
        check_variant_is_current(outcome.story)
        if outcome.broken and not run_seed(made, seed, variant, sound=True).broken:
            return Catch(variant, outcome.broken, seed + 1)
    return Catch(variant, "", None)


def by_test(test: str) -> str:
    """A test's name in the tables."""
    return "`{}`: `{}`".format(*test.rpartition("/")[2].split("::"))


def check_variant_is_current(story: str) -> None:
    """Check that a variant failed as intended, not because the code has changed."""
    assert not re.search("TypeError|AttributeError|NameError", story), story


def by_rule(made: type[Stage]) -> list[str]:
    """The broken variants of one kind of world, in order of the rules that they break."""
    return sorted(made.variants, key=lambda name: VARIANTS[name].rule)


def heading(made: type[Stage]) -> str:
    """The heading of the table of one kind of world."""
    columns = [*(["rule"] if made is GangWorld else []), f"broken variant, {made.kind}", "caught by", "seeds"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns)))


def main() -> int:
    """The exit code: 1 if a variant was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.strength", description=main.__doc__)
    parser.add_argument("variants", nargs="*", choices=[*VARIANTS, []], metavar="variant", help="default: all")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    missed = 0
    with ProcessPoolExecutor(given.processes) as pool:
        for made in WORLDS:
            chosen = [name for name in by_rule(made) if name in (given.variants or VARIANTS)]
            print(heading(made), flush=True)
            for caught in pool.map(catch, [made] * len(chosen), chosen):
                print(caught.row(), flush=True)
                missed += not caught.by
            print()
    return 1 if missed else 0


if __name__ == "__main__":
    in_fixed_order("tests.simulation.strength")
    sys.exit(main())
