"""A small world for the archive: two movers, one of which may die, a reader, a late admitter, and a sweep of blobs.

The job has ended and has one record under `jobs/`, which may still be changed once. A mover reads the record, writes
the copy and deletes the record. A reader looks in both places. An admitter that read the job's file long ago creates
the record if it is absent, and then settles it. The job names an old blob, and a sweep lists `jobs/` and then `blobs/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.job_identity import admit_or_withdraw, record_of_drop
from fray_coordinator.protocol.retention import (
    archive_time,
    blobs_to_keep,
    may_archive,
    oldest_kept_month,
    unneeded_blobs,
)
from fray_coordinator.protocol.transitions import Status
from fray_layouts.object_keys import BlobKeys
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import EntrypointSpec
from fray_layouts.spec_parsing import parse_spec
from tests.model.explorer import Step

SETTINGS, NOW = ClusterSettings(), 1.8e9
DROP = record_of_drop("inbox/a.json", "1", NOW, parse_spec({"name": "job", "entrypoint": {"command": ["true"]}}))
OLD_BLOB = BlobKeys.key(NOW - 200 * 86400.0, "0" * 64)
ENDED, CHANGED, AGAIN = 1, 2, 3
"""Versions of the record: as the job ended, as it was changed since, and as the late admitter has created it."""


class Rules(NamedTuple):
    """Switches; all on is the protocol."""

    copies_first: bool = True
    deletes_by_version: bool = True
    copies_by_version: bool = True
    jobs_first: bool = True
    admission_looks: bool = True
    keeps_blobs: bool = True
    keeps_blobs_first: bool = True
    sweep_reads_jobs_first: bool = True


class Mover(NamedTuple):
    """A mover. Phases: read, keep (the blob), first (of its two writes), reread, replace, second, late (keep), gone.

    `version`: of the record that it has read. `seen`: of another copy that it has found.
    """

    phase: str = "read"
    version: int = 0
    seen: int = 0


class Archive(NamedTuple):
    """A state.

    `job`, `copy`: versions of the records in the two places, 0 for none. `status`: of a created record. `blob`, `kept`:
    the blob is there, and the key that keeps it. `sweep`: what it does next, or "done"; `needed`: it has seen the need.
    """

    job: int = ENDED
    copy: int = 0
    status: str = ""
    movers: tuple[Mover, Mover] = (Mover(), Mover())
    reader: str = "first"
    admitter: str = "create"
    blob: bool = True
    kept: bool = False
    sweep: str = "first"
    needed: bool = False
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
        if not w.blob:
            return "a blob was swept that a job needs"
        return "the job runs again" if w.status == Status.PENDING else ""

    def steps(self, w: Archive) -> Iterator[Step[Archive]]:
        for who in (0, 1):
            yield from self._mover(w, who)
        yield from self._reader(w)
        yield from self._admitter(w)
        yield from self._sweep(w)
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
            first = "keep" if self.rules.keeps_blobs and self.rules.keeps_blobs_first else "first"
            yield Step(f"{name} reads the record", now(w, first, w.job))
        elif me.phase in ("keep", "late"):
            assert [kept.blob for kept in blobs_to_keep(_ended(), NOW)] == [OLD_BLOB]
            after = "first" if me.phase == "keep" else "read"
            yield Step(f"{name} writes what keeps the blob", now(w._replace(kept=True), after))
        elif me.phase in ("first", "second"):
            late = "late" if self.rules.keeps_blobs and not self.rules.keeps_blobs_first else "read"
            after = "second" if me.phase == "first" else late
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

    def _sweep(self, w: Archive) -> Iterator[Step[Archive]]:
        """A sweep of a month in which archived jobs that ended with this one are still kept."""
        jobs_now = w.sweep == ("first" if self.rules.sweep_reads_jobs_first else "second")
        if w.sweep in ("first", "second"):
            seen = bool(w.job) if jobs_now else self._is_needed_by_an_archived_job(w)
            after = "second" if w.sweep == "first" else "delete"
            what = "jobs" if jobs_now else "blobs"
            yield Step(f"the sweep lists {what}", w._replace(sweep=after, needed=w.needed or seen))
        elif w.sweep == "delete":
            yield Step("the sweep deletes what nobody needs", w._replace(sweep="done", blob=w.needed))

    def _is_needed_by_an_archived_job(self, w: Archive) -> bool:
        keys = [OLD_BLOB, *(kept.key() for kept in blobs_to_keep(_ended(), NOW) if w.kept)]
        return OLD_BLOB not in unneeded_blobs(keys, set(), oldest_kept_month(NOW, SETTINGS))


def _ended() -> JobRecord:
    spec = replace(DROP.spec, entrypoint=EntrypointSpec(command=["cat"], stdin=OLD_BLOB))
    return replace(DROP, status=str(Status.SUCCEEDED), ended_at=NOW, spec=spec)
