"""A small world for two creators of one name, each with a job of its own, after its first holder has ended.

Each reads the name, then its holder's job, takes the name by CAS, and submits its job; it may die or freeze between.
`late` says that a minute has passed since the name was taken. The decisions are `holder_of`, `taken_for` and
`announced` of
`protocol.naming`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.naming import (
    SUBMISSION_SECONDS,
    NameHolder,
    announced,
    holder_of,
    taken_for,
)
from fray_layouts.records import JobRecord, NameRecord
from tests.model.essence import NOW, SPEC
from tests.model.explorer import Step
from tests.model.namesworld import endpoint

OLD, CREATORS = "J0", ("J1", "J2")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    name_by_cas: bool = True
    submitter_is_waited_for: bool = True
    but_not_for_ever: bool = True
    told_once_it_exists: bool = True


class Creator(NamedTuple):
    """Phases: start, read (it knows the name as it was), taken (it has the name), done, gone.

    `has`: the job that it takes for the name's; `slow`: it did not submit its own within a minute.
    """

    phase: str = "start"
    read: tuple[int, str] | None = None
    has: str = ""
    slow: bool = False


class Taking(NamedTuple):
    """A state. `name`: (incarnation, job) in the record; `jobs`: those that run."""

    name: tuple[int, str] = (1, OLD)
    late: bool = True
    jobs: frozenset[str] = frozenset()
    creators: tuple[Creator, Creator] = (Creator(), Creator())
    faults: frozenset[str] = frozenset()


class TakingWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules, *faults: str) -> None:
        self.rules = rules
        self.start = Taking(faults=frozenset(faults))

    def good(self, w: Taking) -> bool:
        """The name's job runs, no other does, and every live creator knows it.

        A slow creator has learnt from its job's end that the name went to another one, which may have died too.
        """
        left = [c for c in w.creators if c.phase != "gone" and not c.slow]
        if not left:
            return w.jobs <= {w.name[1]}
        return w.jobs == {w.name[1]} and all(c.has == w.name[1] for c in left)

    def steps(self, w: Taking) -> Iterator[Step[Taking]]:
        if not w.late:
            slow = [c._replace(slow=c.slow or c.phase == "taken") for c in w.creators]
            yield Step("a minute passes", w._replace(late=True, creators=(slow[0], slow[1])), fault=self._alive(w))
        for job in w.jobs - {w.name[1]}:
            if announced(self._record(w), replace(endpoint((w.name[0], 1), False), job=job)) is None:
                yield Step(f"{job} finds itself superseded, and ends", w._replace(jobs=w.jobs - {job}))
        for number, job in enumerate(CREATORS):
            yield from self._creator(w, number, job)

    def _alive(self, w: Taking) -> bool:
        return any(c.phase == "taken" for c in w.creators)

    def _record(self, w: Taking) -> NameRecord:
        since = NOW - (SUBMISSION_SECONDS + 1 if w.late else 0)
        return NameRecord(incarnation=w.name[0], job=w.name[1], since=since)

    def _holder(self, w: Taking) -> JobRecord | None:
        if w.name[1] != OLD and w.name[1] not in w.jobs:
            return None
        return JobRecord(id=w.name[1], spec=SPEC, status="stopped" if w.name[1] == OLD else "running")

    def _hold(self, w: Taking) -> NameHolder:
        late = w.late and self.rules.but_not_for_ever
        hold = holder_of(self._record(w._replace(late=late)), self._holder(w), NOW)
        if hold is NameHolder.COMING and not self.rules.submitter_is_waited_for:
            return NameHolder.FREE
        return NameHolder.HELD if hold is NameHolder.COMING and not self.rules.told_once_it_exists else hold

    def _is(self, w: Taking, number: int, creator: Creator) -> Taking:
        creators = (creator, w.creators[1]) if number == 0 else (w.creators[0], creator)
        return w._replace(creators=creators)

    def _creator(self, w: Taking, number: int, job: str) -> Iterator[Step[Taking]]:
        me = w.creators[number]
        if me.phase not in ("done", "gone") and "death" in w.faults:
            dead = self._is(w, number, Creator("gone"))._replace(faults=w.faults - {"death"})
            yield Step(f"the creator of {job} dies", dead, fault=True)
        hold = self._hold(w) if me.phase == "start" else None
        match me.phase:
            case "start" if hold is NameHolder.HELD:
                found = Creator("done", has=w.name[1])
                yield Step(f"the creator of {job} finds {w.name[1]}", self._is(w, number, found))
            case "start" if hold is NameHolder.FREE:
                yield Step(f"the creator of {job} finds the name free", self._is(w, number, Creator("read", w.name)))
            case "read" if me.read == w.name or not self.rules.name_by_cas:
                assert me.read is not None
                after = taken_for(NameRecord(incarnation=me.read[0], job=me.read[1]), job, NOW)
                breaks = "two hold one incarnation" if after.incarnation <= w.name[0] else ""
                took = self._is(w, number, Creator("taken", has=job))
                yield Step(
                    f"{job} has the name", took._replace(name=(after.incarnation, job), late=False), breaks=breaks
                )
            case "read":
                yield Step(f"the creator of {job} was too late", self._is(w, number, Creator()))
            case "taken":
                lost = w.name[1] != job and not me.slow
                breaks = "the name was taken from one who was about to use it" if lost else ""
                done = self._is(w, number, me._replace(phase="done"))
                yield Step(f"{job} is submitted", done._replace(jobs=w.jobs | {job}), breaks=breaks)
