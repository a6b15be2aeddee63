"""Run one scenario, or all of them, and print one line of JSON for each; a table for people goes to stderr."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.scale.fleet import Fleet, hosts_apart
from benchmarks.scale.loop import LoopClock, ManyTimersLoop
from benchmarks.scale.scenarios import SCENARIOS, Size
from benchmarks.scale.services import SERVICES
from benchmarks.scale.storage import Storage


def main() -> None:
    options = _options()
    for name in options.scenario or SCENARIOS:
        figures = run(name, options)
        print(json.dumps(figures), flush=True)
        _show(figures)


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one scenario."""
    size = Size(options.agents, options.jobs, options.seconds, options.submitters, options.gang)
    loop = ManyTimersLoop()
    storage = Storage(SERVICES[options.service], LoopClock(loop), options.seed, options.grown)
    began, cpu = time.monotonic(), time.process_time()
    gc.set_threshold(100_000, 50, 50)
    with tempfile.TemporaryDirectory(prefix="fray-scale-") as folder, hosts_apart():
        fleet = Fleet(
            storage, Path(folder), options.seed, (0.5 * options.task, 1.5 * options.task), options.slots, options.hints
        )

        async def scene() -> dict[str, Any]:
            figures = await SCENARIOS[name](fleet, size)
            await fleet.leave()
            return figures

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            figures = runner.run(scene())
    return {
        "bench": "scale",
        "scenario": name,
        "service": options.service,
        "grown": options.grown,
        "agents": size.agents,
        "slots": options.slots,
        "task_seconds": options.task,
        "seed": options.seed,
        **figures,
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "wall_seconds": round(time.monotonic() - began, 1),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--service", choices=SERVICES, default="gcs")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--slots", type=int, default=1, help="one-core tasks that an agent runs at once")
    parser.add_argument("--task", type=float, default=30.0, help="mean seconds of a task")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long the idle fleet is looked at")
    parser.add_argument("--submitters", type=int, default=10)
    parser.add_argument("--gang", type=int, default=20, help="hosts of a gang")
    parser.add_argument("--hints", action="store_true", help="agents take hints; else they only poll")
    parser.add_argument("--grown", type=float, default=1.0, help="times a new bucket's rates: one under load for long")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.scenario:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name}; there are {', '.join(SCENARIOS)}")
    return options


def _show(figures: dict[str, Any], indent: str = "") -> None:
    for name, value in figures.items():
        if isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
            print(f"{indent}{name}:", file=sys.stderr)
            _show(value, indent + "  ")
        else:
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            print(f"{indent}{name:<34} {shown}", file=sys.stderr)


if __name__ == "__main__":
    main()
