"""A small world for the inbox: a person drops files, two agents admit them, retention removes jobs, a repair runs.

The decisions are `record_of_drop`, `admit_or_withdraw`, `request_stop` and `is_removable` of `protocol/`. Agent A may
crash at any step; agent B never does. A record that was removed and created again is another record: `birth` tells them
apart, as the id of its first write does in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.job_identity import admit_or_withdraw, record_of_drop
from fray_coordinator.protocol.retention import is_removable
from fray_coordinator.protocol.stopping import request_stop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec_parsing import parse_spec
from tests.model.explorer import Step

SPEC = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}})
SETTINGS = ClusterSettings()
NOW, LATE = 1000.0, 1e9


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    looks_again: bool = True
    same_record: bool = True
    id_of_version: bool = True
    conditional_delete: bool = True
    retention_looks: bool = True
    file_goes_anyway: bool = True
    born_unadmitted: bool = True
    admission_stands: bool = True


class Record(NamedTuple):
    """A job's record: its status, which birth of the name it is; `late`: its drop had gone from the inbox by then."""

    status: str
    birth: int
    late: bool


class Looker(NamedTuple):
    """An agent's progress in the admission of drop `drop`, with the record that it has read or made.

    Phases: idle, create, look (at the inbox again), settle (by `version`), enter (the index), remove (the file), gone.
    """

    phase: str = "idle"
    drop: int = 0
    seen: Record | None = None
    version: int | None = None


class Inbox(NamedTuple):
    """A state. `box`: the drop that lies in the inbox; `records` and `entries` by job; `runs` and `wanted` by drop."""

    box: int | None = None
    dropped: int = 0
    records: tuple[Record | None, ...] = ()
    births: int = 0
    entries: frozenset[int] = frozenset()
    runs: tuple[int, ...] = ()
    wanted: tuple[bool, ...] = ()
    lookers: tuple[Looker, Looker] = (Looker(), Looker())
    forgets: int = 0
    faults: frozenset[str] = frozenset()


@cache
def record(drop: int, status: str) -> JobRecord:
    made = record_of_drop("inbox/a.json", str(drop), NOW + drop, SPEC)
    return replace(made, status=status, ended_at=NOW)


