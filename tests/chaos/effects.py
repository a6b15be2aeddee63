"""What the attempts of all jobs did, read from the files that they wrote (job.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fray_layouts.records import JobRecord


@dataclass(frozen=True, slots=True)
class Window:
    """A time span, in seconds of CLOCK_BOOTTIME, in which the storage had a fault."""

    begin: float
    end: float


@dataclass(slots=True)
class Attempt:
    """One attempt, as its own files say. Times are in seconds of CLOCK_BOOTTIME. own: the job, or a replica of it."""

    own: str
    number: int
    agent: str = ""
    begun: float = 0.0
    ended: float | None = None
    last_seen: float = 0.0

    @property
    def job(self) -> str:
        return job_of(self.own)


def job_of(name: str) -> str:
    """The job in the name of a file that an attempt wrote, or of a replica."""
    return name.partition("~")[0].partition("+")[0]


@dataclass(slots=True)
class Effects:
    """The attempts of each job in order, of all replicas. doubles: attempts that ran twice."""

    attempts: dict[str, list[Attempt]]
    doubles: list[str]

    def losses(self, records: Iterable[JobRecord]) -> list[str]:
        """Jobs that succeeded although the attempt in their record did not do its work."""
        done = {(attempt.own, attempt.number) for own in self.attempts.values() for attempt in own if attempt.ended}
        return [
            f"{record.id}: attempt {record.attempt} succeeded without the work of replica {replica}"
            for record in records
            for replica in (range(record.spec.replicas) if record.status == "succeeded" else ())
            if (f"{record.id}+{replica}" if replica else record.id, record.attempt) not in done
        ]

    def overlaps(self) -> list[tuple[Attempt, Attempt]]:
        """Attempts that still ran when the next one of the same job began."""
        return [
            (earlier, later)
            for own in self.attempts.values()
            for first, then in pairwise(sorted({attempt.number for attempt in own}))
            for earlier in own
            for later in own
            if (earlier.number, later.number) == (first, then) and earlier.last_seen > later.begun
        ]

    def successor(self, of: Attempt) -> Attempt | None:
        """The next attempt of the same job that began."""
        later = [attempt for attempt in self.attempts[of.job] if attempt.number > of.number]
        return later[0] if later else None


def read_effects(folder: Path) -> Effects:
    found: dict[str, dict[tuple[int, str], Attempt]] = defaultdict(dict)
    doubles = []
    for path in sorted(folder.glob("*~*~*")):
        own, number, what = path.name.split("~")
        if "-again-" in what:
            doubles.append(path.name)
        elif "." not in what:
            attempts = found[own.partition("+")[0]]
            _add(attempts.setdefault((int(number), own), Attempt(own, int(number))), what, path.read_text())
    return Effects({job: [own[number] for number in sorted(own)] for job, own in found.items()}, doubles)


def _add(attempt: Attempt, what: str, text: str) -> None:
    told: dict[str, Any] = {"at": float(text or 0)} if what == "alive" else json.loads(text)
    attempt.last_seen = max(attempt.last_seen, told["at"])
    match what:
        case "begin":
            attempt.agent, attempt.begun = told["agent"], told["at"]
        case "end":
            attempt.ended = told["at"]


def in_trouble(earlier: Attempt, later: Attempt, windows: Sequence[Window]) -> bool:
    """Whether the storage was down while the first of two attempts kept running, so that they may overlap."""
    return any(window.begin < later.begun and window.end > earlier.begun for window in windows)
