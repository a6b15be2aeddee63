"""A small world for the archive: two movers, one of which may die, a reader, and an agent that admits the file late.

The job has ended and has one record under `jobs/`, which may still be changed once. A mover reads the record, writes
the copy and deletes the record. A reader looks in both places. An admitter that read the job's file long ago creates
the record if it is absent, and then settles it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.admission import admit_or_withdraw, record_of_drop
from fray_coordinator.protocol.archiving import archive_time, may_archive
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec_parsing import parse_spec
from tests.model.explorer import Step

SETTINGS, NOW = ClusterSettings(), 1.8e9
DROP = record_of_drop("inbox/a.json", "1", NOW, parse_spec({"name": "job", "entrypoint": {"command": ["true"]}}))
ENDED, CHANGED, AGAIN = 1, 2, 3
"""Versions of the record: as the job ended, as it was changed since, and as the late admitter has created it."""


class Rules(NamedTuple):
    """Switches; all on is the protocol."""

    copies_first: bool = True
    deletes_by_version: bool = True
    copies_by_version: bool = True
    jobs_first: bool = True
    admission_looks: bool = True


class Mover(NamedTuple):
    """A mover. Phases: read, first (of its two writes), reread, replace, second, gone.

    `version`: of the record that it has read. `seen`: of another copy that it has found.
    """

    phase: str = "read"
    version: int = 0
    seen: int = 0


class Archive(NamedTuple):
    """A state. `job`, `copy`: versions of the records in the two places, 0 for none. `status`: of a created record."""

    job: int = ENDED
    copy: int = 0
    status: str = ""
    movers: tuple[Mover, Mover] = (Mover(), Mover())
    reader: str = "first"
    admitter: str = "create"
    faults: frozenset[str] = frozenset({"crash", "change"})


class ArchiveWorld:
    """The steps under `rules`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.start = Archive()

    def good(self, w: Archive) -> bool:
        return w.job == 0 and w.copy in (ENDED, CHANGED)

    def broken(self, w: Archive) -> str:
        if not w.job and not w.copy:
            return "the job has no record"
        if not w.job and "change" not in w.faults and w.copy == ENDED:
            return "a change was lost"
        return "the job runs again" if w.status == Status.PENDING else ""

    def steps(self, w: Archive) -> Iterator[Step[Archive]]:
        for who in (0, 1):
            yield from self._mover(w, who)
        yield from self._reader(w)
        yield from self._admitter(w)
        if w.job == ENDED and "change" in w.faults:
            yield Step("the record is changed", w._replace(job=CHANGED, faults=w.faults - {"change"}), fault=True)

    def _mover(self, w: Archive, who: int) -> Iterator[Step[Archive]]:
        me, name = w.movers[who], "AB"[who]

        def now(state: Archive, phase: str, version: int = me.version, seen: int = 0) -> Archive:
            movers = list(state.movers)
            movers[who] = Mover(phase, version, seen)
            return state._replace(movers=(movers[0], movers[1]))

        if who == 0 and me.phase not in ("read", "gone") and "crash" in w.faults:
            yield Step("A dies", now(w, "gone", 0)._replace(faults=w.faults - {"crash"}), fault=True)
        if me.phase == "read" and w.job in (ENDED, CHANGED):
            assert may_archive(archive_time(_ended(), SETTINGS), NOW + 1e5, has_children=False)
            yield Step(f"{name} reads the record", now(w, "first", w.job))
        elif me.phase in ("first", "second"):
            after = "second" if me.phase == "first" else "read"
            is_copy = (me.phase == "first") == self.rules.copies_first
            if is_copy and w.copy not in (0, me.version) and self.rules.copies_by_version:
                yield Step(f"{name} finds another copy", now(w, "reread", seen=w.copy))
            elif is_copy:
                yield Step(f"{name} writes the copy", now(w._replace(copy=me.version), after))
            elif w.job == me.version or (w.job and not self.rules.deletes_by_version):
                yield Step(f"{name} deletes the record", now(w._replace(job=0, status=""), after))
            else:
                yield Step(f"{name} finds another record, or none", now(w, after))

        elif me.phase == "reread":
            phase = "replace" if w.job in (ENDED, CHANGED) else "read"
            yield Step(f"{name} reads the record again", now(w, phase, w.job, me.seen))
        elif me.phase == "replace":
            done = now(w._replace(copy=me.version), "second") if w.copy == me.seen else now(w, "read")
            yield Step(f"{name} replaces the copy", done)

    def _reader(self, w: Archive) -> Iterator[Step[Archive]]:
        first, second = (w.job, w.copy) if self.rules.jobs_first else (w.copy, w.job)
        if w.reader == "first":
            yield Step("the reader looks first", w._replace(reader="found" if first else "second"))
        elif w.reader == "second":
            breaks = "" if second else "a reader found no record"
            yield Step("the reader looks in the other place", w._replace(reader="found"), breaks=breaks)

    def _admitter(self, w: Archive) -> Iterator[Step[Archive]]:
        if w.admitter == "create":
            born: dict[str, Any] = {} if w.job else {"job": AGAIN, "status": DROP.status}
            yield Step("the admitter creates the record if absent", w._replace(admitter="settle", **born))
        elif w.admitter == "settle" and w.job == AGAIN:
            if self.rules.admission_looks and w.copy:
                yield Step("the admitter deletes what it created", w._replace(job=0, status="", admitter="gone"))
                return
            decided = admit_or_withdraw(DROP, "1", NOW)  # the file is still there
            assert decided is not None
            yield Step("the admitter settles it", w._replace(status=decided.status, admitter="gone"))


def _ended() -> JobRecord:
    return replace(DROP, status=str(Status.SUCCEEDED), ended_at=NOW)
