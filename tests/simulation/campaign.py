"""Running many seeds in a few processes, and saying what came of it."""

from __future__ import annotations

import gc
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.simulation.invariants import Broken
from tests.simulation.variants import VARIANTS, Variant, applied
from tests.simulation.world import Figures, World

HISTORY_LINES = 100
Variants = dict[str, Variant]


@dataclass(slots=True)
class Outcome:
    """What came of one seed: its figures and, if an invariant broke, its name and the story."""

    seed: int
    figures: Figures
    cpu: float
    broken: str = ""
    story: str = ""
    history: str = ""


@dataclass(slots=True)
class Total:
    """What came of many."""

    outcomes: list[Outcome] = field(default_factory=list)
    wall: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.broken]

    def __str__(self) -> str:
        figures = [outcome.figures for outcome in self.outcomes]
        cpu = sum(outcome.cpu for outcome in self.outcomes) / 60 or 1e-9
        faults: Counter[str] = Counter()
        for one in figures:
            faults.update(one.faults)
        rows = {
            "seeds": len(figures),
            "jobs": sum(f.jobs for f in figures),
            "simulated agent-hours": sum(f.agent_seconds for f in figures) / 3600,
            "store operations": sum(f.operations for f in figures),
            "injected faults": sum(faults.values()),
        }
        lines = [f"{name}: {value:,.0f} ({value / cpu:,.0f} per CPU-minute)" for name, value in rows.items()]
        lines.append("faults by kind: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items())))
        slowest = max((f.calm_seconds for f in figures), default=0.0)
        lines.append(f"longest until all jobs had ended once faults were off: {slowest:.0f} virtual seconds")
        lines.append(f"{cpu:.1f} CPU-minutes in {self.wall / 60:.1f} minutes; {len(self.failures)} seeds failed")
        return "\n".join(lines)


def run_seed(
    seed: int, variant: str = "", keep_history: bool = False, made: type[World] = World, known: Variants = VARIANTS
) -> Outcome:
    """One world of the class `made`, perhaps with a part of the code deliberately broken, as `known` says."""
    began = time.process_time()
    gc.disable()
    world = made(seed)
    try:
        with applied(variant, known):
            world.run()
        broken, story = "", ""
    except Broken as error:
        broken, story = error.invariant, _story(world, error)
    except Exception as error:
        broken, story = type(error).__name__, "".join(traceback.format_exception(error))
    figures, cpu = world.figures, time.process_time() - began
    history = world.history.text() if keep_history else ""
    del world
    gc.enable()
    gc.collect()
    return Outcome(seed, figures, cpu, broken, story, history)


def run_many(
    seeds: Iterable[int], processes: int, seconds: float | None = None, made: type[World] = World
) -> Iterator[Outcome]:
    """Outcomes as they come, until the seeds or the seconds are used up."""
    deadline = None if seconds is None else time.monotonic() + seconds
    left = iter(seeds)
    running: set[Future[Outcome]] = set()
    with ProcessPoolExecutor(processes) as pool:
        while True:
            while len(running) < processes and (deadline is None or time.monotonic() < deadline):
                seed = next(left, None)
                if seed is None:
                    break
                running.add(pool.submit(run_seed, seed, made=made))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def peak_memory() -> float:
    """MiB that this process or one of its children needed at most."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) / 1024


def command(seed: int, module: str = "tests.simulation") -> str:
    """What replays a seed."""
    return f"python -m {module} --seed {seed} --replay"


def _story(world: World, error: Broken) -> str:
    cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
    return (
        f"{error}\nreplay with: {command(world.seed_number, world.module)}\nscenario: {world.scenario}\n{cause}"
        f"what happened to {', '.join(error.about)}:\n{world.history.about(error.about, HISTORY_LINES)}"
    )
