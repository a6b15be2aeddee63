"""The slow repair: everything that hints and indexes missed, found by listing.

This, not the submitter, guarantees that no job is lost: `jobs/` is the truth, `pending/` and `children/` are derived.
Only records whose version changed since the last repair are read, and of jobs that have ended little is kept in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from fray_coordinator import doorbell, families, index, stopping, sweep
from fray_coordinator.admission import Admission
from fray_coordinator.core import Core, each_sound
from fray_coordinator.endpoints import Outlived
from fray_coordinator.protocol.cascade import Verdict
from fray_coordinator.protocol.claim import expired, overdue
from fray_coordinator.protocol.retention import blobs_since, due_at, may_go
from fray_coordinator.protocol.schedule import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.records import Stored, record_of
from fray_coordinator.store.api import Listed
from fray_layouts.names import Child, Jobs, Pending
from fray_layouts.records import JobRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a job that has ended, of which there may be millions. `parent`, `blob`: "" if none."""

    version: str
    due_at: float
    parent: str
    blob: str


@dataclass(slots=True)
class Repair:
    """One participant's repairs. `problems` maps a key to what went wrong with it in the last run."""

    core: Core
    admission: Admission
    problems: dict[str, str] = field(default_factory=dict)
    _endpoints: Outlived = field(init=False)
    _jobs: dict[str, Stored[JobRecord]] = field(default_factory=dict)
    _ended: dict[str, Ended] = field(default_factory=dict)
    _swept_until: str = ""

    def __post_init__(self) -> None:
        self._endpoints = Outlived(self.core)

    @property
    def size(self) -> int:
        """How many jobs the last run saw."""
        return len(self._jobs) + len(self._ended)

    async def run(self, live: Iterable[str]) -> None:
        """One repair. `live`: ids of the agents that a look just before saw alive."""
        self.problems = {}
        alive = frozenset(live)
        await self._read_jobs()
        entries = {row.key for row in await self.core.store.list("pending/")}
        children = [c for c in (Child.parse(row.key) for row in await self.core.store.list("children/")) if c]
        parents = {child.parent for child in children if self._may_need_cascade(child)}
        await self._each(sorted(parents), lambda parent: families.end_children(self.core, parent))
        with_children = {child.parent for child in children} | self._parents()
        await self._each([key for key in self._ended if self._is_due(key, with_children)], self._remove)
        await self._each(list(self._jobs), lambda key: self._mend_job(key, alive, entries))
        await self._each(sorted(e for e in entries if not self._agrees(e)), self._tend)
        await self._endpoints.remove(self._attempt_running, self.problems)
        await self._sweep_blobs()

    async def _read_jobs(self) -> None:
        rows = await self.core.store.list(Jobs.prefix, versions=True)
        jobs, ended = self._jobs, self._ended
        self._jobs, self._ended = {}, {}

        async def read(row: Listed) -> None:
            if (gone := ended.get(row.key)) is not None and gone.version == row.version:
                self._ended[row.key] = gone
                return
            before = jobs.get(row.key)
            unchanged = before is not None and before.version == row.version
            self._remember(before if unchanged else await self.core.records.read(row.key, JobRecord))

        await self._each([row for row in rows if Jobs.parse(row.key)], read, name=lambda row: row.key)

    def _remember(self, job: Stored[JobRecord] | None) -> None:
        if job is None:
            return
        if is_terminal(job.record):
            due = due_at(job.record, self.core.settings)
            self._ended[job.key] = Ended(job.version, due, _attached_to(job.record), _blob_of(job.record))
        else:
            self._jobs[job.key] = job

    def _is_due(self, key: str, parents: set[str]) -> bool:
        return may_go(self._ended[key].due_at, self.core.now(), Jobs.parse(key) in parents)

    async def _remove(self, key: str) -> None:
        job = await self.core.records.read(key, JobRecord)
        if job is not None:
            await sweep.remove_job(self.core, job)

    async def _mend_job(self, key: str, alive: frozenset[str], entries: set[str]) -> None:
        job = self._jobs[key]
        record = job.record
        if record.status == Status.UNADMITTED:
            await self.admission.settle_record(job)
        elif overdue(record, self.core.now()):
            await stopping.stop_if(self.core, key, self._expired, known=job)
        elif await self._outlived_its_parent(job):
            await families.stop_orphan(self.core, job)
        elif record.status == Status.PENDING and entry_of(record).key() not in entries:
            await self._enter_if_missing(job)
        elif record.status == Status.RUNNING and record.lease is not None and record.lease.agent not in alive:
            await index.put_back_if_orphaned(self.core, job)

    async def _enter_if_missing(self, known: Stored[JobRecord]) -> None:
        """Make the entry of a pending job that has none; one that was claimed since it was read has lost it rightly."""
        job = record_of(await self.core.records.reread(known))
        if job is not None and job.status == Status.PENDING and job.attempt == known.record.attempt:
            await index.enter(self.core, job)
            await doorbell.ring(self.core, job.spec.pool)

    def _attempt_running(self, job_id: str) -> int | None:
        job = self._jobs.get(Jobs.key(job_id))
        return job.record.attempt if job is not None and job.record.status == Status.RUNNING else None

    def _parents(self) -> set[str]:
        """The jobs that others name as their parent: none of them goes before those."""
        return {_attached_to(job.record) for job in self._jobs.values()} | {job.parent for job in self._ended.values()}

    def _expired(self, job: JobRecord) -> JobRecord | None:
        return expired(job, self.core.now()) if overdue(job, self.core.now()) else None

    async def _outlived_its_parent(self, job: Stored[JobRecord]) -> bool:
        link = job.record.parent
        if link is None or link.detached or job.record.stop is not None:
            return False
        parent = self._jobs.get(Jobs.key(link.job))
        if parent is not None and parent.record.status == Status.RUNNING and parent.record.attempt == link.attempt:
            return False
        return await families.family_verdict(self.core, job) is Verdict.STOP

    def _may_need_cascade(self, child: Child) -> bool:
        parent = self._jobs.get(Jobs.key(child.parent))
        job = self._jobs.get(Jobs.key(child.child))
        runs = parent is not None and parent.record.status == Status.RUNNING and parent.record.attempt == child.attempt
        return not runs or job is None

    def _agrees(self, key: str) -> bool:
        """Whether the entry is the one that its pending job should have."""
        entry = Pending.parse(key)
        job = self._jobs.get(Jobs.key(entry.job)) if entry else None
        return job is not None and job.record.status == Status.PENDING and entry_of(job.record).key() == key

    async def _tend(self, key: str) -> None:
        entry = Pending.parse(key)
        if entry is not None:
            await index.tend(self.core, key, entry)

    async def _sweep_blobs(self) -> None:
        """Once a month; not while there are records that cannot be read, which may name any blob."""
        since = blobs_since(self.core.now(), self.core.settings)
        if since == self._swept_until or self.problems:
            return
        used = {_blob_of(job.record) for job in self._jobs.values()} | {job.blob for job in self._ended.values()}
        await sweep.remove_blobs(self.core, used, since)
        self._swept_until = since

    async def _each(
        self,
        items: Iterable[T],
        act: Callable[[T], Awaitable[object]],
        name: Callable[[T], str] = str,
    ) -> None:
        await each_sound(items, act, self.problems, name)


def _attached_to(job: JobRecord) -> str:
    """The id of the parent that may not go before the job; "" if there is none."""
    return job.parent.job if job.parent is not None and not job.parent.detached else ""


def _blob_of(job: JobRecord) -> str:
    """The key of the blob that the job needs; "" if there is none."""
    call = job.spec.entrypoint.callable
    return call.blob if call is not None else ""