class InboxWorld:
    """The steps under `rules`, with so many `drops` under one name and so many records that retention may remove."""

    def __init__(self, rules: Rules, drops: int, forgets: int, *faults: str) -> None:
        self.rules = rules
        self.drops = drops
        jobs = drops if rules.id_of_version else 2 * drops
        self.start = Inbox(
            records=(None,) * jobs,
            runs=(0,) * drops,
            wanted=(True,) * drops,
            forgets=forgets,
            faults=frozenset(faults),
        )

    def good(self, w: Inbox) -> bool:
        waiting = any(r is not None and r.status in (Status.UNADMITTED, Status.PENDING) for r in w.records)
        served = all(runs > 0 or not wanted for runs, wanted in zip(w.runs, w.wanted, strict=True))
        return w.dropped == self.drops and w.box is None and served and not waiting

    def broken(self, w: Inbox) -> str:
        return "a dropped version ran twice" if max(w.runs) > 1 else ""

    def steps(self, w: Inbox) -> Iterator[Step[Inbox]]:
        yield from self._person(w)
        for who in (0, 1):
            yield from self._looker(w, who)
        for job, lies in enumerate(w.records):
            if lies is not None:
                yield from self._others(w, job, lies)

    def _job(self, drop: int, who: int) -> int:
        return drop if self.rules.id_of_version else 2 * drop + who

    def _drop(self, job: int) -> int:
        return job if self.rules.id_of_version else job // 2

    def _person(self, w: Inbox) -> Iterator[Step[Inbox]]:
        unwanted = w._replace(wanted=_put(w.wanted, w.box, False)) if w.box is not None else w
        if w.dropped < self.drops:
            yield Step(f"drop {w.dropped}", unwanted._replace(box=w.dropped, dropped=w.dropped + 1))
        if w.box is not None and "withdraw" in w.faults:
            gone = unwanted._replace(box=None, faults=w.faults - {"withdraw"})
            yield Step(f"drop {w.box} is withdrawn", gone, fault=True)

    def _looker(self, w: Inbox, who: int) -> Iterator[Step[Inbox]]:
        me, name = w.lookers[who], "AB"[who]
        job = self._job(me.drop, who)
        lies = w.records[job]

        def now(state: Inbox, **changes: Any) -> Inbox:
            return state._replace(lookers=_put(state.lookers, who, me._replace(**changes)))

        idle: dict[str, Any] = {"phase": "idle", "drop": 0, "seen": None, "version": None}
        if who == 0 and me.phase not in ("idle", "gone") and "crash" in w.faults:
            dead = w._replace(lookers=_put(w.lookers, 0, Looker("gone")), faults=w.faults - {"crash"})
            yield Step(f"A crashes before {me.phase}", dead, fault=True)
        match me.phase:
            case "idle" if w.box is not None:
                yield Step(f"{name} reads drop {w.box}", now(w, phase="create", drop=w.box))
            case "create" if lies is None:
                status = Status.UNADMITTED if self.rules.born_unadmitted else Status.PENDING
                made = Record(status, w.births + 1, late=w.box != me.drop)
                born = w._replace(records=_put(w.records, job, made), births=w.births + 1)
                yield Step(f"{name} creates the record of drop {me.drop}", now(born, phase="look", seen=made))
            case "create":
                yield Step(f"{name} finds the record of drop {me.drop}", now(w, phase="look", seen=lies))
            case "look":
                version = w.box if self.rules.looks_again else me.drop
                yield Step(f"{name} looks again: {version}", now(w, phase="settle", version=version))
            case "settle":
                yield from self._settle(w, who, job, lambda state, phase: now(state, phase=phase), now(w, **idle))
            case "enter":
                yield Step(f"{name} enters it", now(w._replace(entries=w.entries | {job}), phase="remove"))
            case "remove":
                hit = w.box == me.drop or (w.box is not None and not self.rules.conditional_delete)
                yield Step(f"{name} removes the file", now(w._replace(box=None) if hit else w, **idle))

    def _settle(
        self, w: Inbox, who: int, job: int, now: Callable[[Inbox, str], Inbox], idle: Inbox
    ) -> Iterator[Step[Inbox]]:
        me, name, lies = w.lookers[who], "AB"[who], w.records[job]
        same = me.seen is not None and lies is not None and lies.birth == me.seen.birth
        if lies is None or (not same and self.rules.same_record):
            yield Step(f"{name} meets another record, or none", idle)
            return
        version = None if me.version is None else str(me.version)
        undone = lies.status == Status.PENDING and not self.rules.admission_stands
        decided = admit_or_withdraw(record(me.drop, Status.UNADMITTED if undone else lies.status), version, NOW)
        status = lies.status if decided is None else decided.status
        after = w._replace(records=_put(w.records, job, lies._replace(status=status)))
        ours = me.version == me.drop and (self.rules.file_goes_anyway or status != Status.STOPPED)
        phase = "enter" if status == Status.PENDING else "remove" if ours else "idle"
        settled = after._replace(lookers=idle.lookers) if phase == "idle" else now(after, phase)
        yield Step(f"{name} settles it: {status}", settled)

    def _others(self, w: Inbox, job: int, lies: Record) -> Iterator[Step[Inbox]]:
        """Agents that run jobs, a person who stops one, retention, and the repair."""
        drop = self._drop(job)
        real = record(drop, lies.status)
        if lies.status == Status.PENDING and job in w.entries:
            ran = w._replace(records=_put(w.records, job, lies._replace(status="succeeded")))
            ran = ran._replace(runs=_put(w.runs, drop, min(2, w.runs[drop] + 1)), entries=w.entries - {job})
            unwanted = lies.late and not w.runs[drop]
            breaks = "a version ran that was changed before it became a job" if unwanted else ""
            yield Step(f"job {job} runs", ran, breaks=breaks)
        elif lies.status == Status.PENDING:
            yield Step(f"repair enters job {job}", w._replace(entries=w.entries | {job}))
        elif lies.status == Status.UNADMITTED:
            decided = admit_or_withdraw(real, None if w.box is None else str(w.box), NOW)
            assert decided is not None
            settled = w._replace(records=_put(w.records, job, lies._replace(status=decided.status)))
            yield Step(f"repair settles job {job}: {decided.status}", settled)
        if "stop" in w.faults and (stopped := request_stop(real, NOW, "")) is not None:
            after = w._replace(records=_put(w.records, job, lies._replace(status=stopped.status)))
            after = after._replace(wanted=_put(w.wanted, drop, False), faults=w.faults - {"stop"})
            yield Step(f"a person stops job {job}", after, fault=True)
        inbox = str(w.box) if w.box is not None and self.rules.retention_looks else None
        if w.forgets and is_removable(real, LATE, SETTINGS, version_in_inbox=inbox):
            gone = w._replace(records=_put(w.records, job, None), forgets=w.forgets - 1)
            yield Step(f"retention removes job {job}", gone, fault=True)


def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])
