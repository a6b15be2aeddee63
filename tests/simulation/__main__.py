"""`python -m tests.simulation`: run seeds, or replay one."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from pathlib import Path

from tests.simulation.campaign import Total, command, peak_memory, run_many, run_seed
from tests.simulation.world import World

FAILED_ONCE = Path(__file__).parent / "failed_once.txt"


def failed_once() -> list[int]:
    """Seeds that found a fault in the past."""
    lines = FAILED_ONCE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def main() -> int:
    """The exit code: 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many seeds; default: as many as fit into --seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (default 60)")
    parser.add_argument("--first", type=int, help="the first seed (default: drawn, and printed)")
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--replay", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--variant", default="", help="with --seed: the broken variant to run")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, given.replay, given.variant)
    return _many(given)


def _one(seed: int, replay: bool, variant: str) -> int:
    print(f"scenario: {World(seed).scenario}")
    outcome = run_seed(seed, variant, keep_history=replay)
    if replay:
        print(outcome.history, end="")
    print(outcome.story or f"seed {seed}: no invariant broke; digest {outcome.figures.digest}")
    return 1 if outcome.broken else 0


def _many(given: argparse.Namespace) -> int:
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    seeds = itertools.count(first) if given.seeds is None else range(first, first + given.seeds)
    print(f"seeds from {first}, and {len(failed_once())} that once failed", flush=True)
    total, began = Total(), time.monotonic()
    once_failed = run_many(failed_once(), given.processes)
    fresh = run_many(seeds, given.processes, None if given.seeds else given.seconds)
    for outcome in itertools.chain(once_failed, fresh):
        total.outcomes.append(outcome)
        if outcome.broken:
            print(f"seed {outcome.seed}: {outcome.story}\n{command(outcome.seed)}\n", flush=True)
    total.wall = time.monotonic() - began
    print(f"{total}\npeak memory of a process: {peak_memory():.0f} MiB")
    return 1 if total.failures else 0


def in_fixed_order(module: str) -> None:
    """Start `module` anew unless sets of strings have the same order as in every other run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    in_fixed_order("tests.simulation")
    sys.exit(main())
