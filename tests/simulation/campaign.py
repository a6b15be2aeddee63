"""Runs many seeds in a few processes and reports the results: the command line of every kind of simulation."""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.invariants import Broken
from tests.simulation.stage import Figures, Stage

FAILED_ONCE = Path(__file__).parent / "failed_once.txt"
HISTORY_LINES = 100


@dataclass(slots=True)
class Outcome:
    """The result of one seed: its figures and, if an invariant broke, its name and the history.

    Attributes:
        crashed: whether the run itself failed, not an invariant; then `broken` is the kind of error.
    """

    seed: int
    plan: str
    figures: Figures
    cpu: float
    broken: str = ""
    crashed: bool = False
    story: str = ""
    history: str = ""


@dataclass(slots=True)
class Total:
    """The result of many seeds."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.broken]

    def __str__(self) -> str:
        figures = [outcome.figures for outcome in self.outcomes]
        cpu = sum(outcome.cpu for outcome in self.outcomes)
        faults: Counter[str] = Counter()
        amounts: Counter[str] = Counter()
        for one in figures:
            faults.update(one.faults)
            amounts.update(one.amounts)
        rows = {"seeds": len(figures), **amounts, "store operations": sum(f.operations for f in figures)}
        rows["injected faults"] = sum(faults.values())
        lines = [
            f"{name}: {value:,.0f} ({60 * value / max(cpu, 1):,.0f} per CPU-minute)" for name, value in rows.items()
        ]
        lines.append("faults by kind: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items())))
        slowest = max((f.calm_seconds for f in figures), default=0.0)
        lines.append(f"longest until everything had ended once faults were off: {slowest:.0f} virtual seconds")
        if self.outcomes:
            lines.append(f"the last: seed {self.outcomes[-1].seed}, digest {figures[-1].digest}")
        lines.append(f"peak memory of a process: {_peak_memory():.0f} MiB")
        summary = ", ".join(f"{value:,.0f} {name}" for name, value in rows.items())
        lines.append(f"{summary} in {cpu:.0f} CPU-seconds; {len(self.failures)} seeds failed")
        return "\n".join(lines)


def run_seed(
    made: type[Stage], seed: int, variant: str = "", keep_history: bool = False, sound: bool = False
) -> Outcome:
    """Run one world of the class `made`, with a broken variant of the code, or only with its setting if `sound`."""
    began = time.process_time()
    gc.disable()
    broken, crashed, story = "", False, ""
    with made.variants.applied(variant, sound):
        world = made(seed)
        try:
            world.run()
        except Broken as error:
            broken, story = error.invariant, _story(world, variant, error)
        except Exception as error:
            broken, crashed, story = type(error).__name__, True, "".join(traceback.format_exception(error))
    plan, figures, cpu = world.plan, world.figures, time.process_time() - began
    history = world.history.text() if keep_history else ""
    del world
    gc.enable()
    gc.collect()
    return Outcome(seed, plan, figures, cpu, broken, crashed, story, history)


def run_many(
    made: type[Stage], seeds: Iterable[int], processes: int, cpu_seconds: float | None = None
) -> Iterator[Outcome]:
    """Yield outcomes as they arrive, until the seeds or the seconds are used up."""
    left, spent = iter(seeds), 0.0
    running: set[Future[Outcome]] = set()
    with ProcessPoolExecutor(processes) as pool:
        while True:
            while len(running) < processes and (cpu_seconds is None or spent < cpu_seconds):
                seed = next(left, None)
                if seed is None:
                    break
                running.add(pool.submit(run_seed, made, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                spent += future.result().cpu
                yield future.result()


def failed_once(kind: str) -> list[int]:
    """Seeds that found a fault in the past."""
    lines = (line.split() for line in FAILED_ONCE.read_text().splitlines() if not line.startswith("#"))
    return [int(words[1]) for words in lines if words[:1] == [kind]]


def command(made: type[Stage], seed: int, variant: str = "") -> str:
    """The command that replays a seed."""
    broken = f" --variant {variant}" if variant else ""
    return f"python -m {made.module} --seed {seed}{broken} --replay"


def in_fixed_order(module: str) -> None:
    """Start `module` again with a fixed hash seed, so that sets of strings have the same order in every run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})


def main(made: type[Stage]) -> int:
    """Run seeds, or replay one; the exit code: 1 if a seed failed."""
    in_fixed_order(made.module)
    parser = argparse.ArgumentParser(prog=f"python -m {made.module}", description=main.__doc__)
    parser.add_argument("--seeds", type=int, help="how many seeds; default: as many as fit into --cpu-seconds")
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="CPU time of all processes (default 60)")
    parser.add_argument(
        "--first", type=int, help="the first seed (default: drawn, and printed; seeds that failed go first)"
    )
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--replay", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--variant", choices=made.variants, default="", help="with --seed: the broken variant to run")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    return _many(made, given) if given.seed is None else _one(made, given)


def _one(made: type[Stage], given: argparse.Namespace) -> int:
    outcome = run_seed(made, given.seed, given.variant, given.replay)
    print(f"scenario: {outcome.plan}\n{outcome.history}", end="")
    print(outcome.story or f"seed {given.seed}: no invariant broke; digest {outcome.figures.digest}")
    return 1 if outcome.broken else 0


def _many(made: type[Stage], given: argparse.Namespace) -> int:
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    seeds = itertools.count(first) if given.seeds is None else range(first, first + given.seeds)
    again = failed_once(made.kind) if given.first is None else []
    print(f"{made.kind}: seeds from {first}, and {len(again)} that once failed", flush=True)
    total = Total()
    once_failed = run_many(made, again, given.processes)
    fresh = run_many(made, seeds, given.processes, None if given.seeds else given.cpu_seconds)
    for outcome in itertools.chain(once_failed, fresh):
        total.outcomes.append(outcome)
        if outcome.broken:
            print(f"seed {outcome.seed}: {outcome.story}\n", flush=True)
    print(total)
    return 1 if total.failures else 0


def _story(world: Stage, variant: str, error: Broken) -> str:
    cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
    return (
        f"{error}\nreplay with: {command(type(world), world.seed_number, variant)}\nscenario: {world.plan}\n{cause}"
        f"what happened to {', '.join(error.about)}:\n{world.history.about(error.about, HISTORY_LINES)}"
    )


def _peak_memory() -> float:
    """MiB that this process or one of its children needed at most."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) / 1024
