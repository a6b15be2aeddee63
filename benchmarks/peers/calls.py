"""The rounds of the actors bench, the same for every side; needs only numpy.

A side is a process that reads the name of a measurement and answers with its figure. It runs on its first core, and its
actors run on the last one, because the placement of two processes changes a round trip threefold.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

IN_FLIGHT = 5000
CORES = sorted(os.sched_getaffinity(0))


class Subject:
    """The object that is called, in a process of its own, except for calls that run together."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def pin(self) -> None:
        """Stay on the last core."""
        os.sched_setaffinity(0, CORES[-1:])

    def echo(self, value: Any) -> Any:
        return value

    def note(self, number: int) -> int:
        self.seen.append(number)
        return number

    def notes(self) -> list[int]:
        seen, self.seen = self.seen, []
        return seen

    def size(self, array: Any) -> int:
        return int(array.nbytes)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def memory(self) -> float:
        """Resident megabytes of this process."""
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class AsyncSubject:
    """Methods that run on a loop."""

    def pin(self) -> None:
        os.sched_setaffinity(0, CORES[-1:])

    async def echo(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value


class Handle(Protocol):
    """A handle of an actor, of any side."""

    def call(self, method: str, *args: Any) -> Any:
        """Call and wait."""
        ...

    def start(self, method: str, *args: Any) -> Any:
        """Start a call, for `gather`."""
        ...

    def gather(self, started: Iterable[Any]) -> list[Any]:
        """Wait for all."""
        ...


class Side:
    """One round of each measurement.

    Args:
        plain: a `Subject`, one call at a time.
        wide: a `Subject`, a hundred calls at a time; None if the side has none.
        loop: an `AsyncSubject`; None if the side has none.
        ordered: whether the calls of one caller must run in the order in which they were made.
    """

    def __init__(
        self, plain: Handle, wide: Handle | None, loop: Handle | None, quick: bool, ordered: bool = True
    ) -> None:
        os.sched_setaffinity(0, CORES[:1])
        self._plain = plain
        self._wide = wide
        self._loop = loop
        self._quick = quick
        self._ordered = ordered
        for handle in (plain, wide, loop):
            if handle is not None:
                handle.call("pin")

    def sync_us(self) -> float:
        """Median of a call that waits for its answer."""
        return _median(lambda: self._plain.call("echo", 1), self._count(2000)) * 1e6

    def async_us(self) -> float | None:
        """The same, to a coroutine."""
        loop = self._loop
        return None if loop is None else _median(lambda: loop.call("echo", 1), self._count(2000)) * 1e6

    def in_flight_per_s(self) -> float:
        """Calls a second when thousands are sent before the first answer is awaited; checks their order."""
        count = self._count(IN_FLIGHT)
        begun = time.perf_counter()
        found = self._plain.gather([self._plain.start("note", number) for number in range(count)])
        taken = time.perf_counter() - begun
        noted = self._plain.call("notes")
        if found != list(range(count)) or found != (noted if self._ordered else sorted(noted)):
            raise RuntimeError("calls were lost, or their order")
        return count / taken

    def mb1_per_s(self) -> float:
        """MB/s of calls with an array of 1 MB."""
        return self._array(1)

    def mb10_per_s(self) -> float:
        """MB/s of calls with an array of 10 MB."""
        return self._array(10)

    def hundred_s(self) -> float | None:
        """Seconds for a hundred calls of 0.2 s at once."""
        wide = self._wide
        if wide is None:
            return None
        wide.gather([wide.start("sleep", 0.0) for _ in range(100)])
        begun = time.perf_counter()
        wide.gather([wide.start("sleep", 0.2) for _ in range(100)])
        return time.perf_counter() - begun

    def serve(self, answers: Any) -> None:
        """Measure what is asked for until the input ends."""
        for line in sys.stdin:
            print(json.dumps(getattr(self, line.strip())()), file=answers, flush=True)

    def _array(self, megabytes: int) -> float:
        import numpy as np

        array = np.arange(megabytes * 125_000, dtype=np.float64)
        return megabytes / _median(lambda: self._plain.call("size", array), self._count(60))

    def _count(self, full: int) -> int:
        return max(5, full // 50) if self._quick else full


def _median(call: Callable[[], object], count: int) -> float:
    for _ in range(max(3, count // 10)):
        call()
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
