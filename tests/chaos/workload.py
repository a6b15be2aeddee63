"""The jobs of a chaos run, and their right outcomes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord

PROGRAM = Path(__file__).with_name("job.py")
NEVER = 3600.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    Attributes:
        program: its kind in job.py.
        weight: how often it occurs.
        ends: the right statuses.
        fields: of its spec.
        failures: the right numbers of failures.
        stopped: whether somebody stops it some time after its submission.
        endless: whether it does not end by itself.
        dropped: whether it is a file in the inbox, not a submission.
        long: whether it runs long enough for its agent to be found dead, which shows a copy that was not ended.
    """

    program: str
    weight: int
    ends: frozenset[str]
    fields: dict[str, Any]
    failures: range = range(1)
    stopped: bool = False
    endless: bool = False
    dropped: bool = False
    long: bool = False


SUCCEEDED, FAILED, STOPPED = (frozenset({status}) for status in ("succeeded", "failed", "stopped"))
KINDS = {
    "work": Kind("work", 40, SUCCEEDED, {}),
    "long": Kind("work", 25, SUCCEEDED, {}, long=True),
    "drop": Kind("work", 8, SUCCEEDED, {}, dropped=True),
    "litter": Kind("litter", 8, SUCCEEDED, {}),
    "parent": Kind("parent", 12, SUCCEEDED, {"resources": {"cpu": 0.1}}),
    "leaver": Kind("leaver", 4, SUCCEEDED, {"resources": {"cpu": 0.1}}),
    "once": Kind("fail_once", 8, SUCCEEDED, {"max_retries_failure": 2}, range(2)),
    "fail": Kind("fail", 6, FAILED, {"max_retries_failure": 1}, range(2, 3)),
    "late": Kind("stubborn", 5, FAILED, {"timeout": 2.0}, range(1, 2), endless=True),
    "stop": Kind("stubborn", 6, STOPPED, {"max_retries_failure": 3}, stopped=True, endless=True),
    "race": Kind("work", 3, SUCCEEDED | STOPPED, {}, stopped=True),
    "gang": Kind("member", 10, SUCCEEDED, {"replicas": 3}),
    "torn": Kind("member_fails", 3, FAILED, {"replicas": 3, "max_retries_failure": 1}, range(2, 3)),
    "halt": Kind("stubborn", 3, STOPPED, {"replicas": 2}, stopped=True, endless=True),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One job. at: seconds after the start; stop_after: seconds after `at`."""

    name: str
    kind: Kind
    at: float
    seconds: float
    stop_after: float

    def spec(self, effects: Path) -> dict[str, Any]:
        seconds = NEVER if self.kind.endless else self.seconds
        flags = [] if self.kind.program in ("parent", "leaver") else ["-S", "-E"]
        command = [sys.executable, *flags, str(PROGRAM), self.kind.program, str(seconds), str(effects)]
        return {"name": self.name, "entrypoint": {"command": command}, "grace": 1.0, **self._id(), **self.kind.fields}

    @property
    def job_id(self) -> str:
        """The job's id, if it is submitted; a drop gets an id when it is admitted."""
        return JobIds.given(self.kind.fields.get("namespace", ""), self.name, "x")

    def _id(self) -> dict[str, str]:
        """An id for the submission, with which it can be repeated."""
        return {} if self.kind.dropped else {"id": "x"}


def plan(jobs: int, seconds: float, beat: float, rng: random.Random) -> list[Planned]:
    """`jobs` jobs, spread over `seconds`, at least one of each kind, in order of submission.

    Args:
        beat: seconds between heartbeats.
    """
    kinds = [*KINDS, *rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=jobs)][:jobs]
    times = sorted(rng.uniform(0, seconds) for _ in kinds)
    rng.shuffle(kinds)

    def planned(number: int, name: str, at: float) -> Planned:
        runs = rng.uniform(8, 10) * beat if KINDS[name].long else rng.uniform(0.1, 3.0)
        return Planned(f"{name}{number}", KINDS[name], at, runs, rng.uniform(0.0, 4.0))

    return [planned(number, name, at) for number, (name, at) in enumerate(zip(kinds, times, strict=True))]


def wrong_outcomes(
    planned: Sequence[Planned], records: Sequence[JobRecord], spared: Callable[[JobRecord], bool]
) -> list[str]:
    """Breaches of: exactly one record for each job, with the right status, failures and result.

    spared: whether nobody has put the job's record back; all others need only have their one record.
    """
    wrong = []
    for job in planned:
        found = [record for record in records if record.spec.name == job.name]
        if len(found) != 1:
            wrong.append(f"{job.name}: {len(found)} records")
        elif spared(found[0]):
            wrong += _wrong_outcome(job, found[0])
    by_id = {record.id: record for record in records}
    children = [record for record in records if record.parent and spared(record)]
    return wrong + [text for record in children for text in _wrong_child(record, by_id)]


def _wrong_outcome(job: Planned, record: JobRecord) -> list[str]:
    told = f"{record.id}: {record.status}, {record.failures} failures, {record.exit}"
    if record.status not in job.kind.ends:
        return [f"{told}; expected {sorted(job.kind.ends)}"]
    if record.failures not in job.kind.failures:
        return [f"{told}; expected {job.kind.failures} failures"]
    return _wrong_result(record) if record.status == "succeeded" else []


def _wrong_result(record: JobRecord) -> list[str]:
    """A breach if the result in the record is not that of the record's attempt."""
    value = record.result.value if record.result else None
    told = isinstance(value, dict) and (value.get("job"), value.get("attempt"))
    return [] if told == (record.id, record.attempt) else [f"{record.id}: attempt {record.attempt} has result {value}"]


def _wrong_child(child: JobRecord, by_id: dict[str, JobRecord]) -> list[str]:
    """A breach if a child of the successful attempt has not succeeded; other children may have been stopped."""
    assert child.parent is not None
    parent = by_id.get(child.parent.job)
    if parent is None:
        return [f"{child.id}: its parent {child.parent.job} has no record"]
    result = parent.result.value if parent.result else {}
    waited_for = parent.spec.name.startswith("parent") and child.id in result.get("children", [])
    right = SUCCEEDED if waited_for else SUCCEEDED | STOPPED
    wrong = [] if child.status in right else [f"{child.id}: {child.status}, {child.exit}; expected {sorted(right)}"]
    return wrong + (_wrong_result(child) if child.status == "succeeded" else [])
