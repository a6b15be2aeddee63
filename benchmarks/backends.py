"""One program on every backend: threads, a bucket's folder with agents, and Ray; its time, processor time and memory.

The program is `peers/backend_program.py`, the same to the letter: FRAY_CLUSTER_SPEC says where it runs. Processor
time and memory are those of the whole machine above what it used before, so they have agents, Ray's own processes and
workers in them; nothing else may run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import HERE, PYTHON, Helper, agents, arguments, report, say, scratch

WORKLOADS = ("tasks", "actor", "pipeline", "inference", "gang")

CORES = 4
"""Cores that each backend gives, however many the machine has: all four replicas of the gang have to run at once."""

QUICK = 0.05
"""The share of a workload in a quick run."""

SAMPLE_SECONDS = 0.05
"""Between two looks at the machine's memory."""

_TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor time that the machine has spent on programs and for them, since it started."""
    user, nice, system = (int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4])
    return (user + nice + system) / _TICKS


def used_memory() -> int:
    """Bytes of memory that are not available."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) * 1024


class MemoryPeak:
    """The most memory that was in use within the block, in bytes."""

    def __enter__(self) -> MemoryPeak:
        self.bytes = used_memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, used_memory())


@contextlib.contextmanager
def on_threads(directory: Path) -> Iterator[str]:
    yield ""


@contextlib.contextmanager
def on_agents(directory: Path) -> Iterator[str]:
    with agents(directory / "root", count=2, cores=CORES / 2):
        yield str(directory / "root")


@contextlib.contextmanager
def on_ray(directory: Path) -> Iterator[str]:
    ray = Helper([PYTHON, str(HERE / "peers" / "ray_node.py"), str(CORES)])
    try:
        yield f"ray:{ray.greeting['address']}"
    finally:
        ray.close()


def measured(directory: Path, spec: str, share: float) -> dict[str, dict[str, float]]:
    """What each workload took on the backend that a spec names."""
    command = [PYTHON, str(HERE / "peers" / "backend_program.py")]
    program = Helper(command, FRAY_CLUSTER_SPEC=spec, RAY_AUTH_MODE="disabled")  # as `ray_side` has it
    figures: dict[str, dict[str, float]] = {}
    try:
        for name in WORKLOADS:
            folder = directory / name
            folder.mkdir()
            cpu, memory = busy_seconds(), used_memory()
            with MemoryPeak() as peak:
                answer = program.ask(json.dumps([name, str(folder), share]))
            figures[name] = {
                "wall_s": round(answer["seconds"], 2),
                "cpu_s": round(busy_seconds() - cpu, 2),
                "memory_mb": round((peak.bytes - memory) / 1e6),
            }
            say(f"{program.greeting['client']}: {name} {figures[name]}")
    finally:
        program.close()
    return figures


def run(directory: Path, quick: bool) -> None:
    found: dict[str, Any] = {}
    for name, backend in (("threads", on_threads), ("bucket", on_agents), ("ray", on_ray)):
        place = directory / name
        place.mkdir()
        before = used_memory()
        with backend(place) as spec:
            found[name] = {"idle_memory_mb": round((used_memory() - before) / 1e6)}
            found[name] |= measured(place, spec, QUICK if quick else 1.0)
    say(table(found))
    report("backends", found | {"lines_that_differ": 0})


def table(found: dict[str, Any]) -> str:
    """The figures for people: a line for each workload, a column for each backend."""
    lines = [f"| seconds (of processors) | {' | '.join(found)} |", f"| --- |{' --- |' * len(found)}"]
    for name in WORKLOADS:
        cells = (f"{figures[name]['wall_s']} ({figures[name]['cpu_s']})" for figures in found.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with scratch() as place:
        run(place, arguments(__doc__).quick)
