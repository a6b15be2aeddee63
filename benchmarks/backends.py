"""One program on every backend (threads, agents on a folder, Ray): its time, processor time and memory.

The program is `peers/backend_program.py`, unchanged: FRAY_CLUSTER_SPEC says where it runs. Processor time and memory
include all processes that this bench has started, also agents, Ray's own processes and workers. Memory that processes
share is divided between them.
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

from fray_agents.runner.meter import UsageMeter
from fray_agents.runner.process_tree import become_subreaper, descendants, stat_fields

WORKLOADS = ("tasks", "actor", "pipeline", "inference", "gang")

CORES = 4
"""Cores that each backend offers, however many the machine has: all four replicas of the gang have to run at once."""

QUICK = 0.05
"""The share of a workload in a quick run."""

SAMPLE_SECONDS = 0.2
"""Seconds between two looks at the processes; one look takes some milliseconds of processor time."""

UTIME = 11
"""In `stat_fields`, before stime: ticks of the process in its own code, and in the kernel for it."""

_TICKS = os.sysconf("SC_CLK_TCK")


def processes() -> list[int]:
    return [os.getpid(), *descendants()]


def processor_seconds() -> dict[int, float]:
    """The processor time that each process of this bench has used, without its children."""
    stats = {pid: fields for pid in processes() if (fields := stat_fields(pid))}
    return {pid: (int(fields[UTIME]) + int(fields[UTIME + 1])) / _TICKS for pid, fields in stats.items()}


class Watch:
    """Measures all processes of this bench within the block: processor seconds, and the most bytes of memory.

    It looks at each process by itself, because Ray's parents do not wait for their children. So it misses what a
    process does after the last look at it.
    """

    def __enter__(self) -> Watch:
        self._meter = UsageMeter("/var/empty", "bench", processes)
        self._seconds = processor_seconds()
        self.cpu, self.memory = 0.0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        before, self._seconds = self._seconds, processor_seconds()
        self.cpu += sum(max(seconds - before.get(pid, 0.0), 0.0) for pid, seconds in self._seconds.items())
        self._meter.sample()
        self.memory = max(self.memory, sum(self._meter.own_memory().values()))


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
    """The figures of each workload on the backend that a spec names."""
    command = [PYTHON, str(HERE / "peers" / "backend_program.py")]
    as_ray_side = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    program = Helper(command, FRAY_CLUSTER_SPEC=spec, **as_ray_side)
    figures: dict[str, dict[str, float]] = {}
    try:
        for name in WORKLOADS:
            folder = directory / name
            folder.mkdir()
            with Watch() as used:
                answer = program.ask(json.dumps([name, str(folder), share]))
            figures[name] = {
                "wall_s": round(answer["seconds"], 2),
                "cpu_s": round(used.cpu, 2),
                "memory_mb": round(used.memory / 1e6),
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
        with backend(place) as spec:
            found[name] = measured(place, spec, QUICK if quick else 1.0)
    say(table(found))
    report("backends", found | {"lines_that_differ": 0, "load": os.getloadavg()})


def table(found: dict[str, Any]) -> str:
    """The figures for people: a line for each workload, a column for each backend."""
    lines = [f"| seconds (of processors), MB | {' | '.join(found)} |", f"| --- |{' --- |' * len(found)}"]
    for name in WORKLOADS:
        cells = ("{wall_s} ({cpu_s}), {memory_mb}".format(**figures[name]) for figures in found.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    become_subreaper()  # processes that outlive their parents count, too
    with scratch() as place:
        run(place, arguments(__doc__).quick)
